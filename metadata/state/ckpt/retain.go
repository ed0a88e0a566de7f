package ckpt

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/retention"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/metadata/state/tier"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// The policy of a directory says which steps go to the bucket, and which stay at a level (package
// retention has the rules). A step that goes to the bucket is queued in the entry that commits it. For all
// else the leader looks at the steps of a run (retainlook.go), and proposes those to which something
// should happen. RetainSteps judges each again: a step that a session reads by then, that is pinned, or
// from which a new attempt continues, stays.

const (
	// MaxRetained is the largest number of steps in one RetainSteps.
	MaxRetained = 16
	// flushAgain is how long after the end of its job a step is queued again that is not in the bucket, in
	// milliseconds of cluster time.
	flushAgain = 10 * 60 * 1000
)

// flushByPolicy queues the flush of a step that its policy brings to the bucket.
func flushByPolicy(t *kvtx.Tx, s *record.Step, dir *record.Inode) error {
	if t.Count[record.CPolicies] == 0 || dir.Entries == 0 {
		return nil
	}
	p, err := tree.Effective(&t.View, dir.Id)
	if err != nil || p.Flush != wire.FlushPolicy_FLUSH_POLICY_ON_COMMIT && !retention.Selects(rulesOf(&p), moraine.Object, s.Id.Step) {
		return err
	}
	s.Flush, err = tier.QueueTree(t, wire.JobKind_JOB_KIND_FLUSH, dir)
	return err
}

// staysInMemory reports whether the policy of a run's directory leaves a step at level memory.
func staysInMemory(v *kvtx.View, run moraine.InodeID, step uint64) (bool, error) {
	c, err := v.Counters()
	if err != nil || c[record.CPolicies] == 0 {
		return false, err
	}
	p, err := tree.Effective(v, run)
	return err == nil && p.Flush != wire.FlushPolicy_FLUSH_POLICY_ON_COMMIT && retention.StaysInMemory(rulesOf(&p), step), err
}

// rulesOf returns the rules of a policy.
func rulesOf(p *record.Policy) []retention.Rule {
	rules := make([]retention.Rule, len(p.Levels))
	for n, l := range p.Levels {
		rules[n] = retention.Rule(l)
	}
	return rules
}

// runRetention is what the rules need to know of a run.
type runRetention struct {
	run    *record.Run
	rules  []retention.Rule
	now    uint64 // cluster time
	parent record.StepID
	// newest has the newest good step of the live branch at each level from memory on.
	newest [moraine.Object - moraine.Memory + 1]record.StepID
}

// retentionOf reads what the rules need to know of a run; nil if no policy has rules for it.
func retentionOf(v *kvtx.View, run moraine.RunID) (*runRetention, error) {
	c, err := v.Counters()
	if err != nil || c[record.CPolicies] == 0 {
		return nil, err
	}
	r, _, err := runInScope(v, kvtx.Scope{Root: v.K.Top()}, "retain steps", run)
	if kvtx.MoraineKind(err) == moraine.NotFound || err == nil && (r.Attempt == 0 || r.Committed == 0) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	p, err := tree.Effective(v, moraine.InodeID(run))
	if kvtx.MoraineKind(err) == moraine.NotFound || err == nil && len(p.Levels) == 0 {
		return nil, nil // NotFound: the run is in a tree that is being removed
	}
	if err != nil {
		return nil, err
	}
	f := &runRetention{run: r, rules: rulesOf(&p), now: c[record.CClusterTime]}
	a, err := Attempt(v, run, r.Attempt)
	if err != nil {
		return nil, err
	}
	f.parent = a.Parent
	for n := range f.newest {
		level := moraine.Memory + moraine.Level(n)
		if !r.HasLevel(level) {
			break
		}
		s, err := latest(v, run, r.Attempt, true, level)
		if err != nil {
			return nil, err
		}
		if s != nil {
			f.newest[n] = s.Id
		}
	}
	return f, nil
}

// judge returns a judge of the run's steps, which are committed and present.
func (f *runRetention) judge() *retention.Judge {
	return retention.NewJudge(f.rules, f.newest[0] != record.StepID{})
}

// facts is a step as the rules see it, but for its readers.
func (f *runRetention) facts(s *record.Step) retention.Step {
	w := retention.Step{Number: s.Id.Step, Level: s.Level, Bytes: s.Bytes, Age: f.now - s.LastSeal, Tags: s.Tags,
		Good: good(s), Pinned: s.Pinned}
	for n, id := range f.newest {
		if id == s.Id {
			w.Protected = "latest-" + (moraine.Memory + moraine.Level(n)).String() + " names it"
		}
	}
	if s.Id == f.parent {
		w.Protected = "attempt " + record.Utoa(uint64(f.run.Attempt)) + " continues from it"
	}
	return w
}

// flushDue reports whether a step that the policy brings to the bucket needs a job for that.
func (f *runRetention) flushDue(v *kvtx.View, s *record.Step) (bool, error) {
	if s.Level >= moraine.Object || !good(s) || !retention.Selects(f.rules, moraine.Object, s.Id.Step) {
		return false, nil
	}
	return f.jobDue(v, s.Flush)
}

// evicted is the record.Step.Evict of a step whose files have left the devices.
const evicted = ^moraine.JobID(0)

// evictDue reports whether a step that should leave the devices needs a job for that. One is enough, unless it
// failed or was canceled. The row of a job goes when many others have ended, so the step says if it was done.
func (f *runRetention) evictDue(v *kvtx.View, s *record.Step) (bool, error) {
	if s.Evict == evicted {
		return false, nil
	}
	return f.jobDue(v, s.Evict)
}

// TreeMoved records in a step that its files have left the devices, when the job of that is done.
func TreeMoved(t *kvtx.Tx, j *record.Job, state wire.JobState) error {
	if j.Moves != wire.JobKind_JOB_KIND_EVICT || state != wire.JobState_JOB_STATE_DONE {
		return nil
	}
	dir, err := tree.ReadInode(&t.View, moraine.InodeID(j.Target))
	if kvtx.MoraineKind(err) == moraine.NotFound {
		return nil
	}
	if err != nil || !dir.CommittedStep() {
		return err
	}
	s, err := tree.StepRecord(&t.View, dir.Step)
	if err != nil || s == nil || s.Evict != j.Id {
		return err
	}
	s.Evict = evicted
	putStep(t, s)
	return nil
}

// jobDue reports whether a job was never queued, or ended flushAgain ago.
func (f *runRetention) jobDue(v *kvtx.View, id moraine.JobID) (bool, error) {
	if id == 0 {
		return true, nil
	}
	j, err := jobs.Job(v, id)
	return err == nil && (j == nil || !j.Live() && f.now >= j.Updated+flushAgain), err
}

// RetainSteps applies the policy of checkpoints to some steps of a run. The answer has the steps that it
// changed.
func RetainSteps(t *kvtx.Tx, op *statepb.RetainSteps) (*wire.MetaResponse, error) {
	reply := &wire.StepsReply{}
	done := &wire.MetaResponse{Result: &wire.MetaResponse_Steps{Steps: reply}}
	if n := len(op.GetSteps()); n == 0 || n > MaxRetained {
		return nil, kvtx.Fail(moraine.InvalidArgument, "retain steps", "", "the command has %d steps, 1 to %d are allowed", n, MaxRetained)
	}
	t.IgnoresQuota = true // a full quota must not prevent removals
	run := stepFromWire(op.GetSteps()[0]).Run
	f, err := retentionOf(&t.View, run)
	if err != nil || f == nil {
		return done, err
	}
	dir, err := tree.Inode(t, moraine.InodeID(run))
	if err != nil {
		return nil, err
	}
	var steps []*record.Step
	for _, w := range op.GetSteps() {
		id := stepFromWire(w)
		if id.Run != run {
			return nil, kvtx.Fail(moraine.InvalidArgument, "retain steps", id.String(), "the command has steps of several runs")
		}
		known, err := tree.StepRecord(&t.View, id)
		if err != nil {
			return nil, err
		}
		if known == nil {
			continue
		}
		s, err := present(&t.View, id)
		if err != nil {
			return nil, err
		}
		if s != nil {
			steps = append(steps, s)
		}
	}
	verdicts, err := f.judgeSome(&t.View, steps)
	if err != nil {
		return nil, err
	}
	for n, s := range steps {
		changed, err := f.carryOut(t, dir, s, verdicts[n])
		if err != nil {
			return nil, err
		}
		if changed {
			reply.Steps = append(reply.Steps, s.ToWire())
		}
	}
	return done, nil
}

// carryOut does to a step what the rules say. It reports whether anything changed.
func (f *runRetention) carryOut(t *kvtx.Tx, run *record.Inode, s *record.Step, verdict retention.Action) (changed bool, err error) {
	switch err := mindReaders(&t.View, s.Id); {
	case kvtx.MoraineKind(err) == moraine.Busy:
		verdict = retention.Stay
	case err != nil:
		return false, err
	}
	switch verdict {
	case retention.Remove:
		err := takeAway(t, f.run, run, s, removal{})
		if kvtx.MoraineKind(err) == moraine.Immutable {
			return false, nil // it would leave the run without a good step
		}
		return err == nil, err
	case retention.Evict:
		due, err := f.evictDue(&t.View, s)
		if err != nil || !due {
			return false, err
		}
		return true, queueStep(t, s, wire.JobKind_JOB_KIND_EVICT, &s.Evict)
	}
	due, err := f.flushDue(&t.View, s)
	if err != nil || !due {
		return false, err
	}
	return true, queueStep(t, s, wire.JobKind_JOB_KIND_FLUSH, &s.Flush)
}

// queueStep queues a move of all files of a step, and records the job in its record.
func queueStep(t *kvtx.Tx, s *record.Step, kind wire.JobKind, job *moraine.JobID) error {
	dir, err := tree.Inode(t, s.Dir)
	if err != nil {
		return kvtx.Damaged(err)
	}
	if *job, err = tier.QueueTree(t, kind, dir); err != nil {
		return err
	}
	putStep(t, s)
	return nil
}
