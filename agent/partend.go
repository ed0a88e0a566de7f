package agent

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
)

// How a part ends.

// committed keeps the part's slot as the last good one of its rank, and gives back those of
// earlier steps.
func (a *Agent) committed(p *part) {
	if !p.manifest.Committed {
		p.manifest.Committed, p.manifest.Level = true, p.info.Level.String()
		if err := p.manifest.write(a.cfg.Dir, p.slot.name); err != nil {
			a.log.Warn("manifest not written", "slot", p.slot.name, "err", err)
		}
	}
	a.mu.Lock()
	p.state = agentproto.Committed
	p.endSave()
	a.figures.committed(p)
	old := a.replaceBy(p.key)
	closeOnce(p.written)
	close(p.ended)
	a.notify()
	a.mu.Unlock()
	for _, s := range old {
		a.dropSlot(s)
	}
}

// replaceBy takes the slots from all committed parts of a rank but the newest, and returns them.
// The caller holds the mutex.
func (a *Agent) replaceBy(of partKey) (old []*slot) {
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
	if p.state == agentproto.Local {
		p.run.noteFailure(p.key.step, err)
	}
	a.figures.failed(p)
	p.state, p.err = agentproto.Failed, err
	s := a.takeSlot(p)
	closeOnce(p.written)
	close(p.ended)
	a.metrics.Failed.WithLabelValues(moraine.KindOf(err).String()).Inc()
	a.notify()
	return s
}

// endSave forgets the part in the cluster, which has the sums of all blocks, but not how far it was. The caller
// holds the mutex.
func (p *part) endSave() {
	p.reached, p.total = p.progress()
	p.save = nil
}

// closeOnce closes a channel that may be closed already. The caller holds the mutex.
func closeOnce(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}

// leaveSlots unmaps the slots of parts, and leaves their files to the next agent. Nothing of this one runs any
// more. The caller holds the mutex.
func leaveSlots(parts map[partKey]*part) {
	for _, p := range parts {
		if p.slot != nil {
			p.slot.leave()
		}
	}
}
