package ckpt

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// StepLook is a look for lost bytes over all committed checkpoints, under way. The zero
// value begins one. It holds what it found since the last Judge.
type StepLook struct {
	// Done is whether all checkpoints have been looked at.
	Done bool
	// Changes is how often stripes had been lost or found when the look began.
	Changes uint64

	began  bool
	chosen bool     // only rows are looked at
	rows   [][]byte // that are left of those
	row    []byte   // of the checkpoint that is being looked at: a key of tabRunCommit
	name   string   // its files up to this one have been looked at
	offset int64    // and of the next one all below
	inside bool     // offset is of the file behind name, which is not done
	since  uint64   // Changes as the look at this checkpoint began

	lost  []*statepb.LostStep
	evict []uint64
	found map[uint64][]*wire.StepKey // by since
}

// StepLosses returns what decides whether a look is due: how often stripes were lost or
// found, and how many stripes and checkpoints are lost.
func StepLosses(r *kvtx.View) (changes, stripes, steps uint64, err error) {
	c, err := r.Counters()
	return c[record.CLossChanges], c[record.CLostStripes], c[record.CLostSteps], err
}

// FindStepLoss goes on with a look, at about limit extents and files more. It ends early
// when a JudgeSteps is full.
func FindStepLoss(r *kvtx.View, l *StepLook, limit int) error {
	v := r
	c, err := v.Counters()
	if err != nil {
		return err
	}
	if !l.began {
		l.began, l.Changes = true, c[record.CLossChanges]
	}
	for left := limit; left > 0 && !l.Done && l.judged() < MaxJudged; {
		if l.name == "" && !l.inside {
			if err := NextStep(v, l); err != nil || l.Done {
				return err
			}
			l.since = c[record.CLossChanges]
		}
		looked, err := LookStep(v, l, left)
		if err != nil {
			return err
		}
		left -= max(looked, 1)
	}
	return nil
}

// NextStep goes to the next committed checkpoint.
func NextStep(v *kvtx.View, l *StepLook) error {
	if l.chosen {
		if l.Done = len(l.rows) == 0; !l.Done {
			l.row, l.rows = l.rows[0], l.rows[1:]
		}
		return nil
	}
	prefix := v.K.Table(record.TabRunCommit)
	lo := prefix
	if l.row != nil {
		lo = append(append([]byte(nil), l.row...), 0)
	}
	l.row = nil
	err := v.R.Scan(lo, kvtx.PrefixEnd(prefix), func(key, _ []byte) bool {
		l.row = append([]byte(nil), key...)
		return false
	})
	l.Done = err == nil && l.row == nil
	return err
}

// LookStep looks at the files of a checkpoint, from where the look is on.
func LookStep(v *kvtx.View, l *StepLook, limit int) (looked int, err error) {
	id := StepOfKey(l.row)
	id.Step = ^id.Step
	s, err := Present(v, id)
	if err != nil || s == nil {
		l.next()
		return 0, err
	}
	if s.Lost() && l.name == "" && !l.inside {
		if is, err := LossIs(v, s, s.Loss); is || err != nil {
			l.next()
			return 1, err
		}
	}
	for looked < limit && l.judged() < MaxJudged {
		names, entries, err := tree.ListDir(v, s.Dir, l.name, 1)
		if err != nil {
			return looked, err
		}
		if len(names) == 0 {
			if s.Lost() {
				l.foundStep(id)
			}
			l.next()
			return looked, nil
		}
		n, lost, err := LookPart(v, l, s, names[0], entries[0].Inode, limit-looked)
		if looked += n; lost || err != nil {
			l.next()
			return looked, err
		}
	}
	return looked, nil
}

// LookPart looks at one file of a checkpoint.
func LookPart(v *kvtx.View, l *StepLook, s *record.Step, name string, id moraine.InodeID, limit int) (looked int, lost bool, err error) {
	i, err := tree.ReadInode(v, id)
	if err != nil {
		return 1, false, kvtx.Damaged(err)
	}
	from := int64(0)
	if l.inside {
		from = l.offset
	}
	if beside, err := LostBeside(v, i, from, limit); err != nil {
		return 1, false, err
	} else if beside && (len(l.evict) == 0 || l.evict[len(l.evict)-1] != uint64(id)) {
		l.evict = append(l.evict, uint64(id))
	}
	at, next, looked, err := LossFrom(v, i, from, limit)
	switch {
	case err != nil:
	case at >= 0:
		lost = true
		if !s.Lost() {
			l.lost = append(l.lost, &statepb.LostStep{Key: s.Id.ToWire(), At: &statepb.FilePlace{Inode: uint64(id), Offset: uint64(at)}})
		}
	case next >= 0:
		l.inside, l.offset = true, next
	default:
		l.name, l.inside, l.offset = name, false, 0
	}
	return max(looked, 1), lost, err
}

// next leaves the checkpoint that is being looked at.
func (l *StepLook) next() { l.name, l.inside, l.offset = "", false, 0 }

func (l *StepLook) foundStep(id record.StepID) {
	if l.found == nil {
		l.found = make(map[uint64][]*wire.StepKey)
	}
	l.found[l.since] = append(l.found[l.since], id.ToWire())
}

func (l *StepLook) judged() int {
	n := len(l.lost) + len(l.evict)
	for _, found := range l.found {
		n += len(found)
	}
	return n
}

// Judge returns the command that records what the look has found since the last one; nil
// where that is nothing.
func (l *StepLook) Judge(changes uint64) *statepb.JudgeSteps {
	op := &statepb.JudgeSteps{Lost: l.lost, Found: l.found[changes], Changes: changes, Evict: l.evict}
	l.lost, l.found, l.evict = nil, nil, nil
	if len(op.Lost) == 0 && len(op.Found) == 0 && len(op.Evict) == 0 {
		return nil
	}
	return op
}
