package ckpt

import (
	"encoding/binary"
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

// CommitRow returns the row of a committed step in the list of its run: what the counts of the rules need, so
// that a command which counts reads no records.
func CommitRow(s *record.Step) []byte {
	row := binary.AppendUvarint([]byte{record.StepVersion}, s.Bytes)
	return append(row, boolByte(good(s)), byte(s.Level)) // the level is last: see latestUpTo
}

// good reports whether a committed step has lost no bytes and is not quarantined.
func good(s *record.Step) bool { return !s.Lost() && s.Mark != record.StepQuarantined }

func boolByte(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// counted is a row of CommitRow, as the rules see it.
func counted(id record.StepID, row []byte) (retention.Step, error) {
	if len(row) < 4 || row[0] != record.StepVersion {
		return retention.Step{}, kvtx.Corrupt("list of steps", id.String(), "the row has %d bytes", len(row))
	}
	bytes, n := binary.Uvarint(row[1:])
	if n != len(row)-3 {
		return retention.Step{}, kvtx.Corrupt("list of steps", id.String(), "the row has %d bytes", len(row))
	}
	return retention.Step{Number: id.Step, Bytes: bytes, Good: row[1+n] != 0, Level: moraine.Level(row[2+n])}, nil
}

// rowsNewestFirst calls fn with the rows of a run's committed steps from the one before after on, newest first, until fn
// returns false.
func rowsNewestFirst(v *kvtx.View, after record.StepID, fn func(id record.StepID, row []byte) (more bool, err error)) error {
	return eachAttempt(v, after.Run, after.Attempt, func(attempt uint32) (more bool, err error) {
		at := record.StepID{Run: after.Run, Attempt: attempt, Step: math.MaxUint64}
		if attempt == after.Attempt {
			at = after
		}
		lo := v.K.RunCommit(at)
		if at.Step < math.MaxUint64 {
			lo = append(lo, 0)
		}
		more = true
		end := kvtx.PrefixEnd(record.Be32(record.Be64(v.K.Key(record.TabRunCommit, 12), uint64(at.Run)), at.Attempt))
		err = v.Each(lo, end, func(key, row []byte) (_ bool, err error) {
			id := StepOfKey(key)
			id.Step = ^id.Step
			more, err = fn(id, row)
			return more, err
		})
		return more, err
	})
}

// newestFirst is rowsNewestFirst of those that are present, lost ones too, with their records.
func newestFirst(v *kvtx.View, after record.StepID, fn func(*record.Step) (more bool, err error)) error {
	return rowsNewestFirst(v, after, func(id record.StepID, _ []byte) (bool, error) {
		s, err := present(v, id)
		if err != nil || s == nil {
			return err == nil, err
		}
		return fn(s)
	})
}

// judgeSome returns what the rules say of some steps of the run. It reads newer ones only as far as they matter, and of
// those only their rows.
func (f *runRetention) judgeSome(v *kvtx.View, steps []*record.Step) ([]retention.Action, error) {
	actions := make([]retention.Action, len(steps))
	at := map[record.StepID]int{}
	for n, s := range steps {
		at[s.Id] = n
	}
	judge := f.judge()
	from := record.StepID{Run: f.run.Id, Attempt: f.run.Attempt, Step: math.MaxUint64}
	err := rowsNewestFirst(v, from, func(id record.StepID, row []byte) (bool, error) {
		if len(at) == 0 || judge.Settled(f.run.HasLevel) {
			return false, nil
		}
		if n, wanted := at[id]; wanted {
			actions[n] = judge.Next(f.facts(steps[n])).Action
			delete(at, id)
			return true, nil
		}
		s, err := counted(id, row)
		judge.Next(s)
		return true, err
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
