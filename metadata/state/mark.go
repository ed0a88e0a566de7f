package state

import (
	"github.com/morainefs/moraine/metadata/state/statepb"
)

// Replicas find out that their states differ by marks: a Tick has each note its
// running sum, and the next one brings what its proposer noted. Applying never
// fails for a difference, which would end for ever every replica that is right
// where the proposer is not: it raises Events.Diverged, and the service of that
// replica stops.

// sumMark is a running sum, and the log index of the entry before which it was.
type sumMark struct {
	index uint64
	sum   Sum
}

const sumMarkVersion = 1

func (s sumMark) encode() []byte {
	return putFixed64(putFixed64(putFixed64([]byte{sumMarkVersion}, s.index), s.sum[0]), s.sum[1])
}

func decodeSumMark(b []byte) (sumMark, error) {
	d := dec{b: b}
	d.version(sumMarkVersion)
	s := sumMark{d.fixed64(), Sum{d.fixed64(), d.fixed64()}}
	return s, d.end("sum mark")
}

func (v *view) sumMark() (s sumMark, ok bool, err error) {
	b, ok, err := v.r.Get(v.k.meta(metaMark))
	if err != nil || !ok {
		return sumMark{}, false, err
	}
	s, err = decodeSumMark(b)
	return s, true, err
}

// SumMark returns what the replica noted last, nil if nothing: what the next
// Tick is to compare.
func (m *Machine) SumMark(r Reader) (*statepb.SumMark, error) {
	s, ok, err := m.view(r).sumMark()
	if err != nil || !ok {
		return nil, err
	}
	return &statepb.SumMark{Index: s.index, Sum_0: s.sum[0], Sum_1: s.sum[1]}, nil
}

// compareSums holds the proposer's mark against the own one of the same index,
// and notes the next. Marks of different entries say nothing: another leader
// ticked in between.
func (t *tx) compareSums(op *statepb.Tick) error {
	if want := op.GetCompare(); want != nil {
		own, ok, err := t.sumMark()
		if err != nil {
			return err
		}
		if ok && own.index == want.GetIndex() && own.sum != (Sum{want.GetSum_0(), want.GetSum_1()}) {
			t.events.Diverged = true
		}
	}
	if op.GetMark() {
		t.put(t.k.meta(metaMark), sumMark{t.index, t.b.began}.encode())
	}
	return nil
}
