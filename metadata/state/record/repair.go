package record

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// RepairItem is a stripe on the queue.
type RepairItem struct {
	Stripe moraine.StripeID // in the key
	Spare  uint8
	Bad    uint32 // chunks known to be corrupt or not there, by bit
	Recode uint32 // of bad: parity that has its recorded sum, and is not that of the data
	Since  uint64 // cluster time
	Job    moraine.JobID
	Tries  uint32 // jobs that gave up on it
	After  uint64 // not before: cluster time
	// balance: nothing is wrong with it, a REBALANCE job moves it.
	Balance bool
}

// Lost reports whether too few chunks of the stripe are left.
func (i *RepairItem) Lost() bool { return i.Spare == LostSpare }

// failedAt is when the last job gave up on a stripe of which too few chunks are left, in
// cluster time, from LevelUnrecoverable on.
func (i *RepairItem) failedAt() uint64 {
	return i.After - min(i.After, BackoffTo(i.Tries, MaxLostBackoff))
}

// TriedBefore reports whether that was before a host came back, or while it was: what was
// under way then may have asked it too early. Hosts that come and go do not have a stripe
// tried more often than once a minute.
func (i *RepairItem) TriedBefore(back, now uint64) bool {
	const underWay, again = 30_000, 60_000
	return i.failedAt() < back+underWay && now >= i.failedAt()+again
}

// MaxLostBackoff is for how long, at most, a stripe is left alone of which too few chunks
// were left to rebuild it when that was tried, in milliseconds of cluster time.
const MaxLostBackoff = 3600_000

const RepairVersion = 1

func (i *RepairItem) Encode() []byte {
	b := PutUvarint([]byte{RepairVersion, i.Spare}, uint64(i.Recode)<<32|uint64(i.Bad))
	b = PutUvarint(b, i.Since)
	b = PutFixed64(b, uint64(i.Job))
	b = PutUvarint(b, uint64(i.Tries))
	return putBool(PutUvarint(b, i.After), i.Balance)
}

func (i *RepairItem) Decode(b []byte) error {
	d := Dec{B: b}
	d.Version(RepairVersion)
	i.Spare = d.Byte()
	chunks := d.Uvarint()
	i.Bad, i.Recode = uint32(chunks), uint32(chunks>>32)
	i.Since = d.Uvarint()
	i.Job = moraine.JobID(d.Fixed64())
	i.Tries = d.U32()
	i.After = d.Uvarint()
	i.Balance = d.bool()
	return d.End("repair item")
}

// LostSpare is where stripes stand in the queue that have too few chunks left:
// after all that something can be done about.
const LostSpare = 0xff

// RebalanceSettings say how evenly devices are to be filled, and how fast that is done.
type RebalanceSettings struct {
	Paused         bool
	BandPermille   uint32
	BytesPerSecond uint64
}

const rebalanceVersion = 1

func (s RebalanceSettings) Encode() []byte {
	b := putBool([]byte{rebalanceVersion}, s.Paused)
	b = PutUvarint(b, uint64(s.BandPermille))
	return PutUvarint(b, s.BytesPerSecond)
}

func (s *RebalanceSettings) Decode(b []byte) error {
	d := Dec{B: b}
	d.Version(rebalanceVersion)
	s.Paused = d.bool()
	s.BandPermille = d.U32()
	s.BytesPerSecond = d.Uvarint()
	return d.End("rebalance settings")
}

// OfStripes reports whether jobs of a kind put chunks of stripes under intents.
func OfStripes(kind wire.JobKind) bool {
	return kind == wire.JobKind_JOB_KIND_REPAIR || kind == wire.JobKind_JOB_KIND_REBALANCE
}
