package ckpt_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/integration/memcluster"
	"github.com/morainefs/moraine/internal/llama"
	"github.com/morainefs/moraine/transport/wire"
)

// reader restores the latest step as the only rank.
type reader struct {
	t  *testing.T
	c  *client.Client
	at *ckpt.Checkpoint
}

func opens(t *testing.T, c *memcluster.Cluster) *reader {
	t.Helper()
	r := &reader{t: t, c: c.Client("reader")}
	run, err := ckpt.OpenRun(t.Context(), r.c, "/runs/deep/a", ckpt.RunOptions{ReadOnly: true, World: 1})
	require.NoError(t, err)
	r.at, err = run.Resolve(t.Context(), ckpt.ResolveOptions{})
	require.NoError(t, err)
	c.AtStop(func() {
		r.at.Close()
		run.Close(context.Background())
		r.c.Close()
	})
	return r
}

// restores restores the step, compares it with seed, and returns how many chunks were hedged so far.
func (r *reader) restores(seed uint64) uint64 {
	r.t.Helper()
	s := llama.NewShard(tiny, 0, 1)
	require.NoError(r.t, s.Restore(r.t.Context(), r.at))
	require.NoError(r.t, s.Check(seed))
	return r.c.Stats().ChunksHedged
}

// TestASlowServerDoesNotHoldUpARestore: as many servers as the scheme has parity chunks accept reads and never
// answer. A restore gets all bytes from the others, and waits for no timeout of a request.
func TestASlowServerDoesNotHoldUpARestore(t *testing.T) {
	inCluster(t, memcluster.Options{}, func(t *testing.T, c *memcluster.Cluster) {
		saveAll(t, team(t, c, "l1", 4), 1, 11)
		var hung, timedOut atomic.Int64
		for _, h := range c.Hosts[:2] {
			h.Before(func(ctx context.Context, req any) error {
				if _, ok := req.(*wire.GetChunk); !ok {
					return nil
				}
				hung.Add(1)
				began := time.Now()
				<-ctx.Done()
				if time.Since(began) > 5*time.Second {
					timedOut.Add(1)
				}
				return ctx.Err()
			})
		}
		require.NotZero(t, opens(t, c).restores(11))
		require.NotZero(t, hung.Load())
		require.Zero(t, timedOut.Load(), "requests that the restore waited for, of %d", hung.Load())
	})
}

// TestARestoreReadsLittleTwice: all servers share a slow link, so that the requests of a restore wait longer
// than a read waits for a late chunk. They are not late, since others arrive meanwhile. The servers send at most a tenth
// more bytes than over a fast link.
func TestARestoreReadsLittleTwice(t *testing.T) {
	inCluster(t, memcluster.Options{}, func(t *testing.T, c *memcluster.Cluster) {
		saveAll(t, team(t, c, "l1", 4), 1, 11)
		var sent, longest atomic.Int64
		var rate atomic.Int64          // bytes a second; 0: fast
		link := make(chan struct{}, 1) // taken by the request that is served
		for _, h := range c.Hosts {
			h.Before(func(_ context.Context, req any) error {
				get, ok := req.(*wire.GetChunk)
				if !ok {
					return nil
				}
				sent.Add(int64(get.Length))
				if r := rate.Load(); r > 0 {
					arrived := time.Now()
					link <- struct{}{}
					longest.Store(max(longest.Load(), int64(time.Since(arrived)))) // one at a time
					defer func() { <-link }()
					time.Sleep(time.Duration(int64(get.Length) * int64(time.Second) / r))
				}
				return nil
			})
		}
		r := opens(t, c)
		r.restores(11) // reads the index
		sent.Store(0)
		require.Zero(t, r.restores(11), "over a fast link")
		fast := sent.Swap(0)
		rate.Store(5 * fast)
		hedged := r.restores(11)
		require.Greater(t, time.Duration(longest.Load()), 80*time.Millisecond, "the requests wait")
		t.Logf("%d bytes over the fast link, %d over the slow one; %d chunks hedged", fast, sent.Load(), hedged)
		require.LessOrEqual(t, sent.Load(), fast+fast/10)
	})
}
