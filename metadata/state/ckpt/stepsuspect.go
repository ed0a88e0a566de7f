package ckpt

import (
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
)

// An inspection of all checkpoints takes long if there are many. Most stripes of a checkpoint were
// made for its files and say so (Stripe.Origin). The leader therefore first inspects the
// checkpoints of lost stripes and those recorded as lost. The full inspection finds losses through
// clones, packs or levels below nvme.

// maxSuspects bounds the lost stripes whose checkpoints are looked up at a time.
const maxSuspects = 4096

// LossSuspects starts an inspection of the checkpoints for which the lost stripes were made. With
// all set it includes those recorded as lost. seen are the stripes that were lost before, whose
// checkpoints were inspected; it returns those lost now. A nil StepLook means that there is nothing
// to inspect.
func LossSuspects(v *kvtx.View, seen map[moraine.StripeID]bool, all bool) (*StepLook, map[moraine.StripeID]bool, error) {
	lost, err := lostStripes(v, maxSuspects)
	if err != nil {
		return nil, seen, err
	}
	rows := map[string]bool{}
	now := make(map[moraine.StripeID]bool, len(lost))
	for _, id := range lost {
		if now[id] = true; seen[id] {
			continue
		}
		step, err := stepOfStripe(v, id)
		if err != nil {
			return nil, seen, err
		}
		if step != nil {
			rows[string(v.K.RunCommit(step.Id))] = true
		}
	}
	if all {
		if err := lostSteps(v, rows); err != nil {
			return nil, seen, err
		}
	}
	if len(rows) == 0 {
		return nil, now, nil
	}
	look := &StepLook{chosen: true}
	for row := range rows {
		look.rows = append(look.rows, []byte(row))
	}
	slices.SortFunc(look.rows, slices.Compare[[]byte])
	return look, now, nil
}

// lostStripes returns at most limit lost stripes of the repair queue.
func lostStripes(v *kvtx.View, limit int) (out []moraine.StripeID, err error) {
	prefix := append(v.K.Table(record.TabRepair), record.LostSpare)
	err = v.R.Scan(prefix, kvtx.PrefixEnd(prefix), func(key, _ []byte) bool {
		out = append(out, moraine.StripeID(record.LastU64(key)))
		return len(out) < limit
	})
	return out, err
}

// stepOfStripe returns the committed checkpoint for which a stripe was made; nil if there is none.
func stepOfStripe(v *kvtx.View, id moraine.StripeID) (*record.Step, error) {
	s, err := fleet.Stripe(v, id)
	if err != nil || s == nil {
		return nil, err
	}
	file, err := tree.ReadInode(v, s.Origin)
	if err == nil && file.Typ == record.TypeFile {
		file, err = tree.ReadInode(v, file.Parent)
	}
	if kvtx.MoraineKind(err) == moraine.NotFound {
		return nil, nil
	}
	if err != nil || file.Step == (record.StepID{}) {
		return nil, err
	}
	st, err := tree.StepRecord(v, file.Step)
	if err != nil || st == nil || st.State != record.StepCommitted {
		return nil, err
	}
	return st, nil
}

// lostSteps adds the rows of the checkpoints recorded as lost.
func lostSteps(v *kvtx.View, rows map[string]bool) error {
	c, err := v.Counters()
	if err != nil || c[record.CLostSteps] == 0 {
		return err
	}
	left := c[record.CLostSteps]
	err = v.EachIn(v.K.Table(record.TabRunCommit), func(key, _ []byte) (bool, error) {
		id := StepOfKey(key)
		id.Step = ^id.Step
		s, err := tree.StepRecord(v, id)
		if err == nil && s != nil && s.Lost() {
			rows[string(key)] = true
			left--
		}
		return left > 0, err
	})
	return err
}
