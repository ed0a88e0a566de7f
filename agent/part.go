package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
)

const (
	// keptEnded bounds the parts without a slot that the agent remembers, for those that wait.
	keptEnded = 1000
)

// part is one rank's part of a step in a slot, from Begin on.
type part struct {
	key   partKey
	run   *run
	slot  *slot // nil: it has none yet, or gave it back
	bytes int64
	begun time.Time

	// save is the part in the cluster, of the present attempt to write it.
	save     *ckpt.Part
	manifest *manifest // set by Seal
	layout   layout    // nil: not decided yet

	// newestWins says that the trainer wants older parts of the rank superseded by this one.
	newestWins bool
	// writing says that the part's turn to be written has come. superseded is the step that replaces
	// it, if it has not.
	writing    bool
	superseded uint64

	// reached and total are what progress returns once save is gone.
	reached, total int64

	// copied ends what begin began at Agent.pace: the trainer copies no longer.
	copied func()

	state string // of agentproto
	err   error  // of a failed one
	info  ckpt.StepInfo
	// written is closed when the part is in the cluster, or has failed.
	written chan struct{}
	// ended is closed when the part is committed or failed.
	ended chan struct{}
}

// begin gives a trainer a slot for its part of a step. lent is how many bytes of slots its connection has
// for reads.
func (a *Agent) begin(ctx context.Context, r *run, req *agentproto.Begin, lent int64) (*part, error) {
	p := &part{key: partKey{r.key.uid, r.key.path, r.key.rank, r.run.Attempt(), req.Step}, run: r, bytes: req.Bytes, begun: time.Now(),
		newestWins: req.Supersede, state: agentproto.Filling, written: make(chan struct{}), ended: make(chan struct{})}
	if err := a.admit(p); err != nil {
		return nil, err
	}
	w := want{uid: r.key.uid, owner: r.key.owner(), bytes: req.Bytes, op: "agent.Begin", wait: !req.NoWait, lent: lent, patience: cmp.Or(milliseconds(req.SealTimeoutMillis), a.cfg.Patience)}
	s, err := a.pool.take(ctx, w, func() (bool, bool) { return a.spare(p, w.uid) })
	if err != nil {
		a.forget(p)
		return nil, err
	}
	defer a.pool.placed()
	opts := beginOptions(req.SealTimeoutMillis)
	opts.Bytes = req.Reserve
	if req.Level != "" {
		if opts.Level, err = moraine.ParseLevel(req.Level); err != nil {
			a.forget(p)
			a.pool.put(s)
			return nil, err
		}
	}
	save, err := r.run.Begin(ctx, req.Step, opts)
	if err != nil {
		a.forget(p)
		a.pool.put(s)
		return nil, err
	}
	p.copied = a.pace.copies.begin()
	a.mu.Lock()
	p.slot, p.save = s, save
	r.refs++
	a.notify()
	a.mu.Unlock()
	a.running.Go(func() { a.prefault(w) }) // the next save finds its slot
	return p, nil
}

// prefault makes the slots that the owner of w needs besides.
func (a *Agent) prefault(w want) {
	if err := a.pool.prefault(w, a.cfg.Prefault); err != nil {
		a.log.Warn("no slot made in advance; the next save makes one", "err", err)
	}
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

// spare gives back the slot of a committed part whose rank no trainer has open, in whatever launch, or
// whose user has more than a share while uid has less. Other committed parts are the last good ones of
// their ranks. more says whether any part may give its slot back later.
func (a *Agent) spare(except *part, uid uint32) (freed, more bool) {
	a.mu.Lock()
	var victim *part
	for _, p := range a.parts {
		switch {
		case p == except || p.slot == nil: // it has none, or waits here too
		case p.state == agentproto.Committed:
			if (!a.saves(p.key) || a.pool.above(p.key.uid, uid)) && (victim == nil || p.info.CommittedAt.Before(victim.info.CommittedAt)) {
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

// saves reports whether a trainer of the part's rank has the run open, also one of a later launch. The
// caller holds the mutex.
func (a *Agent) saves(of partKey) bool {
	for k := range a.runs {
		if !k.readOnly && k.uid == of.uid && k.path == of.path && k.rank == of.rank {
			return true
		}
	}
	return false
}

// takeSlot takes the slot from a part that has ended, and remembers the part for those that wait.
// The caller holds the mutex.
func (a *Agent) takeSlot(p *part) *slot {
	p.endSave()
	s := p.slot
	p.slot, p.manifest, p.layout = nil, nil, nil
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
	reuse := err == nil && !s.shared && s.readers == 0
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
	p.copied()
	p.save.Abort(cause)
	<-p.save.Done()
	s := a.fail(p, &moraine.Error{Op: "agent", Ref: p.ref(), Kind: moraine.Aborted, Err: cause})
	s.empty() // the trainer may keep it mapped, and the node needs the memory
	a.pool.discard(s)
	a.release(p.run)
}

// seal makes a part survive its trainer, and begins to write it to the cluster. It ends early if ctx ends.
func (a *Agent) seal(ctx context.Context, p *part, req *agentproto.Seal, sealTimeoutMillis int64) error {
	if err := checkPlaces(req, int64(len(p.slot.mem))); err != nil {
		return err
	}
	if err := p.run.run.CheckSeal(req); err != nil {
		return err // what cannot be in a part must not reach level local
	}
	if err := p.slot.whole(); err != nil {
		return err
	}
	m := &manifest{Version: manifestVersion, UID: p.key.uid, Open: p.run.open, RunID: uint64(p.run.run.ID()), Attempt: p.key.attempt,
		SealTimeoutMillis: sealTimeoutMillis, Seal: *req}
	if err := m.fix(ctx, p.slot.mem); err != nil {
		return err
	}
	// COMMIT POINT of level local: the next agent finds the manifest.
	if err := m.write(a.cfg.Dir, p.slot.name); err != nil {
		return err
	}
	a.mu.Lock()
	p.manifest, p.bytes, p.state = m, m.bytes(), agentproto.Local
	w := writer{a, p}
	if p.newestWins {
		w.supersedeOlder()
	}
	a.figures.sealed(p, time.Now())
	a.notify()
	a.mu.Unlock()
	p.copied()
	a.metrics.Sealed.Inc()
	a.running.Go(func() { w.drive(false) })
	return nil
}
