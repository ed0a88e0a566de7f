package record

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// Intent is a recorded wish of a repair job to put one chunk of a stripe on a
// device. It is in the state before the first byte is on its way, so that the
// chunk is always explained. A version number is never wished for twice: when
// an intent ends, filled or not, the stripe's layout version becomes at least
// its version.
type Intent struct {
	Chunk   moraine.ChunkID // in the key
	Job     moraine.JobID
	Device  moraine.DeviceID
	Version moraine.LayoutVersion // that the new chunk carries
	Base    moraine.LayoutVersion // the stripe's, when the intent was made
}

const intentVersion = 1

func (i *Intent) Encode() []byte {
	b := PutFixed64([]byte{intentVersion}, uint64(i.Job))
	b = PutUvarint(b, uint64(i.Device))
	b = PutUvarint(b, uint64(i.Version))
	return PutUvarint(b, uint64(i.Base))
}

func (i *Intent) Decode(b []byte) error {
	d := Dec{B: b}
	d.Version(intentVersion)
	i.Job = moraine.JobID(d.Fixed64())
	i.Device = moraine.DeviceID(d.U32())
	i.Version = moraine.LayoutVersion(d.U32())
	i.Base = moraine.LayoutVersion(d.U32())
	return d.End("intent")
}

func (i *Intent) ToWire() *wire.Intent {
	return &wire.Intent{Stripe: uint64(i.Chunk.Stripe), Index: uint32(i.Chunk.Index), Device: uint32(i.Device), Version: uint32(i.Version)}
}

// EndedIntent is kept so that a chunk which arrives late is explained.
type EndedIntent struct {
	At    uint64 // log index
	Since uint64 // cluster time
}

func (e EndedIntent) Encode() []byte {
	return PutUvarint(PutUvarint([]byte{intentVersion}, e.At), e.Since)
}

func DecodeEndedIntent(b []byte) (EndedIntent, error) {
	d := Dec{B: b}
	d.Version(intentVersion)
	e := EndedIntent{At: d.Uvarint(), Since: d.Uvarint()}
	return e, d.End("ended intent")
}
