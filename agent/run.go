package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
)

// runKey names one rank of one launch of a run, of one user.
type runKey struct {
	uid    uint32
	path   string
	launch string
	rank   uint32
	world  uint32
	// readOnly is a run that is only read.
	readOnly bool
}

// owner names the rank over all its launches: its slots stay with it.
func (k runKey) owner() string { return fmt.Sprintf("%d %s %d", k.uid, k.path, k.rank) }

// run is an open run. refs counts the connections that opened it and the parts that are not in
// a committed step yet; the last one closes it.
type run struct {
	key    runKey
	open   agentproto.Open
	ready  chan struct{} // closed when the opening has ended
	err    error         // of the opening
	run    *ckpt.Run
	client *client.Client // its session
	close  func() error   // ends the session
	// failed are sealed parts that have failed and that no Begin has reported.
	failed []agentproto.Failure
	refs   int
	// keep says that the session must not be ended, but expire: its end would abort a step whose
	// sealed part the next agent still has to write.
	keep bool
}

// acquire opens a run, or joins the opening of another connection. Each acquire needs a release.
func (a *Agent) acquire(ctx context.Context, key runKey, open agentproto.Open) (*run, error) {
	a.mu.Lock()
	r := a.runs[key]
	if r == nil {
		r = &run{key: key, open: open, ready: make(chan struct{})}
		a.runs[key] = r
		a.running.Go(func() { a.openRun(r) })
	}
	r.refs++
	a.mu.Unlock()
	select {
	case <-r.ready:
	case <-ctx.Done():
		a.release(r)
		return nil, ctx.Err()
	}
	if r.err != nil {
		a.release(r)
		return nil, r.err
	}
	return r, nil
}

func (a *Agent) openRun(r *run) {
	defer close(r.ready)
	a.awaitEarlier(r)
	c, end, err := a.deps.Connect(a.work)
	if err != nil {
		r.err = err
		return
	}
	r.run, r.err = ckpt.OpenRun(a.work, c, r.open.Run, ckpt.RunOptions{
		Launch:   ckpt.Launch{Name: r.open.Launch, Job: r.open.Job, Restart: r.open.Restart},
		Takeover: r.open.Takeover, ReadOnly: r.open.ReadOnly, Rank: r.open.Rank, World: r.open.World, Pace: a.pace.wait, Log: a.log, Metrics: a.deps.Saves})
	if r.err != nil {
		r.err = errors.Join(r.err, end())
		return
	}
	r.client, r.close = c, end
}

// keptFailures bounds the failures that wait for the next Begin of a run.
const keptFailures = 16

// noteFailure keeps the failure of a sealed part for the next Begin. The caller holds Agent.mu.
func (r *run) noteFailure(step uint64, err error) {
	if len(r.failed) == keptFailures {
		r.failed = r.failed[1:]
	}
	r.failed = append(r.failed, agentproto.Failure{Step: step, Error: *agentproto.ErrorOf(err)})
}

// handover bounds how long the opening of a run waits for the parts of an earlier launch.
const handover = 15 * time.Second

// awaitEarlier waits until the sealed parts that an earlier launch of the run has left on this node
// are in committed steps, or never will be: the new launch fences the attempt, and would then
// not find its last step.
func (a *Agent) awaitEarlier(r *run) {
	if r.open.ReadOnly {
		return
	}
	ctx, cancel := context.WithTimeout(a.work, handover)
	defer cancel()
	a.pushed(ctx, func(p *part) bool {
		return p.key.uid == r.key.uid && p.key.path == r.key.path && p.run.key.launch != r.key.launch
	})
	for {
		a.mu.Lock()
		open, changed := false, a.changed
		for key := range a.closing {
			open = open || key.uid == r.key.uid && key.path == r.key.path && key.launch != r.key.launch
		}
		a.mu.Unlock()
		if !open {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// release ends one use of a run. The last one closes it, so that the attempt has no session of
// this node any more and another launch may follow.
func (a *Agent) release(r *run) {
	a.mu.Lock()
	r.refs--
	last, keep := r.refs == 0, r.keep
	if last && a.runs[r.key] == r {
		delete(a.runs, r.key)
		a.figures.close(runOf{r.key.uid, r.key.path})
		a.closing[r.key]++
		defer a.closed(r.key)
	}
	a.mu.Unlock()
	if !last {
		return
	}
	<-r.ready
	if r.run == nil {
		return
	}
	err := r.run.Close(a.work)
	if !keep {
		err = errors.Join(err, r.close())
	}
	if err != nil {
		a.log.Warn("run not closed", "run", r.open.Run, "rank", r.open.Rank, "err", err)
	}
}

// isOpen reports whether a connection or a part has a run open, also for reading. The caller holds Agent.mu.
func isOpen(runs map[runKey]*run, of runOf) bool {
	for key := range runs {
		if key.uid == of.uid && key.path == of.path {
			return true
		}
	}
	return false
}

// closed counts a run that is closed.
func (a *Agent) closed(key runKey) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closing[key]--; a.closing[key] == 0 {
		delete(a.closing, key)
	}
	a.notify()
}
