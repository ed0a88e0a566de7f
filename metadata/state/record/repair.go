package record

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// RepairItem is a stripe on the repair queue.
type RepairItem struct {
	Stripe moraine.StripeID // in the key
	Spare  uint8
	Bad    uint32 // bit mask of chunks known to be corrupt or missing
	Recode uint32 // part of Bad: parity with its recorded checksum that does not match the data
	Since  uint64 // cluster time
	Job    moraine.JobID
	Tries  uint32 // number of jobs that failed to repair it
	After  uint64 // earliest next try, cluster time
	// Balance: the stripe is healthy and a REBALANCE job moves it.
	Balance bool
}

// Lost reports whether too few chunks of the stripe are left to read it.
func (i *RepairItem) Lost() bool { return i.Spare == LostSpare }

// failedAt returns when the last job failed to rebuild a lost stripe, in cluster time.
func (i *RepairItem) failedAt() uint64 {
	return i.After - min(i.After, BackoffTo(i.Tries, MaxLostBackoff))
}

// TriedBefore reports whether the last try may have come too early for a host that returned at
// back, in cluster time. It allows one try per minute, so that hosts that come and go do not cause
// more.
func (i *RepairItem) TriedBefore(back, now uint64) bool {
	const underWay, again = 30_000, 60_000
	return i.failedAt() < back+underWay && now >= i.failedAt()+again
}

// MaxLostBackoff bounds the delay between two tries to rebuild a lost stripe, in milliseconds of
// cluster time.
const MaxLostBackoff = 3600_000

const RepairVersion = 1

// Encode returns the stored value.
func (i *RepairItem) Encode() []byte { return i.fields(encoder(32)).B }

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
func (i *RepairItem) Decode(b []byte) error { return i.fields(decoder(b)).End("repair item") }

func (i *RepairItem) fields(c *codec) *codec {
	c.version(RepairVersion)
	oneByte(c, &i.Spare)
	chunks := uint64(i.Recode)<<32 | uint64(i.Bad)
	uvarint(c, &chunks)
	if c.reading {
		i.Bad, i.Recode = uint32(chunks), uint32(chunks>>32)
	}
	uvarint(c, &i.Since)
	fixed64(c, &i.Job)
	uvarint(c, &i.Tries)
	uvarint(c, &i.After)
	c.bool(&i.Balance)
	return c
}

// LostSpare is the spare value of lost stripes. It sorts them last in the queue, after all stripes
// that can be repaired.
const LostSpare = 0xff

// RebalanceSettings say how evenly devices are filled, and how fast.
type RebalanceSettings struct {
	Paused         bool
	BandPermille   uint32
	BytesPerSecond uint64
}

const rebalanceVersion = 1

// Encode returns the stored value.
func (s RebalanceSettings) Encode() []byte { return s.fields(encoder(16)).B }

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
func (s *RebalanceSettings) Decode(b []byte) error {
	return s.fields(decoder(b)).End("rebalance settings")
}

func (s *RebalanceSettings) fields(c *codec) *codec {
	c.version(rebalanceVersion)
	c.bool(&s.Paused)
	uvarint(c, &s.BandPermille)
	uvarint(c, &s.BytesPerSecond)
	return c
}

// OfStripes reports whether jobs of a kind write chunks of stripes under intents.
func OfStripes(kind wire.JobKind) bool {
	return kind == wire.JobKind_JOB_KIND_REPAIR || kind == wire.JobKind_JOB_KIND_REBALANCE
}
