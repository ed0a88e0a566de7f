package ckpt

import (
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
)

// A look at all checkpoints takes long where there are many. Most stripes of a checkpoint were
// made for its files, and say so (Stripe.Origin): the checkpoints of the stripes that are lost,
// and those that are called lost, are looked at first. What a clone, a pack or a level below
// nvme has to do with a loss, the look at all finds.

// maxSuspects bounds the lost stripes that are asked for their checkpoints at a time.
const maxSuspects = 4096

// LossSuspects begins a look at the checkpoints that the lost stripes were made for, and at
// those that are called lost. seen are the stripes that were lost before, whose checkpoints were
// looked at; it returns those that are lost now. nil: there is nothing to look at. all has it
// look at checkpoints that are called lost, too.
func LossSuspects(r *kvtx.View, seen map[moraine.StripeID]bool, all bool) (*StepLook, map[moraine.StripeID]bool, error) {
	v := r
	lost, err := LostStripes(v, maxSuspects)
	if err != nil {
		return nil, seen, err
	}
	rows := map[string]bool{}
	now := make(map[moraine.StripeID]bool, len(lost))
	for _, id := range lost {
		if now[id] = true; seen[id] {
			continue
		}
		step, err := StepOfStripe(v, id)
		if err != nil {
			return nil, seen, err
		}
		if step != nil {
			rows[string(v.K.RunCommit(step.Id))] = true
		}
	}
	if all {
		if err := LostSteps(v, rows); err != nil {
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

// LostStripes returns at most limit stripes of the queue that have too few chunks left.
func LostStripes(v *kvtx.View, limit int) (out []moraine.StripeID, err error) {
	prefix := append(v.K.Table(record.TabRepair), record.LostSpare)
	err = v.R.Scan(prefix, kvtx.PrefixEnd(prefix), func(key, _ []byte) bool {
		out = append(out, moraine.StripeID(record.LastU64(key)))
		return len(out) < limit
	})
	return out, err
}

// StepOfStripe returns the committed checkpoint that a stripe was made for; nil where there is
// none.
func StepOfStripe(v *kvtx.View, id moraine.StripeID) (*record.Step, error) {
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

// LostSteps adds the rows of the checkpoints that are called lost.
func LostSteps(v *kvtx.View, rows map[string]bool) error {
	c, err := v.Counters()
	if err != nil || c[record.CLostSteps] == 0 {
		return err
	}
	left := c[record.CLostSteps]
	var bad error
	prefix := v.K.Table(record.TabRunCommit)
	err = v.R.Scan(prefix, kvtx.PrefixEnd(prefix), func(key, _ []byte) bool {
		id := StepOfKey(key)
		id.Step = ^id.Step
		var s *record.Step
		if s, bad = tree.StepRecord(v, id); bad == nil && s != nil && s.Lost() {
			rows[string(key)] = true
			left--
		}
		return bad == nil && left > 0
	})
	if err == nil {
		err = bad
	}
	return err
}
