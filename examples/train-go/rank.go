package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
)

// stagingBytes bounds the memory for two saves of one rank, without an agent.
const stagingBytes = 64 << 20

// rank is one rank of the job.
type rank struct {
	settings
	rank, world uint32
	team        *team
	losses      *curve

	job    *ckpt.Run
	shard  *shard
	loader *rand.PCG  // of the batches; all ranks have the same
	saving *ckpt.Part // nil: none
}

// main trains from the newest checkpoint, or from the beginning, to the last step.
func (r *rank) main(ctx context.Context) error {
	c, err := connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	// Takeover: the start before may have been killed a moment ago, and its session still live.
	r.job, err = ckpt.OpenRun(ctx, c, r.run, ckpt.RunOptions{Launch: r.launch, Takeover: true, Rank: r.rank, World: r.world,
		Agent: r.agent, StagingBytes: stagingBytes})
	if err != nil {
		return err
	}
	defer r.job.Close(context.WithoutCancel(ctx))
	done, err := r.restore(ctx)
	if err != nil {
		return err
	}
	for step := done + 1; step <= r.steps; step++ {
		loss, err := r.team.sum(ctx, r.shard.first, r.shard.step(r.loader.Uint64()))
		if err != nil {
			return err
		}
		if r.rank == 0 {
			if err := r.losses.add(step, loss/parameters); err != nil {
				return err
			}
		}
		if step%r.every == 0 || step == r.steps {
			if err := r.save(ctx, step); err != nil {
				return err
			}
		}
		time.Sleep(r.pause)
	}
	return r.wait(ctx)
}

// restore reads the rank's share of the newest checkpoint, whatever number of ranks saved it, and
// returns its step. Fix makes all ranks go on from the same one.
func (r *rank) restore(ctx context.Context) (step uint64, err error) {
	r.shard, r.loader = newShard(r.rank, r.world), rand.NewPCG(1, 2)
	latest, err := r.job.Resolve(ctx, ckpt.ResolveOptions{Fix: true})
	if errors.Is(err, moraine.NotFound) {
		return 0, nil // the first start
	}
	if err != nil {
		return 0, err
	}
	defer latest.Close()
	offset, shape := r.place()
	weight, velocities := make([]byte, 8*shape[0]), make([]byte, 8*shape[0])
	err = latest.Restore(ctx, []ckpt.SliceRequest{
		{Name: "weight", Offset: offset, Shape: shape, Dst: weight},
		{Name: "optimizer.velocity", Offset: offset, Shape: shape, Dst: velocities},
	})
	if err != nil {
		return 0, err
	}
	fromBytes(r.shard.weight, weight)
	fromBytes(r.shard.velocities, velocities)
	loader, err := latest.ReadBlob(ctx, 0, "loader")
	if err == nil {
		err = r.loader.UnmarshalBinary(loader)
	}
	if err == nil && r.rank == 0 {
		fmt.Printf("resumed from step %d, which %d ranks saved\n", latest.Info.Step, latest.World())
	}
	return latest.Info.Step, err
}

// place returns where the rank's share is in the whole vector.
func (r *rank) place() (offset, shape []int64) {
	return []int64{int64(r.shard.first) * block}, []int64{int64(len(r.shard.weight))}
}

// save copies the rank's share, and lets the training go on while it is written. A save that fails
// does not end the training: the next one follows.
func (r *rank) save(ctx context.Context, step uint64) error {
	if err := r.wait(ctx); err != nil {
		return err
	}
	part, err := r.job.Begin(ctx, step, ckpt.BeginOptions{Bytes: int64(16*len(r.shard.weight)) + 4096})
	if err == nil {
		if err = r.copyTo(ctx, part); err != nil {
			part.Abort(err)
		}
	}
	if err != nil {
		log.Printf("rank %d: save of step %d: %v", r.rank, step, err)
		return ctx.Err()
	}
	r.saving = part
	return nil
}

func (r *rank) copyTo(ctx context.Context, part *ckpt.Part) error {
	offset, shape := r.place()
	for name, data := range map[string][]float64{"weight": r.shard.weight, "optimizer.velocity": r.shard.velocities} {
		t := ckpt.Tensor{Name: name, DType: ckpt.F64, Shape: shape, Global: []int64{parameters}, Offset: offset, Data: toBytes(data)}
		if err := part.AddTensor(ctx, t); err != nil {
			return err
		}
	}
	if r.rank == 0 { // what is no tensor is a blob
		loader, err := r.loader.MarshalBinary()
		if err != nil {
			return err
		}
		if err := part.AddBlob(ctx, "loader", loader); err != nil {
			return err
		}
	}
	return part.Seal(ctx)
}

// wait waits until the last save is committed.
func (r *rank) wait(ctx context.Context) error {
	if r.saving == nil {
		return nil
	}
	info, err := r.saving.Wait(ctx, moraine.NVMe)
	r.saving = nil
	switch {
	case errors.Is(err, moraine.Fenced):
		return err // another start has taken over
	case err != nil:
		log.Printf("rank %d: save of step %d: %v", r.rank, info.Step, err)
	case r.rank == 0:
		fmt.Printf("saved step %d\n", info.Step)
	}
	return ctx.Err()
}
