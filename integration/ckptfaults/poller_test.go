package ckptfaults_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// A look begins each pollEvery, however long the ones before it take. loadEvery is the pause between two
// loads. The short form has little of the machine.
var (
	pollEvery = testseed.Of(10*time.Millisecond, time.Millisecond)
	loadEvery = testseed.Of(50*time.Millisecond, 2*time.Millisecond)
)

// looksAtATime bounds the looks that wait for an answer: more begin when the cluster answers again.
const looksAtATime = 100

// unanswered bounds one look. A look that takes longer is an outage, not a broken promise.
const unanswered = 20 * time.Second

// poller looks all the time whether there is a checkpoint, and loads it.
type poller struct {
	w      *world
	cancel context.CancelFunc
	ended  sync.WaitGroup

	looks, loads, outages atomic.Int64

	mu  sync.Mutex
	err error
}

// poll starts to look. One goroutine follows the link, two load the newest step at a level.
func (w *world) poll() *poller {
	ctx, cancel := context.WithCancel(context.Background())
	p := &poller{w: w, cancel: cancel}
	p.ended.Go(func() { p.followLink(ctx) })
	for _, level := range []moraine.Level{moraine.Memory, moraine.NVMe} {
		p.ended.Go(func() {
			p.follow(ctx, loadEvery, func(c *incluster.Client) func(context.Context) error { return p.load(c, level) })
		})
	}
	return p
}

// client opens the client of a poller.
func (p *poller) client(ctx context.Context) *incluster.Client {
	c, err := p.w.client(ctx, p.w.through)
	if err != nil {
		p.fail(err)
		return nil
	}
	return c
}

// follow repeats a look until ctx ends or a promise is broken. Once a look succeeded, none may find
// nothing.
func (p *poller) follow(ctx context.Context, every time.Duration, look func(*incluster.Client) func(context.Context) error) {
	c := p.client(ctx)
	if c == nil {
		return
	}
	defer p.w.end(c)
	try := look(c)
	for there := false; ctx.Err() == nil; {
		found, ok := p.look(ctx, try, there)
		if !ok {
			return
		}
		there = there || found
		select {
		case <-ctx.Done():
		case <-time.After(every):
		}
	}
}

// followLink is follow for the link to the newest checkpoint. Its looks do not wait for each other.
func (p *poller) followLink(ctx context.Context) {
	c := p.client(ctx)
	if c == nil {
		return
	}
	defer p.w.end(c)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var running sync.WaitGroup
	defer running.Wait()
	var there atomic.Bool
	slots := make(chan struct{}, looksAtATime)
	every := time.NewTicker(pollEvery)
	defer every.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case slots <- struct{}{}:
		}
		before := there.Load()
		running.Go(func() {
			defer func() { <-slots }()
			found, ok := p.look(ctx, func(ctx context.Context) error { return p.link(ctx, c) }, before)
			if found {
				there.Store(true)
			}
			if !ok {
				stop()
			}
		})
		select {
		case <-ctx.Done():
		case <-every.C:
		}
	}
}

// look looks once. there says that an earlier look found a checkpoint. ok is false after a broken promise.
func (p *poller) look(ctx context.Context, try func(context.Context) error, there bool) (found, ok bool) {
	one, cancel := context.WithTimeout(ctx, unanswered)
	defer cancel()
	err := try(one)
	var wrong *wrongError
	switch {
	case err == nil:
		return true, true
	case ctx.Err() != nil:
		return false, true
	case errors.As(err, &wrong):
		p.fail(err)
		return false, false
	case retryable(err):
		p.outages.Add(1)
		return false, true
	case there:
		p.fail(wrongf("no loadable checkpoint: %v", err))
		return false, false
	case moraine.KindOf(err) != moraine.NotFound:
		p.fail(err)
		return false, false
	}
	return false, true
}

// link follows the link to the newest checkpoint.
func (p *poller) link(ctx context.Context, c *incluster.Client) error {
	_, err := c.Stat(ctx, runPath+"/latest/"+ckpt.IndexName)
	p.looks.Add(1)
	return err
}

// load loads the newest checkpoint at a level and compares it with what was saved.
func (p *poller) load(c *incluster.Client, level moraine.Level) func(context.Context) error {
	var run *ckpt.Run
	return func(ctx context.Context) (err error) {
		if run == nil {
			if run, err = ckpt.OpenRun(ctx, c.Client, runPath, ckpt.RunOptions{ReadOnly: true}); err != nil {
				return err
			}
		}
		began := time.Now()
		k, err := run.Resolve(ctx, ckpt.ResolveOptions{Level: level})
		if err != nil {
			return destroyed(err, level == moraine.Memory && p.w.m.loses(began))
		}
		defer k.Close()
		p.loads.Add(1)
		return destroyed(p.w.m.check(ctx, k, readTensor), p.w.m.isDoomed(keyOf(k.Info)))
	}
}

// destroyed is the error of a load. If a row has destroyed what was loaded, damage is an outage: it lasts
// until the service has marked the step.
func destroyed(err error, doomed bool) error {
	if doomed && isDamage(err) {
		return &moraine.Error{Op: "load", Kind: moraine.Unavailable, Err: err}
	}
	return err
}

// through is the network of the pollers.
func (w *world) through(d transport.Dialer) transport.Dialer {
	return incluster.Through(d, func(ctx context.Context, m transport.Metadata, req *wire.MetaRequest) (*wire.MetaResponse, error) {
		resp, err := m.Do(ctx, req)
		if s := resp.GetStep().GetStep(); err == nil && w.mutant.early && req.GetResolveStep() != nil && s != nil {
			newest := w.m.newest()
			s.Key.Attempt, s.Key.Step = newest.attempt, newest.step
		}
		return resp, err
	})
}

func (p *poller) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = errors.Join(p.err, err)
}

// wrong returns what the looks so far have found.
func (p *poller) wrong() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// stop ends the looks. There must have been some.
func (p *poller) stop() error {
	p.cancel()
	p.ended.Wait()
	if err := p.wrong(); err != nil {
		return err
	}
	if p.looks.Load() == 0 || p.loads.Load() == 0 {
		return fmt.Errorf("the pollers saw nothing: %s", p)
	}
	return nil
}

// String says how often it looked.
func (p *poller) String() string {
	return fmt.Sprintf("%d looks, %d loads, %d without an answer", p.looks.Load(), p.loads.Load(), p.outages.Load())
}
