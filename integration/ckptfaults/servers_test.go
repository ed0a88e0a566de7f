package ckptfaults_test

import (
	"context"
	"errors"
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

// memoryWait bounds how long the service may take to accept a step at level memory.
const memoryWait = 10 * time.Second

// memoryIsLost: as many chunkservers as a stripe can lose die before they have written what is in their
// memory. The step reaches level nvme all the same.
func memoryIsLost(ctx context.Context, w *world) error {
	w.hold.Begin()
	defer w.hold.End()
	lost := victims[:1+w.rng.IntN(len(victims))]
	away := time.Duration(w.rng.IntN(1500)) * time.Millisecond
	return w.team.commit(ctx, moments{sealed: func(parts []*ckpt.Part) error {
		waiting, cancel := context.WithTimeout(ctx, memoryWait)
		info, err := parts[0].Wait(waiting, moraine.Memory)
		cancel()
		if err == nil {
			w.log("%d of %d files were in memory only", info.BelowNVMe, info.Files)
		} else if !retryable(err) { // otherwise a device writes something else first
			return err
		}
		w.c.Kill(lost...)
		w.hold.End()
		time.Sleep(away)
		return w.c.Restart(lost...)
	}})
}
