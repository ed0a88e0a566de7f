package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
)

const (
	// retryPause is the pause before a part is written again from its start. By then package ckpt
	// has already tried several times.
	retryPause = 5 * time.Second
	// keptEnded bounds the parts without a slot that the agent remembers, for those that wait.
	keptEnded = 1000
)

// part is one rank's part of a step in a slot, from Begin on.
type part struct {
	key   partKey
	run   *run
	slot  *slot // nil: it has none yet, or gave it back
	bytes int64

	// save is the part in the cluster, of the present attempt to write it.
	save     *ckpt.Part
	manifest *manifest // set by Seal

	state string // of agentproto
	err   error  // of a failed one
	info  ckpt.StepInfo
	// written is closed when the part is in the cluster, or has failed.
	written chan struct{}
	// ended is closed when the part is committed or failed.
	ended chan struct{}
}

// begin gives a trainer a slot for its part of a step.
func (a *Agent) begin(ctx context.Context, r *run, req *agentproto.Begin) (*part, error) {
	p := &part{key: partKey{r.key.uid, r.key.path, r.key.rank, r.run.Attempt(), req.Step}, run: r, bytes: req.Bytes,
		state: agentproto.Filling, written: make(chan struct{}), ended: make(chan struct{})}
	if err := a.admit(p); err != nil {
		return nil, err
	}
	s, err := a.pool.take(ctx, r.key.uid, req.Bytes, !req.NoWait, func() (bool, bool) { return a.spare(p) })
	if err != nil {
		a.forget(p)
		return nil, err
	}
	defer a.pool.placed()
	p.save, err = r.run.Begin(ctx, req.Step, beginOptions(req.SealTimeoutMillis))
	if err != nil {
		a.forget(p)
		a.pool.put(s)
		return nil, err
	}
	a.mu.Lock()
	p.slot = s
	r.refs++
	a.notify()
	a.mu.Unlock()
	return p, nil
}

// admit adds a part that begins. A failed one of the same step gives way.
func (a *Agent) admit(p *part) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.draining {
		return &moraine.Error{Op: "agent.Begin", Kind: moraine.Unavailable, Err: errors.New("the agent is shutting down: it accepts no new part")}
	}
	if old := a.parts[p.key]; old != nil && old.state != agentproto.Failed {
		return &moraine.Error{Op: "agent.Begin", Ref: p.ref(), Kind: moraine.Exists, Err: errors.New("this part is saved already")}
	}
	a.parts[p.key] = p
	return nil
}

func (p *part) ref() string {
	return fmt.Sprintf("%s step %d (attempt %d) rank %d", p.key.path, p.key.step, p.key.attempt, p.key.rank)
}

func (a *Agent) forget(p *part) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.parts[p.key] == p {
		delete(a.parts, p.key)
	}
	a.notify()
}

// spare gives back the slot of a committed part that is not the last good one of its rank, or is
// of a run that no trainer has open. more says whether any part may give its slot back later.
func (a *Agent) spare(except *part) (freed, more bool) {
	a.mu.Lock()
	var victim *part
	for _, p := range a.parts {
		switch {
		case p == except || p.slot == nil: // it has none, or waits here too
		case p.state == agentproto.Committed:
			if _, open := a.runs[p.run.key]; !open && (victim == nil || p.info.CommittedAt.Before(victim.info.CommittedAt)) {
				victim = p
			}
		case p.state != agentproto.Failed:
			more = true // once it is committed, it or the one before it is needed no more
		}
	}
	if victim == nil {
		a.mu.Unlock()
		return false, more
	}
	s := a.takeSlot(victim)
	a.mu.Unlock()
	a.dropSlot(s)
	return true, more
}

// takeSlot takes the slot from a part that has ended, and remembers the part for those that wait.
// The caller holds the mutex.
func (a *Agent) takeSlot(p *part) *slot {
	s := p.slot
	p.slot, p.manifest = nil, nil
	a.ended = append(a.ended, p)
	if len(a.ended) > keptEnded {
		if old := a.ended[0]; a.parts[old.key] == old {
			delete(a.parts, old.key)
		}
		a.ended = a.ended[1:]
	}
	return s
}

// dropSlot returns the slot of a sealed part that is of no use any more. Without its manifest the
// next agent takes the slot for an unsealed one.
func (a *Agent) dropSlot(s *slot) {
	err := removeManifest(a.cfg.Dir, s.name)
	if err != nil {
		a.log.Warn("manifest not removed", "slot", s.name, "err", err)
	}
	a.mu.Lock()
	reuse := err == nil && !s.shared
	a.mu.Unlock()
	if reuse {
		a.pool.put(s)
		return
	}
	a.pool.discard(s)
}

// abandon ends a part that is not sealed. The slot is not used again: its trainer may still
// write to it.
func (a *Agent) abandon(p *part, cause error) {
	p.save.Abort(cause)
	<-p.save.Done()
	s := a.fail(p, &moraine.Error{Op: "agent", Ref: p.ref(), Kind: moraine.Aborted, Err: cause})
	a.pool.discard(s)
	a.release(p.run)
}

// seal makes a part survive its trainer, and begins to write it to the cluster.
func (a *Agent) seal(p *part, req *agentproto.Seal, sealTimeoutMillis int64) error {
	if err := checkPlaces(req, int64(len(p.slot.mem))); err != nil {
		return err
	}
	if err := p.slot.whole(); err != nil {
		return err
	}
	m := &manifest{Version: manifestVersion, UID: p.key.uid, Open: p.run.open, RunID: uint64(p.run.run.ID()), Attempt: p.key.attempt,
		SealTimeoutMillis: sealTimeoutMillis, Seal: *req}
	// COMMIT POINT of level local: the next agent finds the manifest.
	if err := m.write(a.cfg.Dir, p.slot.name); err != nil {
		return err
	}
	a.mu.Lock()
	p.manifest, p.bytes, p.state = m, m.bytes(), agentproto.Local
	a.notify()
	a.mu.Unlock()
	a.metrics.Sealed.Inc()
	a.running.Go(func() { a.drive(p, false) })
	return nil
}

// drive writes a sealed part to the cluster, and follows its step to its end. again says that the
// part may have been written before.
func (a *Agent) drive(p *part, again bool) {
	defer a.release(p.run)
	for ; ; again = true {
		err := a.writeOnce(p, again)
		if err == nil {
			a.metrics.Committed.Inc()
			a.committed(p)
			return
		}
		if a.work.Err() != nil || !passing(err) {
			a.stopWriting(p, err)
			return
		}
		a.log.Warn("part not written yet", "run", p.key.path, "step", p.key.step, "rank", p.key.rank, "err", err)
		a.metrics.Retries.Inc()
		a.pause(retryPause)
		if p.save, err = p.run.run.Begin(a.work, p.key.step, beginOptions(p.manifest.SealTimeoutMillis)); err != nil {
			a.stopWriting(p, err)
			return
		}
	}
}

// stopWriting ends the writing of a part: if the agent ends, the next one goes on, and the session
// must not abort the step. Otherwise the part has failed.
func (a *Agent) stopWriting(p *part, err error) {
	if a.work.Err() == nil {
		a.giveUp(p, err)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	p.run.keep = true
}

// pause waits, at most until the agent ends.
func (a *Agent) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-a.work.Done():
	}
}

// beginOptions are the options of a part whose bytes are in a slot. One rank's parts of several
// steps may be between Begin and Seal: one that a trainer fills, and earlier ones that the agent
// writes again.
func beginOptions(sealTimeoutMillis int64) ckpt.BeginOptions {
	return ckpt.BeginOptions{SealTimeout: milliseconds(sealTimeoutMillis), Lent: true}
}

// passing reports whether writing the part again may succeed. A cluster that is full, or a
// certificate that is refused, is mended while the part waits; the step's timeout ends it.
func passing(err error) bool {
	switch moraine.KindOf(err) {
	case moraine.Unavailable, moraine.Timeout, moraine.Stale, moraine.SessionExpired, moraine.NotLeader, moraine.IOError,
		moraine.NoSpace, moraine.QuotaExceeded, moraine.PermissionDenied, moraine.Unauthenticated:
		return true
	}
	return false
}

// writeOnce writes the part and waits until its step is committed. again says that the part may
// have been written before.
func (a *Agent) writeOnce(p *part, again bool) error {
	err := a.writePart(p)
	var info ckpt.StepInfo
	switch {
	case again && errors.Is(err, moraine.Exists):
		// An agent before this one, or an attempt whose answer was lost, has written the part: only
		// sessions of this rank can, and only this slot has had its bytes.
		info, err = p.run.run.WaitStep(a.work, p.key.step, moraine.NVMe)
	case err == nil:
		info, err = p.save.Wait(a.work, moraine.NVMe)
	}
	if err == nil {
		a.mu.Lock()
		p.info = info
		a.mu.Unlock()
	}
	return err
}

// writePart lends the slot to p.save, and waits until that has written and sealed the part.
func (a *Agent) writePart(p *part) error {
	err := p.manifest.lendTo(p.save, p.slot.mem)
	if err == nil {
		err = p.save.Seal(context.Background()) // it does not wait
	}
	if err != nil {
		p.save.Abort(err)
		<-p.save.Done()
		return err
	}
	<-p.save.Done()
	if p.save.Written() == 0 {
		_, err := p.save.Wait(a.work, moraine.NVMe)
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	closeOnce(p.written)
	return nil
}

// committed keeps the part's slot as the last good one of its rank, and gives back those of
// earlier steps.
func (a *Agent) committed(p *part) {
	if !p.manifest.Committed {
		p.manifest.Committed = true
		if err := p.manifest.write(a.cfg.Dir, p.slot.name); err != nil {
			a.log.Warn("manifest not written", "slot", p.slot.name, "err", err)
		}
	}
	a.mu.Lock()
	p.state = agentproto.Committed
	old := a.supersede(p.key)
	closeOnce(p.written)
	close(p.ended)
	a.notify()
	a.mu.Unlock()
	for _, s := range old {
		a.dropSlot(s)
	}
}

// supersede takes the slots from all committed parts of a rank but the newest, and returns them.
// The caller holds the mutex.
func (a *Agent) supersede(of partKey) (old []*slot) {
	var newest *part
	for _, q := range a.parts {
		if q.state != agentproto.Committed || q.slot == nil || q.key.uid != of.uid || q.key.path != of.path || q.key.rank != of.rank {
			continue
		}
		drop := q
		if newest == nil || q.key.after(newest.key) {
			drop, newest = newest, q
		}
		if drop != nil {
			old = append(old, a.takeSlot(drop))
		}
	}
	return old
}

// after reports whether k is of a later attempt than l, or of a later step of the same.
func (k partKey) after(l partKey) bool {
	return k.attempt > l.attempt || k.attempt == l.attempt && k.step > l.step
}

// giveUp ends a sealed part whose step will never be committed.
func (a *Agent) giveUp(p *part, err error) {
	a.log.Warn("part failed", "run", p.key.path, "step", p.key.step, "rank", p.key.rank, "err", err)
	a.dropSlot(a.fail(p, err))
}

// fail remembers why a part failed, for status and for those that wait. It returns the part's slot.
func (a *Agent) fail(p *part, err error) *slot {
	a.mu.Lock()
	defer a.mu.Unlock()
	p.state, p.err = agentproto.Failed, err
	s := a.takeSlot(p)
	closeOnce(p.written)
	close(p.ended)
	a.metrics.Failed.WithLabelValues(moraine.KindOf(err).String()).Inc()
	a.notify()
	return s
}

// closeOnce closes a channel that may be closed already. The caller holds the mutex.
func closeOnce(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}
