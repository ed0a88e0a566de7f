package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/memcluster"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/transport/wire"
)

func damageIO(context.Context, any) error { return errKind(moraine.IOError) }

// damages are the faults of a host's chunks.
var damages = map[string]func(h *memcluster.Host){
	"lost": func(h *memcluster.Host) { h.Change(func(moraine.ChunkID, *memcluster.Chunk) bool { return false }) },
	"flipped bit": func(h *memcluster.Host) {
		h.Change(func(_ moraine.ChunkID, ch *memcluster.Chunk) bool { ch.Data[len(ch.Data)/2] ^= 4; return true })
	},
	// Like an old or misplaced chunk: intact, but not the record's.
	"other chunk": func(h *memcluster.Host) {
		h.Change(func(_ moraine.ChunkID, ch *memcluster.Chunk) bool {
			ch.Data = bytesOf(99, len(ch.Data))
			ch.CRC = sum(ch.Data)
			return true
		})
	},
	"newer version": func(h *memcluster.Host) {
		h.Change(func(_ moraine.ChunkID, ch *memcluster.Chunk) bool {
			ch.Version, ch.Data = 7, bytesOf(98, len(ch.Data))
			ch.CRC = sum(ch.Data)
			return true
		})
	},
	"short": func(h *memcluster.Host) {
		h.Change(func(_ moraine.ChunkID, ch *memcluster.Chunk) bool {
			ch.Data = append(bytes.Clone(ch.Data), make([]byte, 4096)...)
			ch.CRC = sum(ch.Data)
			return true
		})
	},
	"gone": func(h *memcluster.Host) { h.Kill() },
	"hangs": func(h *memcluster.Host) {
		h.Before(func(ctx context.Context, _ any) error { <-ctx.Done(); return ctx.Err() })
	},
	"I/O error": func(h *memcluster.Host) { h.Before(damageIO) },
	"slow": func(h *memcluster.Host) {
		h.Before(func(context.Context, any) error { time.Sleep(2 * time.Second); return nil })
	},
}

// The loss of any two hosts, in any way, changes no byte that a read returns.
func TestReadWithTwoHostsDamaged(t *testing.T) {
	runs := testseed.Sample(t, 3)
	for name, damage := range damages {
		for first := range 6 {
			if !runs() {
				continue
			}
			t.Run(fmt.Sprintf("%s/%d", name, first), func(t *testing.T) {
				inCluster(t, 6, func(c *cluster) {
					cl := c.dial("c1", config())
					defer cl.Close()
					data, small := bytesOf(7, 1_300_000), bytesOf(8, 9_000)
					write(t, c, cl, "/f", data, 1<<30, false)
					write(t, c, cl, "/small", small, 1<<30, false)
					second := (first + 1 + first%3) % 6
					damage(c.Hosts[first])
					damage(c.Hosts[second])
					require.True(t, bytes.Equal(data, read(t, c, cl, "/f")))
					require.True(t, bytes.Equal(small, read(t, c, cl, "/small")))
					r, err := cl.OpenFile(c.ctx, "/f")
					require.NoError(t, err)
					defer r.Close()
					for off := int64(0); off+10_000 < r.Size(); off += 61_000 {
						buf := make([]byte, 10_000)
						require.NoError(t, r.ReadRange(c.ctx, buf, off))
						require.True(t, bytes.Equal(data[off:off+10_000], buf))
					}
					require.Positive(t, cl.Stats().StripesRebuilt)
				})
			})
		}
	}
}

// Only some reads wait for a host that hangs; then the client does not use it for a while. The
// client keeps using one that pauses for a moment.
func TestAHostThatHangsIsNotWaitedForByEachRead(t *testing.T) {
	for _, hangs := range []time.Duration{time.Hour, 150 * time.Millisecond} {
		t.Run(hangs.String(), func(t *testing.T) {
			inCluster(t, 6, func(c *cluster) {
				cl := c.dial("c1", config())
				defer cl.Close()
				data := bytesOf(7, 60*256<<10)
				write(t, c, cl, "/f", data, 1<<30, false)
				r, err := cl.OpenFile(c.ctx, "/f")
				require.NoError(t, err)
				defer r.Close()
				var asked, late atomic.Int64
				until := time.Now().Add(hangs)
				c.Hosts[2].Before(func(ctx context.Context, req any) error {
					if _, get := req.(*wire.GetChunk); !get {
						return nil
					}
					asked.Add(1)
					if left := time.Until(until); left > 0 {
						late.Add(1)
						select {
						case <-time.After(left):
						case <-ctx.Done():
						}
					}
					return ctx.Err()
				})
				stripe := make([]byte, 256<<10)
				for off := 0; off < len(data); off += len(stripe) {
					require.NoError(t, r.ReadRange(c.ctx, stripe, int64(off)))
					require.True(t, bytes.Equal(data[off:off+len(stripe)], stripe))
				}
				require.Positive(t, late.Load())
				if hangs == time.Hour {
					require.Less(t, asked.Load(), int64(12), "of 60 stripes, each of which has a chunk there")
				} else {
					require.Greater(t, asked.Load(), int64(30))
				}
			})
		})
	}
}

// More loss than the scheme tolerates is an error, never wrong bytes.
func TestReadWithThreeHostsDamaged(t *testing.T) {
	runs := testseed.Sample(t, 3)
	for name, damage := range damages {
		if name == "slow" || !runs() {
			continue // slow is no loss
		}
		t.Run(name, func(t *testing.T) {
			inCluster(t, 6, func(c *cluster) {
				cl := c.dial("c1", config())
				defer cl.Close()
				data := bytesOf(7, 1_300_000)
				write(t, c, cl, "/f", data, 1<<30, false)
				for _, h := range c.Hosts[2:5] {
					damage(h)
				}
				r, err := cl.OpenFile(c.ctx, "/f")
				require.NoError(t, err)
				defer r.Close()
				err = r.ReadRange(c.ctx, make([]byte, r.Size()), 0)
				require.Error(t, err)
				require.NotContains(t, err.Error(), "%!", "the text is whole, also where no server answered")
				require.Contains(t, []moraine.Kind{moraine.Lost, moraine.Timeout, moraine.Unavailable}, moraine.KindOf(err))
				if name == "lost" || name == "flipped bit" {
					require.ErrorIs(t, err, moraine.Lost)
				}
			})
		})
	}
}

// A range over more chunks than the stripe may lose, all of which are lost, fails with Lost,
// like a range over few of them. No source is left to wait for.
func TestReadOverChunksThatAreAllLost(t *testing.T) {
	for _, name := range []string{"lost", "flipped bit", "other chunk"} {
		t.Run(name, func(t *testing.T) {
			inCluster(t, 6, func(c *cluster) {
				cl := c.dial("c1", config())
				defer cl.Close()
				write(t, c, cl, "/f", bytesOf(7, 256<<10), 1<<30, false)
				for _, h := range c.Hosts {
					damages[name](h)
				}
				r, err := cl.OpenFile(c.ctx, "/f")
				require.NoError(t, err)
				defer r.Close()
				for chunks := 1; chunks <= 4; chunks++ {
					for off := 0; off+chunks<<16 <= 256<<10; off += 64 << 10 {
						err := r.ReadRange(c.ctx, make([]byte, chunks<<16), int64(off))
						require.ErrorIs(t, err, moraine.Lost, "%d chunks from %d on", chunks, off)
					}
				}
			})
		})
	}
}

// A stripe is not lost while a host that may come back has enough of its chunks. This holds
// even if the client had found earlier that the host does not answer.
func TestReadOfAHostThatMayComeBackIsNotLost(t *testing.T) {
	t.Run("it refuses", func(t *testing.T) {
		readOfAHostThatComesBack(t, (*memcluster.Host).Kill, (*memcluster.Host).Start)
	})
	t.Run("it hangs", func(t *testing.T) {
		readOfAHostThatComesBack(t, damages["hangs"], func(h *memcluster.Host) { h.Before(nil) })
	})
}

func readOfAHostThatComesBack(t *testing.T, goAway, comeBack func(*memcluster.Host)) {
	inCluster(t, 6, func(c *cluster) {
		cfg := config()
		cfg.Patience = time.Minute
		cl := c.dial("c1", cfg)
		defer cl.Close()
		data := bytesOf(7, 256<<10)
		write(t, c, cl, "/f", data, 1<<30, false)
		r, err := cl.OpenFile(c.ctx, "/f")
		require.NoError(t, err)
		defer r.Close()
		for range 100 { // so that the client may hedge late chunks
			require.NoError(t, r.ReadRange(c.ctx, make([]byte, 64<<10), 0))
		}
		var away *memcluster.Host
		for _, h := range c.Hosts {
			h.Change(func(id moraine.ChunkID, _ *memcluster.Chunk) bool {
				if id.Index == 0 {
					away = h
				}
				return id.Index != 2 && id.Index != 4 // these two are lost
			})
		}
		goAway(away)
		err = r.ReadRange(c.ctx, make([]byte, 64<<10), 0)
		require.Error(t, err)
		require.NotErrorIs(t, err, moraine.Lost)
		comeBack(away)
		got := make([]byte, len(data))
		require.NoError(t, r.ReadRange(c.ctx, got, 0))
		require.True(t, bytes.Equal(data, got))
	})
}

// The client reads bytes again that were corrupted in a server's memory or in transit. It does
// not treat the chunk as lost, rebuild it, or report it.
func TestBytesThatDoNotHaveTheirSumAreAskedForAgain(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		data := bytesOf(7, 1_300_000)
		write(t, c, cl, "/f", data, 1<<30, false)
		var reported atomic.Bool
		c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
			if req.GetReportBadChunks() != nil {
				reported.Store(true)
			}
			return nil, nil
		})
		for _, h := range c.Hosts {
			h.Break(memcluster.Faults{Rotten: true})
		}
		require.True(t, bytes.Equal(data, read(t, c, cl, "/f")))
		r, err := cl.OpenFile(c.ctx, "/f")
		require.NoError(t, err)
		defer r.Close()
		part := make([]byte, 5000)
		require.NoError(t, r.ReadRange(c.ctx, part, 70_001))
		require.True(t, bytes.Equal(data[70_001:75_001], part))
		time.Sleep(time.Second)
		synctest.Wait()
		require.False(t, reported.Load())
		require.Zero(t, cl.Stats().StripesRebuilt)
	})
}

// A reader reports each damage that it finds once, with its kind.
func TestBadChunksAreReported(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		write(t, c, cl, "/f", bytesOf(7, 4*64<<10), 1<<30, false)
		var reports []*wire.BadChunk
		c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
			if r := req.GetReportBadChunks(); r != nil {
				reports = append(reports, r.Chunks...)
			}
			return nil, nil
		})
		for _, h := range c.Hosts[:2] {
			damages["flipped bit"](h)
		}
		for range 5 {
			read(t, c, cl, "/f")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		require.NotEmpty(t, reports)
		require.LessOrEqual(t, len(reports), 2)
		for _, r := range reports {
			require.Equal(t, uint32(moraine.Corrupt), r.Kind)
			require.Contains(t, []uint32{c.Hosts[0].Device(), c.Hosts[1].Device()}, r.Device)
		}
	})
}

// A late device does not delay a read: the client reads other chunks, and they arrive first.
func TestHedgedRead(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		data := bytesOf(7, 4*64<<10)
		write(t, c, cl, "/f", data, 1<<30, false)
		r, err := cl.OpenFile(c.ctx, "/f")
		require.NoError(t, err)
		defer r.Close()
		for _, h := range c.Hosts[:2] {
			damages["slow"](h)
		}
		began := time.Now()
		got := make([]byte, len(data))
		require.NoError(t, r.ReadRange(c.ctx, got, 0))
		require.True(t, bytes.Equal(data, got))
		require.Less(t, time.Since(began), time.Second)
		if cl.Stats().ChunksHedged == 0 {
			require.Less(t, time.Since(began), 10*time.Millisecond) // both slow hosts hold parity
		}
	})
}

// If all devices are slower than the hedge time, a read still does not wait for one that hangs:
// it hedges once the others have arrived.
func TestHedgedReadOfSlowDevices(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		data := bytesOf(7, 4*64<<10)
		write(t, c, cl, "/f", data, 1<<30, false)
		r, err := cl.OpenFile(c.ctx, "/f")
		require.NoError(t, err)
		defer r.Close()
		for hangs := range c.Hosts { // one of them has the first chunk
			for i, h := range c.Hosts {
				h.Before(func(ctx context.Context, _ any) error {
					if i == hangs {
						<-ctx.Done()
						return ctx.Err()
					}
					time.Sleep(120 * time.Millisecond)
					return nil
				})
			}
			began := time.Now()
			got := make([]byte, len(data))
			require.NoError(t, r.ReadRange(c.ctx, got, 0))
			require.True(t, bytes.Equal(data, got))
			require.Less(t, time.Since(began), time.Second)
		}
		require.NotZero(t, cl.Stats().ChunksHedged)
	})
}

// A degraded read of whole stripes reads each remaining chunk once.
func TestRebuildReadsNothingTwice(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		data := bytesOf(7, 20*4*64<<10)
		write(t, c, cl, "/f", data, 1<<30, false)
		c.Hosts[0].Kill()
		time.Sleep(10 * time.Second) // the leader knows, and so does the topology
		read(t, c, cl, "/f")
		gotten := func() (n int64) {
			synctest.Wait()
			for _, h := range c.Hosts {
				n += h.Counts().GetBytes
			}
			return n
		}
		before := gotten()
		require.True(t, bytes.Equal(data, read(t, c, cl, "/f")))
		require.EqualValues(t, len(data), gotten()-before)
	})
}

// An open reader never mixes generations: it continues with the one it opened, and returns
// Stale when it cannot.
func TestReaderAndReplacement(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		old := bytesOf(1, 600_000)
		write(t, c, cl, "/f", old, 1<<30, false)
		r, err := cl.OpenFile(c.ctx, "/f")
		require.NoError(t, err)
		defer r.Close()
		got := make([]byte, len(old))
		require.NoError(t, r.ReadRange(c.ctx, got, 0))
		write(t, c, cl, "/f", bytesOf(2, 600_000), 1<<30, false)
		require.NoError(t, r.ReadRange(c.ctx, got, 0))
		require.True(t, bytes.Equal(old, got))
		second, err := cl.OpenFile(c.ctx, "/f")
		require.NoError(t, err)
		defer second.Close()
		h, err := cl.Inodes().OpenHandle(c.ctx, second.Attr().Inode(), client.HandleOptions{})
		require.NoError(t, err)
		writeAt(t, c, h, old, 0)
		require.NoError(t, h.Close(c.ctx))
		for _, h := range c.Hosts {
			damages["lost"](h)
		}
		err = second.ReadRange(c.ctx, got, 0) // a change in place takes the old bytes, and a reader does not keep them
		require.True(t, errors.Is(err, moraine.Stale) || errors.Is(err, moraine.NotFound), "%v", err)
	})
}

// A hole reads as zeros, and only a hole does.
func TestHoles(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		data := bytesOf(1, 500_000)
		write(t, c, cl, "/f", data, 1<<30, false)
		_, err := cl.SetAttr(c.ctx, "/f", client.SetAttr{Size: new(int64(300_000))})
		require.NoError(t, err)
		_, err = cl.SetAttr(c.ctx, "/f", client.SetAttr{Size: new(int64(800_000))})
		require.NoError(t, err)
		want := append(bytes.Clone(data[:300_000]), make([]byte, 500_000)...)
		require.True(t, bytes.Equal(want, read(t, c, cl, "/f")))
	})
}

// Canceled reads end soon and leave nothing behind.
func TestReadCanceled(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		data := bytesOf(7, 3_000_000)
		write(t, c, cl, "/f", data, 1<<30, false)
		for _, h := range c.Hosts {
			h.Before(func(context.Context, any) error { time.Sleep(30 * time.Millisecond); return nil })
		}
		c.Hosts[0].Before(func(ctx context.Context, _ any) error { <-ctx.Done(); return ctx.Err() })
		r, err := cl.OpenFile(c.ctx, "/f")
		require.NoError(t, err)
		for d := time.Millisecond; d < time.Second; d = d * 3 / 2 {
			ctx, cancel := context.WithTimeout(c.ctx, d)
			err := r.ReadRange(ctx, make([]byte, len(data)), 0)
			cancel()
			require.True(t, err == nil || errors.Is(err, moraine.Timeout), "%v", err)
			require.Zero(t, client.Held(cl))
		}
		require.NoError(t, r.Close())
	})
}
