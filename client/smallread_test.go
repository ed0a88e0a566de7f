package client_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/testseed"
)

// A read of a part of one chunk, which its caller makes without other goroutines, behaves like
// any other if the host fails. The client hedges it when it is late, and rebuilds it when it
// fails.
func TestSmallReadOfAHostInTrouble(t *testing.T) {
	hangs := func(ctx context.Context, _ any) error { <-ctx.Done(); return ctx.Err() }
	rows := map[string]struct {
		does   func(ctx context.Context, req any) error
		hedged bool
	}{
		"hangs":            {hangs, true},
		"is late":          {func(context.Context, any) error { time.Sleep(51 * time.Millisecond); return nil }, true},
		"is late to fail":  {func(context.Context, any) error { time.Sleep(300 * time.Millisecond); return errKind(moraine.IOError) }, true},
		"fails":            {func(context.Context, any) error { return errKind(moraine.IOError) }, false},
		"lost the chunk":   {func(context.Context, any) error { return errKind(moraine.NotFound) }, false},
		"shuts down":       {func(context.Context, any) error { return errKind(moraine.Unavailable) }, false},
		"finds corruption": {func(context.Context, any) error { return errKind(moraine.Corrupt) }, false},
	}
	scheme := testseed.First(t)
	for name, row := range rows {
		schemes := []moraine.Scheme{{K: 4, M: 2}, moraine.Copies(3)}
		if scheme++; !testseed.Long() { // one scheme for each row, others in each run
			schemes = schemes[scheme%2:][:1]
		}
		for _, scheme := range schemes {
			t.Run(name+"/"+scheme.String(), func(t *testing.T) {
				inCluster(t, 6, func(c *cluster) {
					cfg := config()
					cfg.Scheme = scheme
					cl := c.dial("c1", cfg)
					defer cl.Close()
					data := bytesOf(7, int(scheme.K)*64<<10)
					write(t, c, cl, "/f", data, 1<<30, false)
					r, err := cl.OpenFile(c.ctx, "/f")
					require.NoError(t, err)
					defer r.Close()
					for _, h := range c.Hosts {
						h.Before(row.does)
						for off := 100; off < len(data); off += 64 << 10 {
							got := make([]byte, 4096)
							require.NoError(t, r.ReadRange(c.ctx, got, int64(off)))
							require.True(t, bytes.Equal(data[off:][:4096], got))
						}
						h.Before(nil)
						time.Sleep(time.Minute) // the client uses it again
					}
					require.Equal(t, row.hedged, cl.Stats().ChunksHedged > 0)
				})
			})
		}
	}
}

// A small read without an answer ends with its context.
func TestSmallReadCanceled(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		write(t, c, cl, "/f", bytesOf(7, 4*64<<10), 1<<30, false)
		r, err := cl.OpenFile(c.ctx, "/f")
		require.NoError(t, err)
		defer r.Close()
		require.NoError(t, r.ReadRange(c.ctx, make([]byte, 10), 0)) // the reader knows where the bytes are
		for _, h := range c.Hosts {
			h.Before(func(ctx context.Context, _ any) error { <-ctx.Done(); return ctx.Err() })
		}
		for _, after := range []time.Duration{10 * time.Millisecond, 50 * time.Millisecond, 500 * time.Millisecond} {
			ctx, cancel := context.WithTimeout(c.ctx, after)
			err := r.ReadRange(ctx, make([]byte, 10), 0)
			cancel()
			require.Equal(t, moraine.Timeout, moraine.KindOf(err), "%v", err)
		}
	})
}
