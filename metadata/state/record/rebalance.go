package record

import "github.com/morainefs/moraine/transport/wire"

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
