package client_test

import (
	"bytes"
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/memcluster"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	testObject = 77
	testPiece  = 256 << 10
)

// evict makes the service report that the file is in an object from offset from on, and gives
// every host the bucket.
func (c *cluster) evict(data []byte, from uint64) {
	for _, h := range c.Hosts {
		h.SetObjects(map[uint64][]byte{testObject: data})
	}
	c.OnMeta(evicted(uint64(len(data)), from))
}

// evicted is the hook that makes the service report it.
func evicted(size, from uint64) memcluster.MetaHook {
	return func(*wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
		return func(resp *wire.MetaResponse, err error) (*wire.MetaResponse, error) {
			if resp == nil {
				return resp, err
			}
			resp = proto.Clone(resp).(*wire.MetaResponse)
			for _, h := range resp.GetTopology().GetHosts() {
				h.Bucket = "s3://shed/prefix"
			}
			if r := resp.GetExtents(); r != nil {
				var kept []*wire.Extent
				for _, e := range r.Extents {
					if e.Offset < from {
						e.Length = min(e.Length, from-e.Offset)
						kept = append(kept, e)
					}
				}
				r.Extents = append(kept, &wire.Extent{Offset: from, Length: size - from, StripeOffset: from, Object: testObject})
				r.Objects = []*wire.Object{{Id: testObject, Bucket: "shed", Key: "prefix/f", Size: size, Piece: testPiece}}
			}
			return resp, err
		}, nil
	}
}

// served returns how many reads of pieces the hosts served, and fails if two of them served the
// same piece.
func (c *cluster) served() (n int, hosts map[string]bool) {
	owner, hosts := map[uint64]string{}, map[string]bool{}
	for _, h := range c.Hosts {
		for _, p := range h.Pieces() {
			n++
			hosts[h.ID] = true
			piece := p.Offset / testPiece
			require.Contains(c.t, []string{"", h.ID}, owner[piece], "two servers read one piece")
			owner[piece] = h.ID
		}
	}
	return n, hosts
}

// The client reads evicted ranges from the object, each piece through the same server for all
// clients, and the others from stripes.
func TestReadOfEvictedRanges(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		one, two := c.dial("c1", config()), c.dial("c2", config())
		defer one.Close()
		defer two.Close()
		data := bytesOf(1, 3_000_000)
		write(t, c, one, "/f", data, 1<<30, false)
		c.evict(data, 700_000)
		var wg sync.WaitGroup
		for _, cl := range []*client.Client{one, two, one} {
			wg.Go(func() { require.True(t, bytes.Equal(data, read(t, c, cl, "/f"))) })
		}
		wg.Wait()
		n, hosts := c.served()
		require.Greater(t, n, 2)
		require.Greater(t, len(hosts), 1, "the load spreads")
		require.EqualValues(t, c.inode(one, "/f"), c.pieceAsked().Inode)

		// A handle overwrites part of it, and reads both.
		h, err := one.Inodes().OpenHandle(c.ctx, c.inode(one, "/f"), client.HandleOptions{})
		require.NoError(t, err)
		over := bytesOf(2, 1000)
		writeAt(t, c, h, over, 1_000_000)
		copy(data[1_000_000:], over)
		requireContent(t, c, h, data)
		c.OnMeta(nil)
		require.NoError(t, h.Close(c.ctx))
	})
}

func (c *cluster) pieceAsked() *wire.GetPiece {
	for _, h := range c.Hosts {
		if pieces := h.Pieces(); len(pieces) > 0 {
			return pieces[0]
		}
	}
	return &wire.GetPiece{}
}

// The client skips servers that fail, lose or corrupt a piece. If all do, the read fails, and
// never returns other bytes.
func TestReadOfEvictedRangesWithFaults(t *testing.T) {
	faults := map[string]func(h *memcluster.Host){
		"refused": func(h *memcluster.Host) {
			h.Before(func(context.Context, any) error { return errKind(moraine.Unavailable) })
		},
		"hangs":   damages["hangs"],
		"garbled": func(h *memcluster.Host) { h.Break(memcluster.Faults{Garble: true}) },
		"no such": func(h *memcluster.Host) { h.SetObjects(nil) },
		"gone":    func(h *memcluster.Host) { h.Kill() },
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			inCluster(t, 6, func(c *cluster) {
				cfg := config()
				cfg.ReadaheadBytes = -1
				cl := c.dial("c1", cfg)
				defer cl.Close()
				data := bytesOf(1, 600_000)
				write(t, c, cl, "/f", data, 1<<30, false)
				c.evict(data, 0)
				r, err := cl.OpenFile(c.ctx, "/f")
				require.NoError(t, err)
				defer r.Close()
				got := make([]byte, len(data))
				for i, h := range c.Hosts {
					fault(h)
					if i < 2 {
						clear(got)
						require.NoError(t, r.ReadRange(c.ctx, got, 0))
						require.True(t, bytes.Equal(data, got))
					}
				}
				err = r.ReadRange(c.ctx, got, 0)
				if name == "no such" || name == "garbled" {
					require.ErrorIs(t, err, moraine.Lost)
				} else {
					require.ErrorIs(t, err, moraine.Timeout)
				}
			})
		})
	}
}

// The client refuses an object extent that would make a reader return wrong bytes.
func TestBadObjectExtents(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		data := bytesOf(1, 10_000)
		write(t, c, cl, "/f", data, 1<<30, false)
		for name, change := range map[string]func(*wire.ExtentsReply){
			"past its end": func(r *wire.ExtentsReply) { r.Extents[0].StripeOffset = 1 },
			"no record":    func(r *wire.ExtentsReply) { r.Objects = nil },
			"no piece":     func(r *wire.ExtentsReply) { r.Objects[0].Piece = 0 },
		} {
			c.OnMeta(func(*wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
				return func(resp *wire.MetaResponse, err error) (*wire.MetaResponse, error) {
					if r := resp.GetExtents(); r != nil {
						resp = proto.Clone(resp).(*wire.MetaResponse)
						r = resp.GetExtents()
						r.Extents = []*wire.Extent{{Length: 10_000, Object: testObject}}
						r.Objects = []*wire.Object{{Id: testObject, Size: 10_000, Piece: testPiece}}
						change(r)
					}
					return resp, err
				}, nil
			})
			r, err := cl.OpenFile(c.ctx, "/f")
			require.NoError(t, err)
			require.ErrorIs(t, r.ReadRange(c.ctx, make([]byte, 10), 0), moraine.Corrupt, name)
			require.NoError(t, r.Close())
		}
		c.OnMeta(nil)
	})
}
