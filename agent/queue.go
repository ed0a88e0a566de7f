package agent

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
)

// keptShare is the part of a run's steps, one in so many, that no rank supersedes if the run has
// ranks on several nodes.
const keptShare = 4

// turn waits until the rank's earlier parts are written: one part of a rank is written at a time, so
// that the oldest is safe first. It fails if the part is superseded meanwhile, or its step has ended.
func (w writer) turn() error {
	a, p := w.a, w.p
	waited := false
	for {
		a.mu.Lock()
		by, ready, changed := p.superseded, !w.hasEarlier(), a.changed
		if by == 0 && ready {
			p.writing = true
		}
		a.mu.Unlock()
		switch {
		case by != 0:
			if err := w.giveWay(by); err != nil {
				return err
			}
			continue
		case ready && waited:
			return w.stillOpen()
		case ready:
			return nil
		}
		waited = true
		select {
		case <-changed:
		case <-a.work.Done():
			return a.work.Err()
		}
	}
}

// hasEarlier reports whether an earlier part of the rank has to be written first. The caller holds
// the mutex.
func (w writer) hasEarlier() bool {
	p := w.p
	for _, q := range w.a.parts {
		if q != p && q.state == agentproto.Local && q.key.sameRank(p.key) && p.key.after(q.key) && !ended(q.written) {
			return true
		}
	}
	return false
}

// sameRank reports whether two parts are of one rank of one run.
func (k partKey) sameRank(l partKey) bool {
	return k.uid == l.uid && k.path == l.path && k.rank == l.rank
}

// sameStep reports whether two parts are of one step.
func (k partKey) sameStep(l partKey) bool {
	return k.uid == l.uid && k.path == l.path && k.attempt == l.attempt && k.step == l.step
}

// supersedeOlder marks the steps of the rank that a part which has just been sealed makes needless,
// with all their parts on the node. The caller holds the mutex.
func (w writer) supersedeOlder() {
	for _, q := range w.a.parts {
		if !q.key.sameRank(w.p.key) || q.key.attempt != w.p.key.attempt || !w.p.key.after(q.key) || !w.needless(q) {
			continue
		}
		for _, r := range w.a.parts {
			if r.key.sameStep(q.key) && r.state == agentproto.Local {
				r.superseded = w.p.key.step
			}
		}
	}
}

// needless reports whether the step of a part may be given up: no rank of the node has begun to write
// it, and each has sealed a newer one, which is then what Wait(local) has promised last. The caller
// holds the mutex.
//
// Nodes do not know what other nodes write. Two that are out of step could give up each other's steps
// for ever. So a share of the steps is never given up, and all nodes agree which: only their numbers
// decide. With all ranks on this node that is not needed: a step that is being written stays.
func (w writer) needless(q *part) bool {
	if q.state != agentproto.Local || q.superseded != 0 {
		return false
	}
	here := map[uint32]bool{}
	for _, r := range w.a.parts {
		if !r.key.sameStep(q.key) {
			continue
		}
		if r.writing || !w.sealedAfter(r.key) {
			return false
		}
		here[r.key.rank] = true
	}
	w.addOpen(q, here)
	return len(here) == int(q.run.key.world) || !keptStep(q.key.step)
}

// sealedAfter reports whether the rank of a part has sealed a newer one that is not superseded. The
// caller holds the mutex.
func (w writer) sealedAfter(k partKey) bool {
	for _, q := range w.a.parts {
		if q.key.sameRank(k) && q.key.after(k) && q.superseded == 0 && (q.state == agentproto.Local || q.state == agentproto.Committed) {
			return true
		}
	}
	return false
}

// keptStep reports whether a step is of the share that no rank gives up.
func keptStep(step uint64) bool {
	h := fnv.New32a()
	_, _ = h.Write(strconv.AppendUint(nil, step, 10)) // it never fails
	return h.Sum32()%keptShare == 0
}

// giveWay fails, so that the part ends, unless a rank of another node has written its part of the
// step. Then the part stays. While the service does not answer, it pauses.
func (w writer) giveWay(by uint64) error {
	info, err := w.step()
	switch {
	case errors.Is(err, moraine.NotFound): // the step is not begun there yet
	case err != nil:
		w.a.pause(retryPause)
		return w.a.work.Err()
	case info.Sealed > 0:
		w.a.mu.Lock()
		defer w.a.mu.Unlock()
		w.p.superseded = 0
		return nil
	}
	return &moraine.Error{Op: "agent", Ref: w.p.ref(), Kind: moraine.Aborted,
		Err: fmt.Errorf("superseded by step %d before its bytes were written", by)}
}

// stillOpen fails if the step has ended while the part waited for its turn.
func (w writer) stillOpen() error {
	info, err := w.step()
	if err == nil && info.State == ckpt.StepAborted {
		return &moraine.Error{Op: "agent", Ref: w.p.ref(), Kind: moraine.Aborted, Err: errors.New(info.Reason)}
	}
	return nil // the write finds out
}

// step asks the service for the part's step.
func (w writer) step() (ckpt.StepInfo, error) {
	ctx, cancel := context.WithTimeout(w.a.work, retryPause)
	defer cancel()
	return ckpt.GetStep(ctx, w.p.run.client, client.StepKey{Run: w.p.run.run.ID(), Attempt: w.p.key.attempt, Step: w.p.key.step})
}
