package record

// Replicas find out that their states differ by marks: a Tick has each note its
// running sum, and the next one brings what its proposer noted. Applying never
// fails for a difference, which would end for ever every replica that is right
// where the proposer is not: it raises Events.Diverged, and the service of that
// replica stops.

// SumMark is a running sum, and the log index of the entry before which it was.
type SumMark struct {
	Index uint64
	Sum   Sum
}

const sumMarkVersion = 1

func (s SumMark) Encode() []byte {
	return PutFixed64(PutFixed64(PutFixed64([]byte{sumMarkVersion}, s.Index), s.Sum[0]), s.Sum[1])
}

func DecodeSumMark(b []byte) (SumMark, error) {
	d := Dec{B: b}
	d.Version(sumMarkVersion)
	s := SumMark{d.Fixed64(), Sum{d.Fixed64(), d.Fixed64()}}
	return s, d.End("sum mark")
}
