package integration_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
)

// trainedWatch looks each millisecond whether there is a step, and loads the newest.
type trainedWatch struct {
	t                     *testing.T
	stop                  context.CancelFunc
	ended                 sync.WaitGroup
	looks, loads, outages atomic.Int64
	mu                    sync.Mutex
	wrong                 error
}

func watchTrained(t *testing.T, cl *client.Client) *trainedWatch {
	ctx, stop := context.WithCancel(t.Context())
	w := &trainedWatch{t: t, stop: stop}
	t.Cleanup(w.cancel)
	w.ended.Go(func() {
		w.follow(ctx, time.Millisecond, func(ctx context.Context) error {
			_, err := cl.Stat(ctx, trainedRun+"/latest/"+ckpt.IndexName)
			w.looks.Add(1)
			return err
		})
	})
	w.ended.Go(func() {
		w.follow(ctx, 20*time.Millisecond, func(ctx context.Context) error { return w.load(ctx, cl) })
	})
	return w
}

func (w *trainedWatch) load(ctx context.Context, cl *client.Client) error {
	run, err := ckpt.OpenRun(ctx, cl, trainedRun, ckpt.RunOptions{ReadOnly: true})
	if err != nil {
		return err
	}
	defer run.Close(ctx)
	k, err := run.Resolve(ctx, ckpt.ResolveOptions{})
	if err != nil {
		return err
	}
	defer k.Close()
	w.loads.Add(1)
	return checkTrained(ctx, k)
}

// follow repeats a look until ctx ends. Once one succeeded, none may find nothing. A look without an answer
// is an outage.
func (w *trainedWatch) follow(ctx context.Context, every time.Duration, look func(context.Context) error) {
	for there := false; ctx.Err() == nil; time.Sleep(every) {
		one, cancel := context.WithTimeout(ctx, 20*time.Second)
		err := look(one)
		cancel()
		switch kind := moraine.KindOf(err); {
		case err == nil:
			there = true
		case ctx.Err() != nil:
		case kind == moraine.Unavailable || kind == moraine.Timeout || errors.Is(err, context.DeadlineExceeded):
			w.outages.Add(1)
		case there || kind != moraine.NotFound:
			w.mu.Lock()
			w.wrong = errors.Join(w.wrong, fmt.Errorf("no loadable checkpoint: %w", err))
			w.mu.Unlock()
			return
		}
	}
}

func (w *trainedWatch) cancel() {
	w.stop()
	w.ended.Wait()
}

// end ends the looks and returns how many there were. None may have found anything wrong.
func (w *trainedWatch) end() string {
	w.t.Helper()
	w.cancel()
	require.NoError(w.t, w.wrong)
	require.NotZero(w.t, w.looks.Load())
	require.NotZero(w.t, w.loads.Load())
	return fmt.Sprintf("%d looks, %d loads, %d without an answer", w.looks.Load(), w.loads.Load(), w.outages.Load())
}
