package record

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// Intent announces that a repair job will write one chunk of a stripe to a device. It is in the
// state before the first byte is sent, so that the chunk is always explained. No version is used
// twice: when an intent ends, filled or not, the stripe's layout version becomes at least the
// intent's version.
type Intent struct {
	Chunk   moraine.ChunkID // in the key
	Job     moraine.JobID
	Device  moraine.DeviceID
	Version moraine.LayoutVersion // version of the new chunk
	Base    moraine.LayoutVersion // the stripe's layout version when the intent was made
}

const intentVersion = 1

// Encode returns the stored value.
func (i *Intent) Encode() []byte { return i.fields(encoder(24)).B }

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
func (i *Intent) Decode(b []byte) error { return i.fields(decoder(b)).End("intent") }

func (i *Intent) fields(c *codec) *codec {
	c.version(intentVersion)
	fixed64(c, &i.Job)
	uvarint(c, &i.Device)
	uvarint(c, &i.Version)
	uvarint(c, &i.Base)
	return c
}

// ToWire returns the wire form.
func (i *Intent) ToWire() *wire.Intent {
	return &wire.Intent{Stripe: uint64(i.Chunk.Stripe), Index: uint32(i.Chunk.Index), Device: uint32(i.Device), Version: uint32(i.Version)}
}

// EndedIntent is kept to explain a chunk that arrives late.
type EndedIntent struct {
	At    uint64 // log index of its end
	Since uint64 // cluster time of its end
}

// Encode returns the stored value.
func (e EndedIntent) Encode() []byte { return e.fields(encoder(16)).B }

// DecodeEndedIntent decodes an ended intent.
func DecodeEndedIntent(b []byte) (e EndedIntent, err error) {
	err = e.fields(decoder(b)).End("ended intent")
	return e, err
}

func (e *EndedIntent) fields(c *codec) *codec {
	c.version(intentVersion)
	uvarint(c, &e.At)
	uvarint(c, &e.Since)
	return c
}
