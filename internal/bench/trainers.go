package bench

import (
	"context"
	"errors"
	"fmt"
	"path"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/internal/llama"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
	"golang.org/x/sync/errgroup"
)

const (
	// runsDir is the directory of the runs, below the target's root.
	runsDir = "/bench-ckpt"
	// modelSeed is the seed of what the ranks save.
	modelSeed = 22
	// blobSlack is for the blobs of a part, in bytes.
	blobSlack = 1 << 20
)

// trainer is one rank: with a session, a run and a connection to the agent of its own.
type trainer struct {
	rank  uint32
	c     *client.Client
	end   func() error
	run   *ckpt.Run
	shard *llama.Shard
}

// trainers are the ranks of one training job, all on this machine.
type trainers struct {
	path  string
	bytes float64
	ranks []*trainer
}

// newShards makes the memory of all ranks.
func newShards(model llama.Model, world uint32) (shards []*llama.Shard) {
	for rank := range world {
		shards = append(shards, llama.NewShard(model, rank, world))
	}
	return shards
}

// openTrainers opens a run for the rank of each shard. With the socket of an agent they can save;
// without one they only read.
func openTrainers(ctx context.Context, e *Env, name string, shards []*llama.Shard, socket string) (*trainers, error) {
	ts := &trainers{path: path.Join(runsDir, name)}
	for _, shard := range shards {
		c, end, err := e.Connect(ctx)
		if err != nil {
			return nil, errors.Join(err, ts.close(ctx))
		}
		t := &trainer{rank: shard.Rank, c: c, end: end, shard: shard}
		ts.ranks = append(ts.ranks, t)
		ts.bytes += float64(shard.Bytes())
		t.run, err = ckpt.OpenRun(ctx, c, ts.path, ckpt.RunOptions{Launch: ckpt.Launch{Name: name}, ReadOnly: socket == "",
			Rank: shard.Rank, World: shard.World, Agent: socket})
		if err != nil {
			return nil, errors.Join(err, ts.close(ctx))
		}
	}
	return ts, nil
}

// shards returns the memory of all ranks.
func (ts *trainers) shards() (shards []*llama.Shard) {
	for _, t := range ts.ranks {
		shards = append(shards, t.shard)
	}
	return shards
}

// fill makes the model that the ranks save.
func (ts *trainers) fill(ctx context.Context) error {
	return ts.each(ctx, func(_ context.Context, t *trainer) error { t.shard.Fill(modelSeed); return nil })
}

// each runs a function for all ranks at once.
func (ts *trainers) each(ctx context.Context, do func(context.Context, *trainer) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, t := range ts.ranks {
		g.Go(func() error {
			if err := do(ctx, t); err != nil {
				return fmt.Errorf("rank %d: %w", t.rank, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// close ends the runs and the sessions.
func (ts *trainers) close(ctx context.Context) error {
	var errs []error
	for _, t := range ts.ranks {
		if t.run != nil {
			errs = append(errs, t.run.Close(ctx))
		}
		errs = append(errs, t.end())
	}
	return errors.Join(errs...)
}

// seal saves the rank's part of a step, until the agent has it.
func (t *trainer) seal(ctx context.Context, step uint64) (*ckpt.Part, error) {
	part, err := t.run.Begin(ctx, step, ckpt.BeginOptions{Level: moraine.Memory, Bytes: t.shard.Bytes() + blobSlack})
	if err != nil {
		return nil, err
	}
	if err = t.shard.AddTo(ctx, part); err == nil {
		err = part.Seal(ctx)
	}
	if err != nil {
		part.Abort(err)
	}
	return part, err
}

// saving is one step that all ranks have sealed.
type saving struct {
	step   uint64
	part   *ckpt.Part // of rank 0
	stalls []time.Duration
	sealed time.Time // when the last rank had
}

// save saves a step with all ranks at once, and returns when all parts are sealed.
func (ts *trainers) save(ctx context.Context, step uint64) (*saving, error) {
	s := &saving{step: step, stalls: make([]time.Duration, len(ts.ranks))}
	err := ts.each(ctx, func(ctx context.Context, t *trainer) error {
		start := time.Now()
		part, err := t.seal(ctx, step)
		s.stalls[t.rank] = time.Since(start)
		if t.rank == 0 {
			s.part = part
		}
		return err
	})
	s.sealed = time.Now()
	return s, err
}

// reach waits for a level, and returns the time from the last seal until the step has it. A cluster
// without processors to spare may not answer a request in time: then reach asks again.
func (s *saving) reach(ctx context.Context, level moraine.Level) (info ckpt.StepInfo, took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, durablePatience)
	defer cancel()
	for {
		info, err = s.part.Wait(ctx, level)
		if ctx.Err() != nil || !errors.Is(err, moraine.Timeout) {
			return info, time.Since(s.sealed), err
		}
	}
}

// removeStep removes a committed step, so that the devices have room for the next.
func removeStep(ctx context.Context, c *client.Client, info ckpt.StepInfo) error {
	_, err := rawclient.Of(c).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_RemoveStep{RemoveStep: &wire.RemoveStep{
		Key: &wire.StepKey{Run: uint64(info.Run), Attempt: info.Attempt, Step: info.Step}}}})
	return err
}

// restored counts what a restore read.
type restored struct {
	cluster int64 // bytes of parts from the cluster
	node    int64 // and from the memory of this node
}

// restore restores the step into all ranks at once, and counts.
func (ts *trainers) restore(ctx context.Context, step uint64, level moraine.Level) (restored, error) {
	each := make([]restored, len(ts.ranks))
	err := ts.each(ctx, func(ctx context.Context, t *trainer) (err error) {
		each[t.rank], err = t.restore(ctx, step, level)
		return err
	})
	var all restored
	for _, r := range each {
		all.cluster, all.node = all.cluster+r.cluster, all.node+r.node
	}
	return all, err
}

// restore restores the rank's rows of a step that has a level at least.
func (t *trainer) restore(ctx context.Context, step uint64, level moraine.Level) (restored, error) {
	k, err := t.run.Resolve(ctx, ckpt.ResolveOptions{Level: level, Step: step, Exact: true})
	if err != nil {
		return restored{}, err
	}
	err = t.shard.Restore(ctx, k)
	return restored{k.BytesRead(), k.NodeBytes()}, errors.Join(err, k.Close())
}

// clear makes sure that a restore has something to do.
func (ts *trainers) clear(ctx context.Context) error {
	return ts.each(ctx, func(_ context.Context, t *trainer) error { t.shard.Clear(); return nil })
}

// check compares every restored byte with what was saved.
func (ts *trainers) check(ctx context.Context) error {
	return ts.each(ctx, func(_ context.Context, t *trainer) error { return t.shard.Check(modelSeed) })
}
