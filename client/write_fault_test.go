package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/memcluster"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/transport/memnet"
	"github.com/morainefs/moraine/transport/wire"
)

func errKind(k moraine.Kind) error { return &moraine.Error{Op: "test", Kind: k} }

// onPuts calls fn with a host's puts from the n-th on.
func onPuts(h *memcluster.Host, from int64, fn func(ctx context.Context, p *wire.PutChunk) error) {
	var n atomic.Int64
	h.Before(func(ctx context.Context, req any) error {
		p, ok := req.(*wire.PutChunk)
		if !ok || n.Add(1) <= from {
			return nil
		}
		return fn(ctx, p)
	})
}

// Whatever happens to a device during a write, the file is whole. Each row is what one host
// does, from its first put on and from its third on.
func TestWriteSurvivesDevice(t *testing.T) {
	never := func(ctx context.Context, _ *wire.PutChunk) error { <-ctx.Done(); return ctx.Err() }
	always := func(k moraine.Kind) func(context.Context, *wire.PutChunk) error {
		return func(context.Context, *wire.PutChunk) error { return errKind(k) }
	}
	rows := map[string]func(ctx context.Context, p *wire.PutChunk) error{
		"fails":            always(moraine.IOError),
		"full":             always(moraine.NoSpace),
		"shuts down":       always(moraine.Unavailable),
		"finds corruption": always(moraine.Corrupt),
		"is broken":        always(moraine.Internal),
		"wants a token":    always(moraine.Unauthenticated),
		"hangs":            never,
		"is slow":          func(context.Context, *wire.PutChunk) error { time.Sleep(3 * time.Second); return nil },
	}
	pairs := testseed.First(t)
	for name, does := range rows {
		pairs++
		for i, from := range []int64{0, 2} {
			for j, hosts := range []int{6, 8} {
				if !testseed.Long() && uint64(i+j)%2 != pairs%2 { // half of them, others for each row
					continue
				}
				t.Run(fmt.Sprintf("%s/from %d/%d hosts", name, from, hosts), func(t *testing.T) {
					inCluster(t, hosts, func(c *cluster) {
						cl := c.dial("c1", config())
						defer cl.Close()
						onPuts(c.Hosts[1], from, does)
						data := bytesOf(3, 2_000_000)
						res := write(t, c, cl, "/f", data, 1<<30, false)
						if hosts == 8 {
							require.Zero(t, res.Degraded)
							require.Equal(t, 2, res.Protects)
						}
						require.GreaterOrEqual(t, res.Protects, 1)
						c.Hosts[1].Before(nil)
						require.True(t, bytes.Equal(data, read(t, c, cl, "/f")))
					})
				})
			}
		}
	}
}

// The client repeats a put whose reply was lost, and the same chunk twice is no error.
func TestWriteWithLostMessages(t *testing.T) {
	for _, f := range []memnet.Faults{{LoseReply: 0.1}, {LoseRequest: 0.1}, {LoseReply: 0.1, LoseRequest: 0.1, MaxDelay: 30 * time.Millisecond}} {
		inCluster(t, 6, func(c *cluster) {
			cl := c.dial("c1", config())
			defer cl.Close()
			for _, h := range c.Hosts {
				c.Net.SetFaults("c1", h.ID, f)
				c.Net.SetFaults(h.ID, "c1", f)
			}
			for _, m := range memcluster.Servers() {
				c.Net.SetFaults("c1", m, f)
				c.Net.SetFaults(m, "c1", f)
			}
			for i := range 5 {
				data := bytesOf(uint64(i), 700_000)
				path := fmt.Sprintf("/f%d", i)
				write(t, c, cl, path, data, 50_000, false)
				require.True(t, bytes.Equal(data, read(t, c, cl, path)))
			}
		})
	}
}

// With fewer hosts than the scheme needs, the commit's result states its protection.
func TestDegradedCommit(t *testing.T) {
	for dead, want := range map[int]struct {
		protects int
		degraded bool
	}{
		0: {2, false},
		1: {1, true},
		3: {1, true},
		4: {1, true}, // two hosts allow x2, less than the promised 4+2
	} {
		t.Run(fmt.Sprintf("%d dead", dead), func(t *testing.T) {
			inCluster(t, 6, func(c *cluster) {
				for _, h := range c.Hosts[:dead] {
					h.Kill()
				}
				time.Sleep(10 * time.Second)
				cl := c.dial("c1", config())
				defer cl.Close()
				data := bytesOf(3, 1_000_000)
				res := write(t, c, cl, "/f", data, 100_000, false)
				require.Equal(t, want.protects, res.Protects)
				require.Equal(t, want.degraded, res.Degraded > 0)
				require.True(t, bytes.Equal(data, read(t, c, cl, "/f")))
			})
		})
	}
}

// Hosts die one after the other while a file is written. The scheme becomes x2, and the client
// sends stripes begun under the old one again.
func TestSchemeChangesWhileWriting(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		data := bytesOf(4, 4_000_000)
		f, err := cl.Create(c.ctx, "/f", client.CreateOptions{})
		require.NoError(t, err)
		for i := 0; i < len(data); i += 100_000 {
			if n := i / 100_000; n%8 == 4 && n/8 < 4 {
				c.Hosts[n/8].Kill()
			}
			if i == 3_000_000 {
				time.Sleep(10 * time.Second)
			}
			_, err := f.Write(data[i : i+100_000])
			require.NoError(t, err)
		}
		res, err := f.Commit(c.ctx)
		require.NoError(t, err)
		require.Positive(t, res.Degraded)
		got := make([]byte, 500_000)
		r, err := cl.OpenFile(c.ctx, "/f")
		require.NoError(t, err)
		defer r.Close()
		require.NoError(t, r.ReadRange(c.ctx, got, 3_500_000))
		require.True(t, bytes.Equal(data[3_500_000:], got))
	})
}

// If no placement is left, the write waits for servers to come back, and fails when its
// patience ends.
func TestWriteWaitsForServers(t *testing.T) {
	inCluster(t, 2, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		data := bytesOf(5, 300_000)
		write(t, c, cl, "/a", data, 1<<30, false)
		c.Hosts[0].Kill()
		c.Run(func(context.Context) error {
			time.Sleep(20 * time.Second)
			c.Hosts[0].Start()
			return nil
		})
		began := time.Now()
		write(t, c, cl, "/b", data, 1<<30, false)
		require.Greater(t, time.Since(began), 15*time.Second)
		require.True(t, bytes.Equal(data, read(t, c, cl, "/b")))

		c.Hosts[1].Kill()
		f, err := cl.Create(c.ctx, "/c", client.CreateOptions{})
		require.NoError(t, err)
		_, err = f.Write(data)
		if err == nil {
			_, err = f.Commit(c.ctx)
		}
		require.Error(t, err)
		require.Contains(t, []moraine.Kind{moraine.Timeout, moraine.Unavailable}, moraine.KindOf(err))
		f.Abort()
		_, err = cl.Stat(c.ctx, "/c")
		require.ErrorIs(t, err, moraine.NotFound)
	})
}

// If every device is full, the write fails at once: it does not wait for room.
func TestWriteToFullDevices(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		for _, h := range c.Hosts {
			onPuts(h, 0, func(context.Context, *wire.PutChunk) error { return errKind(moraine.NoSpace) })
		}
		f, err := cl.Create(c.ctx, "/a", client.CreateOptions{})
		require.NoError(t, err)
		_, err = f.Write(bytesOf(9, 300_000))
		if err == nil {
			_, err = f.Commit(c.ctx)
		}
		require.ErrorIs(t, err, moraine.NoSpace)
		f.Abort()
		_, err = cl.Stat(c.ctx, "/a")
		require.ErrorIs(t, err, moraine.NotFound)
	})
}

// If one device is full, and the client cannot reach the service for another one for a while,
// the write waits: there is room.
func TestWriteToAFullDeviceWithoutALeader(t *testing.T) {
	inCluster(t, 8, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		data := bytesOf(9, 300_000)
		write(t, c, cl, "/a", data, 1<<30, false)
		onPuts(c.Hosts[1], 0, func(context.Context, *wire.PutChunk) error { return errKind(moraine.NoSpace) })
		back := time.Now().Add(10 * time.Second)
		var refused atomic.Int64
		c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
			if _, place := req.Op.(*wire.MetaRequest_Place); place && time.Now().Before(back) {
				refused.Add(1)
				return nil, errKind(moraine.Unavailable)
			}
			return nil, nil
		})
		for i := range 4 { // not every stripe has a chunk on that device
			write(t, c, cl, fmt.Sprint("/b", i), data, 1<<30, false)
		}
		require.NotZero(t, refused.Load())
		require.True(t, time.Now().After(back))
	})
}

// A context that ends at any point of a write ends it soon, with an error, and leaves nothing.
func TestWriteCanceled(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		for _, h := range c.Hosts {
			c.Net.SetFaults("c1", h.ID, memnet.Faults{MinDelay: 5 * time.Millisecond, MaxDelay: 50 * time.Millisecond})
		}
		data := bytesOf(6, 3_000_000)
		for d := time.Millisecond; d < 2*time.Second; d = d * 3 / 2 {
			ctx, cancel := context.WithTimeout(c.ctx, d)
			f, err := cl.Create(ctx, "/f", client.CreateOptions{})
			if err == nil {
				if _, err = f.Write(data); err == nil {
					_, err = f.Commit(ctx)
				}
				f.Abort()
			}
			require.True(t, err == nil || errors.Is(err, moraine.Timeout), "%v", err)
			cancel()
			require.Zero(t, client.Held(cl), "after %s", d)
			if err == nil {
				require.NoError(t, cl.Remove(c.ctx, "/f"))
			}
		}
	})
}

func TestAbort(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		f, err := cl.Create(c.ctx, "/f", client.CreateOptions{})
		require.NoError(t, err)
		_, err = f.Write(bytesOf(1, 900_000))
		require.NoError(t, err)
		f.Abort()
		f.Abort()
		_, err = f.Write([]byte("more"))
		require.Error(t, err)
		_, err = f.Commit(c.ctx)
		require.Error(t, err)
		_, err = cl.Stat(c.ctx, "/f")
		require.ErrorIs(t, err, moraine.NotFound)
		require.Zero(t, client.Held(cl))
	})
}

// Two writers of one name: the one that commits second loses, or replaces.
func TestCreateRules(t *testing.T) {
	inCluster(t, 3, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		a, err := cl.Create(c.ctx, "/f", client.CreateOptions{})
		require.NoError(t, err)
		b, err := cl.Create(c.ctx, "/f", client.CreateOptions{})
		require.NoError(t, err)
		_, err = a.Write([]byte("a"))
		require.NoError(t, err)
		_, err = a.Commit(c.ctx)
		require.NoError(t, err)
		_, err = b.Commit(c.ctx)
		require.ErrorIs(t, err, moraine.Exists)
		_, err = cl.Create(c.ctx, "/f", client.CreateOptions{})
		require.ErrorIs(t, err, moraine.Exists)
		write(t, c, cl, "/f", []byte("bb"), 10, false)
		require.Equal(t, []byte("bb"), read(t, c, cl, "/f"))

		_, err = cl.Mkdir(c.ctx, "/d", 0)
		require.NoError(t, err)
		_, err = cl.Create(c.ctx, "/d", client.CreateOptions{Replace: true})
		require.ErrorIs(t, err, moraine.IsDirectory)
		_, err = cl.Create(c.ctx, "/", client.CreateOptions{Replace: true})
		require.ErrorIs(t, err, moraine.IsDirectory)
		_, err = cl.Create(c.ctx, "/none/f", client.CreateOptions{})
		require.ErrorIs(t, err, moraine.NotFound)
		_, err = cl.Create(c.ctx, "/f/g", client.CreateOptions{})
		require.ErrorIs(t, err, moraine.NotDirectory)
	})
}
