package ckpt

import (
	"math"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/retention"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// RetainLook is an inspection of the committed steps of one run, newest first, for those to which the policy
// of checkpoints wants something to happen. It may see parts of the run at different times: the state judges what it
// finds again.
type RetainLook struct {
	// Due are the steps found so far; the caller proposes them and empties the list.
	Due []*wire.StepKey
	// Done says that all steps were seen.
	Done bool

	run   moraine.RunID
	facts *runRetention
	judge *retention.Judge
	after record.StepID // the last step seen
}

// NewRetainLook begins an inspection of a run.
func NewRetainLook(run moraine.RunID) *RetainLook { return &RetainLook{run: run} }

// FindRetained continues an inspection by at most limit steps.
func FindRetained(v *kvtx.View, l *RetainLook, limit int) error {
	if l.facts == nil {
		f, err := retentionOf(v, l.run)
		if err != nil {
			return err
		}
		if f == nil {
			l.Done = true
			return nil
		}
		l.facts, l.judge = f, f.judge()
		l.after = record.StepID{Run: l.run, Attempt: f.run.Attempt, Step: math.MaxUint64}
	}
	l.Done = true
	return newestFirst(v, l.after, func(s *record.Step) (more bool, err error) {
		if limit == 0 {
			l.Done = false
			return false, nil
		}
		limit--
		l.after = s.Id
		due, err := l.due(v, s)
		if due {
			l.Due = append(l.Due, s.Id.ToWire())
		}
		return err == nil, err
	})
}

// due reports whether something should happen to the next older step.
func (l *RetainLook) due(v *kvtx.View, s *record.Step) (bool, error) {
	action := l.judge.Next(l.facts.facts(s)).Action
	if action == retention.Stay {
		return l.facts.flushDue(v, s)
	}
	switch err := mindReaders(v, s.Id); {
	case kvtx.MoraineKind(err) == moraine.Busy:
		return false, nil
	case err != nil:
		return false, err
	}
	if action == retention.Remove {
		return true, nil
	}
	return l.facts.evictDue(v, s)
}

// newestFirst calls fn with the committed steps of a run that are present, lost ones too, from the one before after
// on, newest first, until fn returns false.
func newestFirst(v *kvtx.View, after record.StepID, fn func(*record.Step) (more bool, err error)) error {
	more := true
	for at := after; more && at.Attempt > 0; at.Attempt, at.Step = at.Attempt-1, math.MaxUint64 {
		lo := v.K.RunCommit(at)
		if at == after && at.Step < math.MaxUint64 {
			lo = append(lo, 0)
		}
		end := kvtx.PrefixEnd(record.Be32(record.Be64(v.K.Key(record.TabRunCommit, 12), uint64(at.Run)), at.Attempt))
		err := v.Each(lo, end, func(key, _ []byte) (bool, error) {
			id := StepOfKey(key)
			id.Step = ^id.Step
			s, err := present(v, id)
			if err != nil || s == nil {
				return err == nil, err
			}
			more, err = fn(s)
			return more, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// judgeSome returns what the rules say of some steps of the run. It reads newer ones only as far as they matter.
func (f *runRetention) judgeSome(v *kvtx.View, steps []*record.Step) ([]retention.Action, error) {
	actions := make([]retention.Action, len(steps))
	at := map[record.StepID]int{}
	for n, s := range steps {
		at[s.Id] = n
	}
	judge := f.judge()
	from := record.StepID{Run: f.run.Id, Attempt: f.run.Attempt, Step: math.MaxUint64}
	err := newestFirst(v, from, func(s *record.Step) (bool, error) {
		if len(at) == 0 || judge.Settled(f.run.HasLevel) {
			return false, nil
		}
		action := judge.Next(f.facts(s)).Action
		if n, wanted := at[s.Id]; wanted {
			actions[n] = action
			delete(at, s.Id)
		}
		return true, nil
	})
	for n, s := range steps {
		if _, left := at[s.Id]; left {
			actions[n] = judge.Next(f.facts(s)).Action
		}
	}
	return actions, err
}

// Runs returns at most limit runs after one, in order of number.
func Runs(v *kvtx.View, after moraine.RunID, limit int) (runs []moraine.RunID, err error) {
	lo := append(v.K.Run(after), 0)
	err = v.Scan(lo, kvtx.PrefixEnd(v.K.Table(record.TabRun)), func(key, _ []byte) bool {
		runs = append(runs, moraine.RunID(record.LastU64(key)))
		return len(runs) < limit
	})
	return runs, err
}
