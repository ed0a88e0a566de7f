package agent

import (
	"context"
	"errors"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
)

// retryPause is the pause before a part is written again from its start. By then package ckpt
// has already tried several times.
const retryPause = 5 * time.Second

// writer writes one sealed part to the cluster.
type writer struct {
	a *Agent
	p *part
}

// drive writes a sealed part to the cluster, and follows its step to its end. again says that the
// part may have been written before.
func (w writer) drive(again bool) {
	a, p := w.a, w.p
	defer a.release(p.run)
	if err := w.turn(); err != nil {
		w.unwritten(err)
		return
	}
	sums, err := w.layOut()
	if err != nil {
		w.unwritten(err)
		return
	}
	for ; ; again = true {
		err := w.writeOnce(sums, again)
		if err == nil {
			a.metrics.Committed.Inc()
			a.committed(p)
			return
		}
		if a.work.Err() != nil || !passing(err) {
			w.stop(err)
			return
		}
		a.log.Warn("part not written yet", "run", p.key.path, "step", p.key.step, "rank", p.key.rank, "err", err)
		a.metrics.Retries.Inc()
		a.pause(retryPause)
		if err := w.begin(); err != nil {
			w.stop(err)
			return
		}
	}
}

// unwritten ends a part before a byte is written. It aborts the step, unless the agent ends: that stops
// the run, and the next agent goes on.
func (w writer) unwritten(err error) {
	if w.a.work.Err() == nil {
		w.p.save.Abort(err)
	}
	<-w.p.save.Done()
	w.stop(err)
}

// begin announces the part to the cluster, from a slot that is sealed.
func (w writer) begin() error {
	save, err := w.p.run.run.Begin(w.a.work, w.p.key.step, beginOptions(w.p.manifest.SealTimeoutMillis))
	if err != nil {
		return err
	}
	w.a.mu.Lock()
	defer w.a.mu.Unlock()
	w.p.save = save
	return nil
}

// stop ends the writing of a part: if the agent ends, the next one goes on, and the session
// must not abort the step. Otherwise the part has failed.
func (w writer) stop(err error) {
	a := w.a
	if a.work.Err() == nil {
		a.giveUp(w.p, err)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	w.p.run.keep = true
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

// writeOnce writes the part and waits until its step is committed, at nvme unless the policy of the run
// leaves it in memory. again says that the part may have been written before.
func (w writer) writeOnce(sums [][]uint32, again bool) error {
	a, p := w.a, w.p
	err := w.writePart(sums)
	var info ckpt.StepInfo
	switch {
	case again && errors.Is(err, moraine.Exists):
		// An agent before this one, or an attempt whose answer was lost, has written the part: only
		// sessions of this rank can, and only this slot has had its bytes.
		info, err = p.run.run.WaitStep(a.work, p.key.step, moraine.Memory)
	case err == nil:
		info, err = p.save.Wait(a.work, moraine.Memory)
	}
	if err == nil && !info.StaysInMemory {
		info, err = p.run.run.WaitStep(a.work, p.key.step, moraine.NVMe)
	}
	if err == nil {
		a.mu.Lock()
		p.info = info
		a.mu.Unlock()
	}
	return err
}

// writePart lends the slot to p.save, and waits until that has written and sealed the part.
func (w writer) writePart(sums [][]uint32) error {
	a, p := w.a, w.p
	err := p.manifest.lendTo(p.save, p.slot.mem, sums)
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
	a.notify() // the rank's next part has its turn
	return nil
}
