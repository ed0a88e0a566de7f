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

// pollEvery is the pause between two looks, loadEvery between two loads. The short form has little of
// the machine.
var (
	pollEvery = testseed.Of(10*time.Millisecond, time.Millisecond)
	loadEvery = testseed.Of(50*time.Millisecond, 2*time.Millisecond)
)

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
	p.ended.Go(func() { p.follow(ctx, pollEvery, p.link) })
	for _, level := range []moraine.Level{moraine.Memory, moraine.NVMe} {
		p.ended.Go(func() {
			p.follow(ctx, loadEvery, func(c *incluster.Client) func(context.Context) error { return p.load(c, level) })
		})
	}
	return p
}

// follow repeats a look until ctx ends or a promise is broken. Once a look succeeded, none may find
// nothing.
func (p *poller) follow(ctx context.Context, every time.Duration, look func(*incluster.Client) func(context.Context) error) {
	c, err := p.w.client(ctx, p.w.through)
	if err != nil {
		p.fail(err)
		return
	}
	defer c.Kill()
	try := look(c)
	for there := false; ctx.Err() == nil; {
		one, cancel := context.WithTimeout(ctx, unanswered)
		err := try(one)
		cancel()
		var wrong *wrongError
		switch {
		case err == nil:
			there = true
		case ctx.Err() != nil:
		case errors.As(err, &wrong):
			p.fail(err)
			return
		case retryable(err):
			p.outages.Add(1)
		case there:
			p.fail(wrongf("no loadable checkpoint: %v", err))
			return
		case moraine.KindOf(err) != moraine.NotFound:
			p.fail(err)
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(every):
		}
	}
}

// link follows the link to the newest checkpoint.
func (p *poller) link(c *incluster.Client) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := c.Stat(ctx, runPath+"/latest/"+ckpt.IndexName)
		p.looks.Add(1)
		return err
	}
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
		k, err := run.Resolve(ctx, ckpt.ResolveOptions{Level: level})
		if err != nil {
			return err
		}
		defer k.Close()
		p.loads.Add(1)
		return p.w.m.check(ctx, k, readTensor)
	}
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
