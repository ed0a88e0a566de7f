package ckptfaults_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
)

// leaderDies: the metadata leader dies while the ranks seal or the step is committed.
func leaderDies(ctx context.Context, w *world) error {
	pause := time.Duration(w.rng.IntN(60)) * time.Millisecond
	away := time.Duration(w.rng.IntN(1500)) * time.Millisecond
	return w.team.commit(ctx, moments{sealed: func([]*ckpt.Part) error {
		time.Sleep(pause)
		leader := w.c.Leader()
		if leader == "" {
			return errors.New("no metadata server leads")
		}
		w.c.Kill(leader)
		time.Sleep(away)
		return w.c.Restart(leader)
	}})
}

// memoryWait bounds how long the service may take to accept a step at level memory. The hold ends after
// a minute.
const memoryWait = 40 * time.Second

// memoryIsLost: as many chunkservers as a stripe can lose die before they have written what is in their
// memory. The step reaches level nvme all the same.
func memoryIsLost(ctx context.Context, w *world) error {
	defer w.holdMemory()()
	lost := victims[:1+w.rng.IntN(len(victims))]
	away := time.Duration(w.rng.IntN(1500)) * time.Millisecond
	return w.team.commit(ctx, moments{sealed: func(parts []*ckpt.Part) error {
		if err := w.reachesMemory(ctx, parts[0]); err != nil {
			return err
		}
		w.c.Kill(lost...)
		w.hold.End()
		time.Sleep(away)
		return w.c.Restart(lost...)
	}})
}

// holdMemory makes the steps of the team be in memory only, until end or the end of w.hold.
func (w *world) holdMemory() (end func()) {
	t := w.team
	t.inMemory = true
	w.hold.Begin()
	return func() {
		w.hold.End()
		t.inMemory = false
	}
}

// reachesMemory waits until the step is committed at level memory.
func (w *world) reachesMemory(ctx context.Context, part *ckpt.Part) error {
	ctx, cancel := context.WithTimeout(ctx, memoryWait)
	defer cancel()
	info, err := part.Wait(ctx, moraine.Memory)
	if err != nil {
		return fmt.Errorf("level memory: %w", err)
	}
	w.log("%d of %d files were in memory only", info.BelowNVMe, info.Files)
	return nil
}
