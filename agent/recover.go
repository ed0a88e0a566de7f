package agent

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
)

// recover goes on with the parts that the agent before this one left. A slot without a manifest
// was never sealed: its pages are given back, and its trainer may still write to it. Only the last
// good part of a rank is kept. It fails, and removes nothing, if a sealed part may be there that
// this agent cannot read.
func (a *Agent) recover() error {
	if a.cfg.OnDisk {
		if err := a.pool.checkBoot(a.log); err != nil {
			return err
		}
	}
	files, err := a.pool.leftovers()
	if err != nil {
		return err
	}
	keep := map[string]bool{}
	for _, name := range files {
		slot, isManifest := strings.CutSuffix(name, manifestSuffix)
		if !isManifest {
			continue
		}
		err := a.recoverSlot(slot)
		if damaged(err) {
			a.log.Error("part not recovered", "slot", slot, "err", err)
			continue
		}
		if err != nil {
			return err
		}
		keep[slot], keep[name] = true, true
	}
	for _, name := range files {
		if !keep[name] {
			if err := removeSlot(filepath.Join(a.cfg.Dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
				a.log.Warn("file of the arenas not removed", "file", name, "err", err)
			}
		}
	}
	return nil
}

// damaged reports whether a slot or its manifest is gone, or has not the bytes that were sealed.
func damaged(err error) bool {
	return err != nil && (errors.Is(err, os.ErrNotExist) || errors.Is(err, moraine.Corrupt) || errors.Is(err, moraine.InvalidArgument))
}

// recoverSlot takes the slot over, and goes on with its part unless its step is committed.
func (a *Agent) recoverSlot(name string) error {
	m, err := readManifest(filepath.Join(a.cfg.Dir, name+manifestSuffix))
	if err != nil {
		return err
	}
	key := runKey{m.UID, m.Open.Run, m.Open.Launch, m.Open.Rank, m.Open.World, false}
	s, err := a.pool.recover(name, m.UID, key.owner())
	if err != nil {
		return err
	}
	if err := checkPlaces(&m.Seal, int64(len(s.mem))); err != nil {
		s.empty()
		a.pool.discard(s)
		return err
	}
	p := &part{key: partKey{m.UID, m.Open.Run, m.Open.Rank, m.Attempt, m.Seal.Step}, slot: s, bytes: m.bytes(), manifest: m,
		run: &run{key: key, open: m.Open}, state: agentproto.Local, written: make(chan struct{}), ended: make(chan struct{})}
	a.mu.Lock()
	a.parts[p.key] = p
	a.mu.Unlock()
	if m.Committed {
		level, err := moraine.ParseLevel(m.Level)
		if err != nil {
			level = moraine.Memory // at least
		}
		p.info = ckpt.StepInfo{Run: moraine.InodeID(m.RunID), Attempt: m.Attempt, Step: m.Seal.Step, Level: level}
		a.committed(p)
		return nil
	}
	a.metrics.Recovered.Inc()
	a.running.Go(func() { a.resume(p) })
	return nil
}

// resume opens the run of a recovered part again, and writes the part.
func (a *Agent) resume(p *part) {
	r, err := a.reopen(p)
	if err != nil {
		writer{a, p}.stop(err)
		return
	}
	a.mu.Lock()
	p.run = r
	a.mu.Unlock()
	if err := (writer{a, p}).begin(); err != nil {
		writer{a, p}.stop(err)
		a.release(r)
		return
	}
	writer{a, p}.drive(true)
}

// reopen opens the run until that succeeds or never will. The launch must be the attempt that it
// was.
func (a *Agent) reopen(p *part) (*run, error) {
	open := p.manifest.Open
	open.Takeover = false // it has the attempt, or has lost it
	for {
		r, err := a.acquire(a.work, p.run.key, open)
		if err == nil {
			if r.run.Attempt() == p.key.attempt {
				return r, nil
			}
			a.release(r)
			return nil, &moraine.Error{Op: "agent", Ref: p.ref(), Kind: moraine.Fenced, Err: errors.New("its launch has another attempt now")}
		}
		if a.work.Err() != nil || !passing(err) && moraine.KindOf(err) != moraine.Busy && moraine.KindOf(err) != moraine.Internal {
			return nil, err
		}
		a.log.Warn("run not opened yet", "run", open.Run, "rank", open.Rank, "err", err)
		a.pause(retryPause)
	}
}
