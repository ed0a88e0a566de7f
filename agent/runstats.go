package agent

import (
	"cmp"
	"slices"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
)

// maxRunStats bounds the runs that an agent counts apart, so that metrics have few labels. A further one takes the
// place of the run that has been closed longest. While all of them are open it counts as otherRuns.
const (
	maxRunStats = 64
	otherRuns   = "other"
)

// runOf names a run of a user.
type runOf struct {
	uid  uint32
	path string
}

// runFigures is what the agent counts of each run since its start. Agent.mu guards it.
type runFigures struct {
	metrics *Metrics
	of      map[runOf]*agentproto.RunStatus
	// isOpen reports whether somebody has a run open. closings counts closings of runs, and closed has its value at
	// each run's last one.
	isOpen   func(runOf) bool
	closings uint64
	closed   map[runOf]uint64
	// follows has the open runs, and those that were open a moment ago. See exposure.go.
	follows map[runOf]*following
}

// get returns the figures of the run of a part, and its label.
func (f *runFigures) get(k partKey) (*agentproto.RunStatus, string) {
	return f.getOf(runOf{k.uid, k.path})
}

func (f *runFigures) getOf(of runOf) (*agentproto.RunStatus, string) {
	if f.of[of] == nil && len(f.of) >= maxRunStats && !f.forgetOne() {
		of.path = otherRuns
	}
	s := f.of[of]
	if s == nil {
		s = &agentproto.RunStatus{Run: of.path}
		f.of[of] = s
	}
	return s, of.path
}

// close notes that a user of a run has closed it.
func (f *runFigures) close(of runOf) {
	if f.of[of] != nil {
		f.closings++
		f.closed[of] = f.closings
	}
}

// forgetOne drops the figures of the run that has been closed longest, and its metrics. It returns false if no run is
// closed.
func (f *runFigures) forgetOne() bool {
	var victim runOf
	for of := range f.of {
		if of.path != otherRuns && !f.isOpen(of) && (victim.path == "" || f.closed[of] < f.closed[victim]) {
			victim = of
		}
	}
	if victim.path == "" {
		return false
	}
	delete(f.of, victim)
	delete(f.closed, victim)
	delete(f.follows, victim)
	for of := range f.of {
		if of.path == victim.path {
			return true // a run of another user has the same label
		}
	}
	f.metrics.hideRun(victim.path)
	return true
}

// sealed counts a part that its trainer has sealed. Its stall is the time since Begin, in which a
// trainer that saves in its own thread stands still.
func (f *runFigures) sealed(p *part, now time.Time) {
	s, run := f.get(p.key)
	stall := now.Sub(p.begun)
	s.Saves++
	s.Bytes += p.bytes
	s.StallSeconds += stall.Seconds()
	f.metrics.RunSaves.WithLabelValues(run).Inc()
	f.metrics.RunBytes.WithLabelValues(run).Add(float64(p.bytes))
	f.metrics.RunStall.WithLabelValues(run).Add(stall.Seconds())
	f.reached(run, moraine.Local, now)
}

// committed notes the levels that the step of a part has reached.
func (f *runFigures) committed(p *part) {
	if p.info.CommittedAt.IsZero() {
		return // an earlier agent has followed the part
	}
	_, run := f.get(p.key)
	k := f.follow(runOf{p.key.uid, p.key.path})
	for level := moraine.Memory; level <= p.info.Level; level++ {
		known, have := k.newest[level]
		if !have || p.key.attempt > known.Attempt || p.key.attempt == known.Attempt && p.key.step > known.Step {
			f.learn(k, run, level, p.info)
		}
	}
}

func (f *runFigures) reached(run string, level moraine.Level, at time.Time) {
	f.metrics.RunLast.WithLabelValues(run, level.String()).Set(float64(at.UnixNano()) / 1e9)
}

// restored counts a step that a trainer has fetched from.
func (f *runFigures) restored(of runOf, took time.Duration) {
	s, run := f.getOf(of)
	s.Restores++
	s.RestoreSeconds += took.Seconds()
	f.metrics.RunRestores.WithLabelValues(run).Inc()
	f.metrics.RunRestoreSeconds.WithLabelValues(run).Add(took.Seconds())
}

// failed counts a part whose step will never be committed.
func (f *runFigures) failed(p *part) {
	s, run := f.get(p.key)
	s.Failed++
	f.metrics.RunFailed.WithLabelValues(run).Inc()
}

// list returns the figures of the runs of a user, and for root of all. What a crash would lose is up to
// date: see expose.
func (f *runFigures) list(uid uint32) []agentproto.RunStatus {
	var out []agentproto.RunStatus
	for of, s := range f.of {
		if uid == 0 || of.uid == uid {
			out = append(out, *s)
		}
	}
	slices.SortFunc(out, func(x, y agentproto.RunStatus) int { return cmp.Compare(x.Run, y.Run) })
	return out
}
