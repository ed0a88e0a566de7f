package ckptfaults_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/transport"
)

// trainer is one rank of a team. It saves through the agent of its node.
type trainer struct {
	w    *world
	rank uint32
	c    *incluster.Client
	run  *ckpt.Run
	nap  incluster.Nap
	dead bool
}

// team is one launch of the job.
type team struct {
	w       *world
	attempt uint32
	// parent is the step that it continues from; the zero value: none.
	parent stepKey
	ranks  []*trainer
	// next is the number of the next step.
	next uint64
	// sealTimeout is that of its saves.
	sealTimeout time.Duration
	// inMemory makes the service accept its parts at level memory.
	inMemory bool
}

// launch says how a team starts.
type launch struct {
	// world is how many ranks it has; 0: as many as the team before.
	world uint32
	// from is the step that it continues from; 0: the newest at level nvme, or at memory if the policy leaves
	// steps there.
	from uint64
	// keep leaves the team before alive.
	keep bool
}

// launch starts a team, which restores the step that it continues from.
func (w *world) launch(ctx context.Context, l launch) (*team, error) {
	w.restart += 2 // an older launch may come late
	t := &team{w: w, next: 1, sealTimeout: time.Minute}
	w.teams = append(w.teams, t)
	for rank := range l.world {
		tr, err := w.open(ctx, w.restart, rank, l.world)
		if err != nil {
			return t, err
		}
		t.ranks = append(t.ranks, tr)
		t.attempt = tr.run.Attempt()
	}
	if len(w.m.mustBeThere()) == 0 {
		return t, nil
	}
	for _, tr := range t.ranks {
		k, err := tr.run.Resolve(ctx, ckpt.ResolveOptions{Fix: true, Step: l.from, Exact: l.from != 0, Level: w.floor()})
		if err != nil {
			return t, fmt.Errorf("rank %d restores: %w", tr.rank, err)
		}
		err = errors.Join(w.m.check(ctx, k, w.read), k.Close())
		if err != nil {
			return t, fmt.Errorf("rank %d restores: %w", tr.rank, err)
		}
		if t.next > 1 && t.next != k.Info.Step+1 {
			return t, wrongf("rank %d continues from step %d, others from %d", tr.rank, k.Info.Step, t.next-1)
		}
		t.next, t.parent = k.Info.Step+1, keyOf(k.Info)
	}
	return t, nil
}

// open opens the run as one rank of a launch of the job.
func (w *world) open(ctx context.Context, restart uint64, rank, world uint32) (*trainer, error) {
	tr := &trainer{w: w, rank: rank}
	c, err := w.client(ctx, func(d transport.Dialer) transport.Dialer {
		return incluster.Through(d, tr.nap.Over(w.trap.requests("trainer")))
	})
	if err != nil {
		return nil, err
	}
	tr.c = c
	tr.run, err = ckpt.OpenRun(ctx, c.Client, runPath, ckpt.RunOptions{
		Launch: ckpt.Launch{Name: fmt.Sprintf("launch-%d", restart), Job: "job", Restart: restart},
		Rank:   rank, World: world, Agent: w.node(rank).socket(), Clock: &w.hands})
	if err != nil {
		w.end(c)
		return nil, fmt.Errorf("rank %d opens the run: %w", rank, err)
	}
	return tr, nil
}

func (w *world) node(rank uint32) *node { return w.nodes[int(rank)%len(w.nodes)] }

// relaunch ends the team, unless l says otherwise, and starts the next one.
func (w *world) relaunch(ctx context.Context, l launch) error {
	if !l.keep {
		w.team.die()
	}
	if l.world == 0 {
		l.world = uint32(len(w.team.ranks))
	}
	t, err := w.launch(ctx, l)
	if err != nil {
		return fmt.Errorf("the next launch: %w", err)
	}
	w.team = t
	return nil
}

// die ends the connection to the agent and the session, as the end of the process does.
func (tr *trainer) die() {
	if tr.dead {
		return
	}
	tr.dead = true
	tr.nap.End()
	tr.run.Stop()
	_ = tr.run.Close(context.Background()) // a process that dies hears of no error
	tr.w.end(tr.c)
}

func (t *team) die() {
	for _, tr := range t.ranks {
		tr.die()
	}
}

// moments are the functions that a fault has called during a save.
type moments struct {
	staged func(tr *trainer)              // a rank has copied its part, and not sealed it
	sealed func(parts []*ckpt.Part) error // all ranks that live have the part at level local
}

// fill begins a part and copies its slice and blob.
func (t *team) fill(ctx context.Context, tr *trainer, k stepKey) (*ckpt.Part, error) {
	replica := t.w.m.saved(k).replicaBytes()
	part, err := tr.run.Begin(ctx, k.step, ckpt.BeginOptions{Level: t.level(k.step), Bytes: int64(partBytes + 1000 + len(replica)), SealTimeout: t.sealTimeout})
	if err != nil {
		return nil, err
	}
	err = part.AddTensor(ctx, ckpt.Tensor{Name: "w", DType: ckpt.U8, Shape: []int64{partBytes},
		Global: []int64{partBytes * int64(len(t.ranks))}, Offset: []int64{partBytes * int64(tr.rank)}, Data: k.slice(tr.rank)})
	if err == nil && replica != nil {
		err = part.AddTensor(ctx, ckpt.Tensor{Name: replicaName, DType: ckpt.U8, Shape: []int64{replicaBytes}, Data: replica})
	}
	if err == nil {
		err = part.AddBlob(ctx, "origin", k.origin(tr.rank))
	}
	return part, err
}

// save saves the next step by all ranks and waits for level nvme, or memory if the step stays there. errs has the result of each rank; that
// of a dead one is nil.
func (t *team) save(ctx context.Context, at moments) (k stepKey, errs []error, err error) {
	k = stepKey{t.attempt, t.next}
	t.next++
	s, level := saved{world: uint32(len(t.ranks))}, moraine.NVMe
	if t.w.replica != nil {
		s.replica = t.w.replica(k)
	}
	t.w.m.begin(k, s)
	if t.w.stays(k.step) {
		level = moraine.Memory
	}
	parts := make([]*ckpt.Part, len(t.ranks))
	errs = make([]error, len(t.ranks))
	var wg sync.WaitGroup
	for i, tr := range t.ranks {
		wg.Go(func() { parts[i], errs[i] = t.seal(ctx, tr, k, at) })
	}
	wg.Wait()
	if at.sealed != nil {
		if err := at.sealed(parts); err != nil {
			return k, errs, err
		}
	}
	for i, tr := range t.ranks {
		if errs[i] == nil && !tr.dead {
			wg.Go(func() { _, errs[i] = parts[i].Wait(ctx, level) })
		}
	}
	wg.Wait()
	return k, errs, t.agree(k, errs)
}

func (t *team) seal(ctx context.Context, tr *trainer, k stepKey, at moments) (*ckpt.Part, error) {
	part, err := t.fill(ctx, tr, k)
	if err != nil {
		return nil, err
	}
	if at.staged != nil {
		at.staged(tr)
	}
	if tr.dead {
		return nil, nil
	}
	if err := part.Seal(ctx); err != nil {
		return part, err
	}
	_, err = part.Wait(ctx, moraine.Local)
	return part, err
}

// agree checks that the ranks that live have one opinion of a step, and records it.
func (t *team) agree(k stepKey, errs []error) error {
	good, bad := 0, 0
	for i, tr := range t.ranks {
		switch {
		case tr.dead:
		case errs[i] == nil:
			good++
		default:
			bad++
		}
	}
	if good > 0 && bad > 0 {
		return wrongf("some ranks report attempt %d step %d as committed, others do not: %v", k.attempt, k.step, errs)
	}
	if good > 0 && !t.w.stays(k.step) || t.w.mutant.lies {
		t.w.m.committed(k)
	}
	return nil
}

// commit saves the next step, which must be committed.
func (t *team) commit(ctx context.Context, at moments) error {
	k, errs, err := t.save(ctx, at)
	if err == nil {
		err = errors.Join(errs...)
	}
	if err != nil {
		return fmt.Errorf("attempt %d step %d: %w", k.attempt, k.step, err)
	}
	return nil
}

// level is where a step is when the service accepts its parts. Every second one is only in memory. If the
// run has a policy, that decides.
func (t *team) level(step uint64) moraine.Level {
	if t.w.every > 0 {
		return []moraine.Level{0, moraine.Memory}[step%2]
	}
	if t.inMemory {
		return moraine.Memory
	}
	return moraine.NVMe - moraine.Level(step%2)
}
