package agent

import (
	"cmp"
	"slices"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
)

// maxRunStats bounds the runs that an agent counts apart, so that metrics have few labels. Further ones
// count as otherRuns.
const (
	maxRunStats = 64
	otherRuns   = "other"
)

// runOf names a run of a user.
type runOf struct {
	uid  uint32
	path string
}

// statsOf returns what the agent counts of the run of a part, and its label. The caller holds the mutex.
func (a *Agent) statsOf(k partKey) (*agentproto.RunStatus, string) {
	of := runOf{k.uid, k.path}
	if a.stats[of] == nil && len(a.stats) >= maxRunStats {
		of.path = otherRuns
	}
	s := a.stats[of]
	if s == nil {
		s = &agentproto.RunStatus{Run: of.path}
		a.stats[of] = s
	}
	return s, of.path
}

// countSealed counts a part that its trainer has sealed. Its stall is the time since Begin, in which a
// trainer that saves in its own thread stands still. The caller holds the mutex.
func (a *Agent) countSealed(p *part, now time.Time) {
	s, run := a.statsOf(p.key)
	stall := now.Sub(p.begun)
	s.Saves++
	s.Bytes += p.bytes
	s.StallSeconds += stall.Seconds()
	a.metrics.RunSaves.WithLabelValues(run).Inc()
	a.metrics.RunBytes.WithLabelValues(run).Add(float64(p.bytes))
	a.metrics.RunStall.WithLabelValues(run).Add(stall.Seconds())
	a.reachedLevel(run, moraine.Local, now)
}

// countCommitted notes the levels that the step of a part has reached. The caller holds the mutex.
func (a *Agent) countCommitted(p *part) {
	_, run := a.statsOf(p.key)
	for level := moraine.Memory; level <= p.info.Level; level++ {
		at, known := p.info.Reached[level]
		if !known {
			at = p.info.CommittedAt
		}
		a.reachedLevel(run, level, at)
	}
}

func (a *Agent) reachedLevel(run string, level moraine.Level, at time.Time) {
	a.metrics.RunLast.WithLabelValues(run, level.String()).Set(float64(at.UnixNano()) / 1e9)
}

// countFailed counts a part whose step will never be committed. The caller holds the mutex.
func (a *Agent) countFailed(p *part) {
	s, run := a.statsOf(p.key)
	s.Failed++
	a.metrics.RunFailed.WithLabelValues(run).Inc()
}

// runStats lists what the agent has counted of the runs of a user, and for root of all. The caller holds
// the mutex.
func (a *Agent) runStats(uid uint32) []agentproto.RunStatus {
	var out []agentproto.RunStatus
	for of, s := range a.stats {
		if uid == 0 || of.uid == uid {
			out = append(out, *s)
		}
	}
	slices.SortFunc(out, func(x, y agentproto.RunStatus) int { return cmp.Compare(x.Run, y.Run) })
	return out
}
