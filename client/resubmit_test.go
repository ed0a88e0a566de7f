package client_test

import (
	"bytes"
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/memcluster"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// beforeCommits calls fn with the n-th commit of stripes, from 0 on, before it is served. It
// returns a function that counts them.
func beforeCommits(c *cluster, fn func(n int, op *wire.Commit)) (count func() int) {
	var mu sync.Mutex
	n := 0
	c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
		if op := req.GetCommit(); len(op.GetStripes()) > 0 {
			mu.Lock()
			defer mu.Unlock()
			fn(n, op)
			n++
		}
		return nil, nil
	})
	return func() int {
		mu.Lock()
		defer mu.Unlock()
		return n
	}
}

// devicesOf returns the devices of a commit's stripes, each once, in order.
func devicesOf(op *wire.Commit) (out []uint32) {
	seen := map[uint32]bool{}
	for _, s := range op.Stripes {
		for _, ch := range s.Chunks {
			if !seen[ch.Device] {
				seen[ch.Device] = true
				out = append(out, ch.Device)
			}
		}
	}
	return out
}

// loseMemory restarts the hosts of some devices without any of their chunks.
func (c *cluster) loseMemory(devices []uint32) {
	for _, d := range devices {
		h := c.hostOf(d)
		h.Kill()
		h.Change(func(moraine.ChunkID, *memcluster.Chunk) bool { return false })
		h.Start()
	}
}

// takeOut declares devices out.
func (c *cluster) takeOut(devices []uint32) {
	for _, dev := range devices {
		_, err := c.Ask(transport.RoleAdmin, "ops", &wire.MetaRequest{Op: &wire.MetaRequest_SetDeviceState{
			SetDeviceState: &wire.SetDeviceState{Device: dev, State: wire.DeviceState_DEVICE_STATE_OUT, Reason: "test"}}})
		require.NoError(c.t, err)
	}
}

// doors are the ways to write a file: whole, and through a handle.
var doors = map[string]func(c *cluster, cl *client.Client, path string, data []byte) error{
	"file": func(c *cluster, cl *client.Client, path string, data []byte) error {
		f, err := cl.Create(c.ctx, path, client.CreateOptions{Replace: true})
		require.NoError(c.t, err)
		if _, err = f.Write(data); err == nil {
			_, err = f.Commit(c.ctx)
		}
		f.Abort()
		return err
	},
	"handle": func(c *cluster, cl *client.Client, path string, data []byte) error {
		h := openNew(c.t, c, cl, path[1:])
		writeAt(c.t, c, h, data, 0)
		err := h.Flush(c.ctx)
		require.NoError(c.t, h.Close(c.ctx))
		return err
	},
}

// TestResubmit: right before the commit, devices with a file's bytes go out, or restart without
// what they had in memory. The client resubmits the stripes, and the file is whole, with full
// protection.
func TestResubmit(t *testing.T) {
	for name, row := range map[string]struct {
		level  moraine.Level
		scheme moraine.Scheme
		befall func(c *cluster, op *wire.Commit)
	}{
		"one loses its memory": {level: moraine.Memory, befall: func(c *cluster, op *wire.Commit) { c.loseMemory(devicesOf(op)[:1]) }},
		"m lose their memory":  {level: moraine.Memory, befall: func(c *cluster, op *wire.Commit) { c.loseMemory(devicesOf(op)[:2]) }},
		"all of a stripe go out": {level: moraine.NVMe, scheme: moraine.Copies(2), befall: func(c *cluster, op *wire.Commit) {
			c.takeOut(devicesOf(&wire.Commit{Stripes: op.Stripes[:1]}))
		}},
	} {
		for door, save := range doors {
			t.Run(name+"/"+door, func(t *testing.T) {
				inCluster(t, 8, func(c *cluster) {
					cfg := config()
					cfg.Level, cfg.Scheme = row.level, row.scheme
					cl := c.dial("c1", cfg)
					defer cl.Close()
					count := beforeCommits(c, func(n int, op *wire.Commit) {
						if n == 0 {
							row.befall(c, op)
						}
					})
					data := bytesOf(3, 500_000)
					require.NoError(t, save(c, cl, "/f", data))
					require.Greater(t, count(), 1)
					require.NotZero(t, cl.Stats().StripesResubmitted)
					require.True(t, bytes.Equal(data, read(t, c, cl, "/f")))
				})
			})
		}
	}
}

// TestResubmitEnds: every commit meets a device that has lost its memory since. The writer gets
// an error after a few tries, and no byte of the file is visible.
func TestResubmitEnds(t *testing.T) {
	for door, save := range doors {
		t.Run(door, func(t *testing.T) {
			inCluster(t, 8, func(c *cluster) {
				cfg := config()
				cfg.Level = moraine.Memory
				cl := c.dial("c1", cfg)
				defer cl.Close()
				count := beforeCommits(c, func(_ int, op *wire.Commit) { c.loseMemory(devicesOf(op)[:1]) })
				err := save(c, cl, "/f", bytesOf(3, 200_000)) // one stripe, and one commit at a time
				require.Equal(t, moraine.IOError, moraine.KindOf(err), "%v", err)
				require.ErrorContains(t, err, "wrote the bytes 4 times")
				require.NotErrorIs(t, err, moraine.Stale)
				require.Equal(t, 4, count())
				requireNothing(t, c, cl, "/f")
			})
		})
	}
}

// TestWhatCannotBeResubmittedIsAnError: more devices have lost their memory than the scheme
// tolerates.
func TestWhatCannotBeResubmittedIsAnError(t *testing.T) {
	for door, save := range doors {
		t.Run(door, func(t *testing.T) {
			inCluster(t, 8, func(c *cluster) {
				cfg := config()
				cfg.Level = moraine.Memory
				cl := c.dial("c1", cfg)
				defer cl.Close()
				count := beforeCommits(c, func(_ int, op *wire.Commit) { c.loseMemory(devicesOf(op)[:3]) })
				err := save(c, cl, "/f", bytesOf(3, 200_000))
				require.Equal(t, moraine.IOError, moraine.KindOf(err), "%v", err)
				require.ErrorContains(t, err, "could not write the bytes to other devices")
				require.NotErrorIs(t, err, moraine.Stale)
				require.NotErrorIs(t, err, moraine.NotFound)
				require.Equal(t, 1, count())
				requireNothing(t, c, cl, "/f")
				// The client continues to work.
				c.OnMeta(nil)
				data := bytesOf(4, 300_000)
				require.NoError(t, save(c, cl, "/g", data))
				require.True(t, bytes.Equal(data, read(t, c, cl, "/g")))
			})
		})
	}
}

// TestResubmitByALesserScheme: two devices are left when a commit of many stripes is refused.
// One stripe then becomes several, more than one commit takes, and the client makes as many
// commits as necessary.
func TestResubmitByALesserScheme(t *testing.T) {
	for door, save := range doors {
		t.Run(door, func(t *testing.T) {
			inCluster(t, 6, func(c *cluster) {
				cfg := config()
				cfg.Level, cfg.ChunkBytes, cfg.Scheme = moraine.Memory, 16<<10, moraine.Scheme{K: 5, M: 1}
				cl := c.dial("c1", cfg)
				defer cl.Close()
				// A handle commits when half of a full commit is ready. The first commit is late,
				// so that the second is full.
				late, size := 0, 5<<20
				if door == "handle" {
					late, size = 1, 10<<20
				}
				most := 0
				count := beforeCommits(c, func(n int, op *wire.Commit) {
					if n < late {
						time.Sleep(time.Second)
					}
					if n == late {
						most = len(op.Stripes)
						c.takeOut(devicesOf(op)[:4]) // reads from them still work
						c.loseMemory(devicesOf(op)[4:5])
					}
				})
				data := bytesOf(3, size)
				require.NoError(t, save(c, cl, "/f", data))
				require.GreaterOrEqual(t, cl.Stats().StripesResubmitted, uint64(most))
				require.Greater(t, 5*most, moraine.MaxCommitStripes)
				require.Greater(t, count(), late+2)
				require.True(t, bytes.Equal(data, read(t, c, cl, "/f")))
			})
		})
	}
}

// TestResubmitGoesOnWhileItGetsOn: resubmitting all stripes takes longer than the client's
// patience, but no single stripe does.
func TestResubmitGoesOnWhileItGetsOn(t *testing.T) {
	inCluster(t, 8, func(c *cluster) {
		cfg := config()
		cfg.Level, cfg.Patience = moraine.Memory, 30*time.Second
		cl := c.dial("c1", cfg)
		defer cl.Close()
		var mu sync.Mutex
		commits, ended, old, readBack := 0, false, map[uint64]bool{}, map[uint64]bool{}
		slow := func(_ context.Context, req any) error {
			switch req := req.(type) {
			case *wire.PutChunk:
				time.Sleep(6 * time.Second)
			case *wire.GetChunk:
				mu.Lock()
				defer mu.Unlock()
				if old[req.Stripe] { // one of the first commit
					readBack[req.Stripe] = true
				}
			}
			return nil
		}
		c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
			op := req.GetCommit()
			mu.Lock()
			if req.GetEndGrant() != nil && commits == 1 && len(readBack) < 8 {
				ended = true
			}
			commits += min(1, len(op.GetStripes()))
			first := commits == 1 && len(op.GetStripes()) > 0
			for _, s := range op.GetStripes() {
				old[s.Id] = old[s.Id] || first
			}
			mu.Unlock()
			if !first {
				return nil, nil
			}
			c.loseMemory(devicesOf(op)[:1])
			for _, h := range c.Hosts {
				h.Before(slow)
			}
			return nil, nil
		})
		data := bytesOf(3, 2<<20) // eight stripes, and one commit
		began := time.Now()
		require.NoError(t, doors["file"](c, cl, "/f", data))
		require.True(t, bytes.Equal(data, read(t, c, cl, "/f")))
		mu.Lock()
		defer mu.Unlock()
		require.Len(t, readBack, 8)
		require.False(t, ended, "a grant ended before what was put under it was read: it is garbage from then on")
		require.Greater(t, time.Since(began), cfg.Patience)
		require.Equal(t, 2, commits)
	})
}

// requireNothing requires that no byte was committed to a file, if it exists.
func requireNothing(t *testing.T, c *cluster, cl *client.Client, path string) {
	t.Helper()
	a, err := cl.Stat(c.ctx, path)
	if moraine.KindOf(err) == moraine.NotFound {
		return
	}
	require.NoError(t, err)
	require.Zero(t, a.Size())
}
