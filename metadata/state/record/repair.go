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
func (i *RepairItem) Encode() []byte {
	b := PutUvarint([]byte{RepairVersion, i.Spare}, uint64(i.Recode)<<32|uint64(i.Bad))
	b = PutUvarint(b, i.Since)
	b = PutFixed64(b, uint64(i.Job))
	b = PutUvarint(b, uint64(i.Tries))
	return putBool(PutUvarint(b, i.After), i.Balance)
}

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
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
func (s RebalanceSettings) Encode() []byte {
	b := putBool([]byte{rebalanceVersion}, s.Paused)
	b = PutUvarint(b, uint64(s.BandPermille))
	return PutUvarint(b, s.BytesPerSecond)
}

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
func (s *RebalanceSettings) Decode(b []byte) error {
	d := Dec{B: b}
	d.Version(rebalanceVersion)
	s.Paused = d.bool()
	s.BandPermille = d.U32()
	s.BytesPerSecond = d.Uvarint()
	return d.End("rebalance settings")
}

// OfStripes reports whether jobs of a kind write chunks of stripes under intents.
func OfStripes(kind wire.JobKind) bool {
	return kind == wire.JobKind_JOB_KIND_REPAIR || kind == wire.JobKind_JOB_KIND_REBALANCE
}
