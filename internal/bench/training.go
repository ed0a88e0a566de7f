package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/morainefs/moraine"
	"golang.org/x/sync/errgroup"
)

const (
	// trainBytes is what one goroutine of the training loop copies in turn, past the share of a
	// processor's caches.
	trainBytes = 256 << 20
	trainPiece = 1 << 20
	// pacedSeconds is how long a flush takes with the agent's rate limit.
	pacedSeconds = 8
	// flushRateFlag is the agent's flag of that limit, in bytes a second.
	flushRateFlag = "--flush-rate"
)

// loop is a training loop bound by memory: a goroutine for each processor copies.
type loop struct {
	bufs [][]byte
}

func newLoop() *loop {
	l := &loop{}
	for i := range runtime.GOMAXPROCS(0) {
		l.bufs = append(l.bufs, make([]byte, trainBytes))
		fillRandom(l.bufs[i], uint64(i))
	}
	return l
}

// run copies until the work returns, and returns the bytes a second that were copied.
func (l *loop) run(work func() error) (float64, error) {
	var ended atomic.Bool
	var pieces atomic.Int64
	var g errgroup.Group
	start := time.Now()
	for _, b := range l.bufs {
		g.Go(func() error {
			half := len(b) / 2
			for at := 0; ; at = (at + trainPiece) % half {
				copy(b[half+at:half+at+trainPiece], b[at:at+trainPiece])
				pieces.Add(1)
				if ended.Load() {
					return nil
				}
			}
		})
	}
	err := work()
	ended.Store(true)
	return perSecond(float64(pieces.Load())*trainPiece, time.Since(start)), errors.Join(err, g.Wait())
}

// training measures a training loop alone, while a save is flushed, and while one is flushed with
// the agent's rate limit.
func (r *ckptRun) training(ctx context.Context, to *figures) error {
	l := newLoop()
	r.Progress("a training loop alone")
	pause := time.Duration(r.Seconds * float64(time.Second))
	before, err := l.run(func() error { return sleep(ctx, pause) })
	if err != nil {
		return err
	}
	flushed, err := r.trainWhileFlushing(ctx, l)
	if err != nil {
		return err
	}
	after, err := l.run(func() error { return sleep(ctx, pause) })
	if err != nil {
		return err
	}
	alone := max(before, after)
	r.trainingLines(to, "ckpt-train", flushed, alone)
	paced, err := r.pacedTraining(ctx, l)
	if err != nil {
		return err
	}
	r.trainingLines(to, "ckpt-train-paced", paced, alone)
	return nil
}

// trained is what a training loop did while a save was flushed.
type trained struct {
	rate float64 // bytes a second
	took time.Duration
}

func (r *ckptRun) trainingLines(to *figures, name string, t trained, alone float64) {
	to.add(figure(Line{Name: r.name(name), Value: t.rate / gb, Unit: "GB/s"}.against(alone/gb, "the loop alone")))
	to.add(figure(Line{Name: r.name(name + "-flush"), Value: t.took.Seconds(), Unit: "s from the seal to nvme"}))
}

// trainWhileFlushing runs the loop from the last seal of a save until it is at level nvme.
func (r *ckptRun) trainWhileFlushing(ctx context.Context, l *loop) (t trained, err error) {
	r.Progress("a training loop while a save is flushed")
	s, err := r.saveTo(ctx, moraine.Local)
	if err != nil {
		return t, err
	}
	t.rate, err = l.run(func() error {
		_, t.took, err = s.reach(ctx, moraine.NVMe)
		return err
	})
	if err != nil {
		return t, err
	}
	return t, r.settle(ctx, s)
}

// pacedTraining measures with an agent that flushes slowly.
func (r *ckptRun) pacedTraining(ctx context.Context, l *loop) (t trained, err error) {
	shards := r.trainers.shards()
	if err := r.close(ctx); err != nil {
		return t, err
	}
	r.agent, r.trainers, r.kept = nil, nil, nil
	if r.agent, err = startAgent(ctx, r.Env, arenaMemory(r.model), flushRateFlag, fmt.Sprint(r.model.Bytes()/pacedSeconds)); err != nil {
		return t, err
	}
	if r.trainers, err = openTrainers(ctx, r.Env, "paced", shards, r.agent.socket()); err != nil {
		return t, err
	}
	for range slotsPerRank / 2 { // what they flush is the first burst, too
		if _, err := r.settledSave(ctx, moraine.NVMe); err != nil {
			return t, err
		}
	}
	return r.trainWhileFlushing(ctx, l)
}
