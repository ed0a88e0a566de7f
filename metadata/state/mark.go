package state

import (
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
)

func (v *view) sumMark() (s record.SumMark, ok bool, err error) {
	b, ok, err := v.r.Get(v.k.meta(record.MetaMark))
	if err != nil || !ok {
		return record.SumMark{}, false, err
	}
	s, err = record.DecodeSumMark(b)
	return s, true, err
}

// SumMark returns what the replica noted last, nil if nothing: what the next
// Tick is to compare.
func (m *Machine) SumMark(r Reader) (*statepb.SumMark, error) {
	s, ok, err := m.view(r).sumMark()
	if err != nil || !ok {
		return nil, err
	}
	return &statepb.SumMark{Index: s.Index, Sum_0: s.Sum[0], Sum_1: s.Sum[1]}, nil
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
		if ok && own.Index == want.GetIndex() && own.Sum != (record.Sum{want.GetSum_0(), want.GetSum_1()}) {
			t.events.Diverged = true
		}
	}
	if op.GetMark() {
		t.put(t.k.meta(record.MetaMark), record.SumMark{Index: t.index, Sum: t.b.began}.Encode())
	}
	return nil
}
