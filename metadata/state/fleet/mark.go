package fleet

import (
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
)

func sumMark(v *kvtx.View) (s record.SumMark, ok bool, err error) {
	b, ok, err := v.R.Get(v.K.Meta(record.MetaMark))
	if err != nil || !ok {
		return record.SumMark{}, false, err
	}
	s, err = record.DecodeSumMark(b)
	return s, true, err
}

// SumMark returns the replica's last mark, which the next Tick compares; nil if there is none.
func SumMark(r *kvtx.View) (*statepb.SumMark, error) {
	s, ok, err := sumMark(r)
	if err != nil || !ok {
		return nil, err
	}
	return &statepb.SumMark{Index: s.Index, Sum_0: s.Sum[0], Sum_1: s.Sum[1]}, nil
}

// CompareSums compares the proposer's mark with the replica's own at the same index, and makes the
// next mark. Marks at different entries are not compared: another leader ticked in between.
func CompareSums(t *kvtx.Tx, op *statepb.Tick) error {
	if want := op.GetCompare(); want != nil {
		own, ok, err := sumMark(&t.View)
		if err != nil {
			return err
		}
		if ok && own.Index == want.GetIndex() && own.Sum != (record.Sum{want.GetSum_0(), want.GetSum_1()}) {
			t.Events.Diverged = true
		}
	}
	if op.GetMark() {
		t.Put(t.K.Meta(record.MetaMark), record.SumMark{Index: t.Index, Sum: t.B.Began}.Encode())
	}
	return nil
}
