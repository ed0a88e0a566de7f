package integration_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/integration/incluster"
)

// stepUser is a training run of two ranks that saves one checkpoint after the
// other. After each cut it restarts from the latest one.
type stepUser struct {
	rng       *rand.Rand
	launches  int
	committed []savedStep // acknowledged, or seen since
	pending   *savedStep  // begun, not answered
	acks      int
}

// savedStep is the model of a checkpoint.
type savedStep struct {
	step, seed uint64
	size       int64 // bytes of each rank
}

const (
	stepRun   = "/runs/power"
	stepWorld = 2
)

func newStepUser(seed uint64) *stepUser { return &stepUser{rng: rand.New(rand.NewPCG(seed, 200))} }

func (u *stepUser) latest() uint64 {
	if len(u.committed) == 0 {
		return 0
	}
	return u.committed[len(u.committed)-1].step
}

// work is one start of the run: it saves until stop is closed, ctx ends, or a save
// fails.
func (u *stepUser) work(ctx context.Context, cluster *incluster.Cluster, stop <-chan struct{}) {
	u.launches++
	var clients []*incluster.Client
	var runs []*ckpt.Run
	defer func() {
		for _, r := range runs {
			end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			r.Close(end) //nolint:errcheck // what was not acknowledged may be lost
			cancel()
		}
		for _, c := range clients {
			if ctx.Err() != nil {
				c.Kill()
			} else {
				c.Close() //nolint:errcheck
			}
		}
	}()
	for rank := range uint32(stepWorld) {
		c, err := cluster.Client(ctx, fmt.Sprintf("trainer%d", rank))
		if err != nil {
			return
		}
		clients = append(clients, c)
		r, err := ckpt.OpenRun(ctx, c.Client, stepRun, ckpt.RunOptions{Launch: ckpt.Launch{Name: fmt.Sprint("launch-", u.launches)},
			Takeover: true, Rank: rank, World: stepWorld, StagingBytes: 32 << 20})
		if err != nil {
			return
		}
		runs = append(runs, r)
		if k, err := r.Resolve(ctx, ckpt.ResolveOptions{Fix: true}); err == nil {
			k.Close()
		} else if !errors.Is(err, moraine.NotFound) {
			return
		}
	}
	for u.save(ctx, runs) == nil {
		select {
		case <-stop:
			return
		case <-time.After(time.Duration(u.rng.IntN(300)) * time.Millisecond):
		}
	}
}

// save saves the next step from all ranks.
func (u *stepUser) save(ctx context.Context, runs []*ckpt.Run) error {
	s := savedStep{step: u.latest() + 1, seed: u.rng.Uint64(), size: 1 + u.rng.Int64N(200<<10)}
	u.pending = &s
	var g errgroup.Group
	for rank, r := range runs {
		g.Go(func() error { return s.saveRank(ctx, r, rank) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	u.committed, u.pending = append(u.committed, s), nil
	u.acks++
	return nil
}

func (s savedStep) saveRank(ctx context.Context, r *ckpt.Run, rank int) error {
	// A step that is only in memory may be gone after the cut, or come to nvme much later.
	save, err := r.Begin(ctx, s.step, ckpt.BeginOptions{SealTimeout: 30 * time.Second, Level: moraine.NVMe})
	if err != nil {
		return err
	}
	err = save.AddTensor(ctx, ckpt.Tensor{Name: "weight", DType: ckpt.U8, Shape: []int64{s.size},
		Global: []int64{stepWorld * s.size}, Offset: []int64{int64(rank) * s.size}, Data: s.bytes(rank, s.size)})
	if err == nil {
		err = save.AddBlob(ctx, "rng", s.bytes(rank, 100))
	}
	if err == nil {
		err = save.Seal(ctx)
	}
	if err != nil {
		save.Abort(err)
		return err
	}
	_, err = save.Wait(ctx, moraine.NVMe)
	return err
}

// bytes are those that a rank saves.
func (s savedStep) bytes(rank int, n int64) []byte {
	p := make([]byte, n)
	fill(p, s.seed+uint64(rank))
	return p
}

// check compares the run with the model. The latest checkpoint is the last
// acknowledged, or the one begun after it, and every one is there, whole.
func (u *stepUser) check(ctx context.Context, c *client.Client) error {
	r, err := ckpt.OpenRun(ctx, c, stepRun, ckpt.RunOptions{ReadOnly: true})
	if errors.Is(err, moraine.NotFound) && len(u.committed) == 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open the run with %d checkpoints: %w", len(u.committed), err)
	}
	defer r.Close(ctx) //nolint:errcheck // it holds nothing
	if err := u.checkLatest(ctx, c, r); err != nil {
		return fmt.Errorf("latest, of %d checkpoints and %v: %w", len(u.committed), u.pending, err)
	}
	u.pending = nil
	for _, s := range u.committed {
		if err := s.check(ctx, r); err != nil {
			return fmt.Errorf("checkpoint %d: %w", s.step, err)
		}
	}
	return nil
}

// checkLatest determines whether the pending save took effect.
func (u *stepUser) checkLatest(ctx context.Context, c *client.Client, r *ckpt.Run) error {
	k, err := r.Resolve(ctx, ckpt.ResolveOptions{})
	if errors.Is(err, moraine.NotFound) && len(u.committed) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	defer k.Close()
	if u.pending != nil && k.Info.Step == u.pending.step {
		u.committed = append(u.committed, *u.pending)
	}
	if k.Info.Step != u.latest() {
		return fmt.Errorf("it is %d", k.Info.Step)
	}
	attr, err := c.Stat(ctx, stepRun+"/latest")
	if err == nil && attr.Inode() != k.Info.Dir {
		err = fmt.Errorf("the link leads to %d, the checkpoint is in %d", attr.Inode(), k.Info.Dir)
	}
	return err
}

// check reads every byte.
func (s savedStep) check(ctx context.Context, r *ckpt.Run) error {
	k, err := r.Resolve(ctx, ckpt.ResolveOptions{Step: s.step, Exact: true})
	if err != nil {
		return err
	}
	defer k.Close()
	weight, err := k.ReadTensor(ctx, "weight")
	if err != nil {
		return err
	}
	for rank := range stepWorld {
		if !bytes.Equal(weight[int64(rank)*s.size:][:s.size], s.bytes(rank, s.size)) {
			return fmt.Errorf("rank %d has other bytes than it saved", rank)
		}
		blob, err := k.ReadBlob(ctx, uint32(rank), "rng")
		if err != nil || !bytes.Equal(blob, s.bytes(rank, 100)) {
			return fmt.Errorf("rank %d has another blob than it saved: %v", rank, err)
		}
	}
	_, err = k.Verify(ctx)
	return err
}
