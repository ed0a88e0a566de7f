package ckptfaults_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
	"github.com/morainefs/moraine/transport/wire"
)

// The ways in which a step rises that stays in memory.
var risings = []struct {
	name string
	of   func(ctx context.Context, w *world, k stepKey) error
}{
	{"a wait", func(ctx context.Context, w *world, k stepKey) error {
		_, err := w.team.ranks[0].run.WaitStep(ctx, k.step, moraine.NVMe)
		return err
	}},
	{"a pin", func(ctx context.Context, w *world, k stepKey) error {
		for _, pinned := range []bool{true, false} { // it rises all the same
			if _, err := w.team.ranks[0].run.Pin(ctx, ckpt.StepRef{Attempt: k.attempt, Step: k.step}, pinned); err != nil {
				return err
			}
		}
		return nil
	}},
	{"a push", func(ctx context.Context, w *world, _ stepKey) error {
		for _, n := range w.nodes {
			reply, err := agentproto.Ask(ctx, n.socket(), &agentproto.Request{Push: &agentproto.Push{DeadlineMillis: 60_000}})
			if err != nil {
				return err
			}
			if left := reply.Push.Parts; len(left) > 0 {
				return fmt.Errorf("a push leaves %+v", left)
			}
		}
		return nil
	}},
}

// The requests that are under way when somebody dies.
var risingRequests = []struct {
	name string
	fits func(from string, req *wire.MetaRequest) bool
}{
	{"the request to rise", func(_ string, req *wire.MetaRequest) bool { return req.GetMarkStep() != nil }},
	{"a look at deferred chunks", func(_ string, req *wire.MetaRequest) bool { return len(req.GetListMemory().GetDeferredFor()) > 0 }},
	{"a report of chunks", func(_ string, req *wire.MetaRequest) bool { return req.GetSettleChunks() != nil }},
}

// stepRises: a step that stays in memory is made to rise. While that is under way, the leader dies, an agent, or
// as many chunkservers as a stripe can lose. The step reaches level nvme.
func stepRises(ctx context.Context, w *world) error {
	if err := w.setEvery(ctx, never); err != nil {
		return err
	}
	for range 2 {
		if err := w.team.commit(ctx, moments{}); err != nil {
			return err
		}
	}
	k := stepKey{w.team.attempt, w.team.next - 1}
	rising, request := risings[w.rng.IntN(len(risings))], risingRequests[w.rng.IntN(len(risingRequests))]
	c := &caught{fits: request.fits, applied: w.rng.IntN(2) == 0}
	w.log("%s, stopped at %s (applied: %v)", rising.name, request.name, c.applied)
	w.trap.catch(c)
	defer w.trap.end()
	risen := make(chan error, 1)
	go func() { risen <- rising.of(ctx, w, k) }()
	err := w.dieAt(ctx, c)
	again := <-risen
	if err != nil {
		return errors.Join(err, again)
	}
	if again != nil { // a push says so if its agent dies
		w.log("once more: %v", again)
		if err := rising.of(ctx, w, k); err != nil {
			return err
		}
	}
	before := stepKey{k.attempt, k.step - 1} // it stays where it is
	if err := errors.Join(w.risesByItself(ctx, k), w.whole(ctx, before), w.onDevices(ctx, k)); err != nil {
		return err
	}
	return errors.Join(w.relaunch(ctx, launch{}), w.setEvery(ctx, 0))
}

// risesByItself waits until a step is at level nvme, and requests nothing: it was made to rise.
func (w *world) risesByItself(ctx context.Context, k stepKey) error {
	for {
		s, err := w.step(ctx, k)
		switch {
		case err == nil && s.Level >= moraine.NVMe && !s.StaysInMemory:
			w.m.committed(k)
			return nil
		case err != nil && !retryable(err):
			return err
		case ctx.Err() != nil:
			return wrongf("attempt %d step %d was made to rise, and is at level %v: stays in memory: %v", k.attempt, k.step, s.Level, s.StaysInMemory)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// dieAt ends a process when a request is stopped.
func (w *world) dieAt(ctx context.Context, c *caught) error {
	defer c.release()
	from, err := c.wait(ctx)
	if err != nil {
		return err
	}
	switch w.rng.IntN(3) {
	case 0:
		leader := w.c.Leader()
		if leader == "" {
			return errors.New("no metadata server leads")
		}
		w.log("%s dies", leader)
		w.c.Kill(leader)
		c.release()
		return w.c.Restart(leader)
	case 1:
		n := w.nodes[w.rng.IntN(len(w.nodes))]
		w.log("%s dies", n.name)
		n.kill()
		c.release()
		return n.start()
	}
	hosts := w.chunkservers()
	if i := slices.Index(hosts, from); i >= 0 { // the one that sends it dies
		hosts[0], hosts[i] = hosts[i], hosts[0]
	}
	hosts = hosts[:1+w.rng.IntN(len(victims))]
	w.log("%v die", hosts)
	w.c.Kill(hosts...)
	c.release()
	return w.c.Restart(hosts...)
}
