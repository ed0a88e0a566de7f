package ckpt

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// StepLook is an inspection of all committed checkpoints for lost bytes. The zero value starts one.
// It keeps what it found since the last Judge.
type StepLook struct {
	// Done says that all checkpoints have been inspected.
	Done bool
	// Changes is the number of losses and recoveries of stripes when the inspection began.
	Changes uint64

	began  bool
	chosen bool     // only the checkpoints in rows are inspected
	rows   [][]byte // rows left to inspect
	row    []byte   // checkpoint in progress: a key of TabRunCommit
	name   string   // its files up to this one are inspected
	offset int64    // and the next file below this offset
	inside bool     // offset belongs to the file after name, which is in progress
	since  uint64   // Changes when the inspection of this checkpoint began

	lost  []*statepb.LostStep
	evict []uint64
	found map[uint64][]*wire.StepKey // by the value of since
}

// StepLosses returns the numbers that decide whether an inspection is due: losses and recoveries so
// far, lost stripes, and lost checkpoints.
func StepLosses(r *kvtx.View) (changes, stripes, steps uint64, err error) {
	c, err := r.Counters()
	return c[record.CLossChanges], c[record.CLostStripes], c[record.CLostSteps], err
}

// FindStepLoss continues an inspection by about limit extents and files. It stops early when a
// JudgeSteps is full.
func FindStepLoss(v *kvtx.View, l *StepLook, limit int) error {
	c, err := v.Counters()
	if err != nil {
		return err
	}
	if !l.began {
		l.began, l.Changes = true, c[record.CLossChanges]
	}
	for left := limit; left > 0 && !l.Done && l.judged() < maxJudged; {
		if l.name == "" && !l.inside {
			if err := nextStep(v, l); err != nil || l.Done {
				return err
			}
			l.since = c[record.CLossChanges]
		}
		looked, err := lookStep(v, l, left)
		if err != nil {
			return err
		}
		left -= max(looked, 1)
	}
	return nil
}

// nextStep advances to the next committed checkpoint.
func nextStep(v *kvtx.View, l *StepLook) error {
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

// lookStep inspects the files of a checkpoint from the current place on.
func lookStep(v *kvtx.View, l *StepLook, limit int) (looked int, err error) {
	id := StepOfKey(l.row)
	id.Step = ^id.Step
	s, err := present(v, id)
	if err != nil || s == nil {
		l.next()
		return 0, err
	}
	if s.Lost() && l.name == "" && !l.inside {
		if is, err := lossIs(v, s, s.Loss); is || err != nil {
			l.next()
			return 1, err
		}
	}
	for looked < limit && l.judged() < maxJudged {
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
		n, lost, err := lookPart(v, l, s, names[0], entries[0].Inode, limit-looked)
		if looked += n; lost || err != nil {
			l.next()
			return looked, err
		}
	}
	return looked, nil
}

// lookPart inspects one file of a checkpoint.
func lookPart(v *kvtx.View, l *StepLook, s *record.Step, name string, id moraine.InodeID, limit int) (looked int, lost bool, err error) {
	i, err := tree.ReadInode(v, id)
	if err != nil {
		return 1, false, kvtx.Damaged(err)
	}
	from := int64(0)
	if l.inside {
		from = l.offset
	}
	if beside, err := lostBeside(v, i, from, limit); err != nil {
		return 1, false, err
	} else if beside && (len(l.evict) == 0 || l.evict[len(l.evict)-1] != uint64(id)) {
		l.evict = append(l.evict, uint64(id))
	}
	at, next, looked, err := lossFrom(v, i, from, limit)
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

// next leaves the checkpoint in progress.
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

// Judge returns the command that records the findings since the last one; nil if there are none.
func (l *StepLook) Judge(changes uint64) *statepb.JudgeSteps {
	op := &statepb.JudgeSteps{Lost: l.lost, Found: l.found[changes], Changes: changes, Evict: l.evict}
	l.lost, l.found, l.evict = nil, nil, nil
	if len(op.Lost) == 0 && len(op.Found) == 0 && len(op.Evict) == 0 {
		return nil
	}
	return op
}
