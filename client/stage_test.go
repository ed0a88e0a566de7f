package client_test

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
)

// staged records the CommitStage requests, and answers extents accordingly.
type staged struct {
	mu      sync.Mutex
	ops     []*wire.CommitStage
	refused error
}

// onStage replaces the service's part of staging.
func (c *cluster) onStage(data []byte, from uint64) *staged {
	c.evict(data, from)
	s := &staged{}
	extents := evicted(uint64(len(data)), from)
	c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
		if op := req.GetCommitStage(); op != nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.refused == nil {
				s.ops = append(s.ops, proto.Clone(op).(*wire.CommitStage))
			}
			refused := s.refused
			return func(*wire.MetaResponse, error) (*wire.MetaResponse, error) {
				return &wire.MetaResponse{Result: &wire.MetaResponse_Done{Done: &wire.Done{}}}, refused
			}, nil
		}
		return extents(req)
	})
	return s
}

// Staging covers exactly what is in the object, with stripes of the same bytes.
func TestStageRange(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		data := bytesOf(1, 2_000_000)
		write(t, c, cl, "/f", data, 1<<30, false)
		a, err := cl.Stat(c.ctx, "/f")
		require.NoError(t, err)
		const from = 700_000
		s := c.onStage(data, from)
		object := &wire.Object{Id: testObject}
		var paced atomic.Int64
		pace := func(_ context.Context, n int64) error { paced.Add(n); return nil }
		require.NoError(t, rawclient.Of(cl).StageRange(c.ctx, 5, 9, client.MessageOf(a), object, 0, 1_000_000, pace))
		require.NoError(t, rawclient.Of(cl).StageRange(c.ctx, 5, 9, client.MessageOf(a), object, 1_000_000, 64<<20, nil))
		moved := int64(0)
		for _, op := range s.ops {
			if op.Extents[0].Offset < 1_000_000 {
				w := op.Stripes[0]
				scheme := moraine.Scheme{K: uint8(w.Scheme.K), M: uint8(w.Scheme.M)}
				moved += int64(w.Length) + int64(scheme.Chunks())*scheme.ChunkLen(int64(w.Length))
			}
		}
		require.Equal(t, moved, paced.Load(), "what was got, and put with its parity")
		slices.SortFunc(s.ops, func(a, b *wire.CommitStage) int { return int(a.Extents[0].Offset) - int(b.Extents[0].Offset) })
		at := uint64(from)
		for _, op := range s.ops {
			require.EqualValues(t, []uint64{5, 9, uint64(a.Inode()), uint64(a.Generation()), testObject},
				[]uint64{op.Job, op.LeaseEpoch, op.Inode, op.Generation, op.Object})
			for i, e := range op.Extents {
				require.Equal(t, at, e.Offset)
				require.Equal(t, op.Stripes[i].Id, e.Stripe)
				require.Equal(t, op.Stripes[i].Length, e.Length)
				got := c.bytesOfStripe(op.Stripes[i])
				require.True(t, bytes.Equal(data[at:at+e.Length], got))
				at += e.Length
			}
		}
		require.EqualValues(t, len(data), at)
	})
}

// bytesOfStripe joins the data chunks of a stripe.
func (c *cluster) bytesOfStripe(s *wire.Stripe) []byte {
	var out []byte
	for i := range s.Scheme.K {
		for _, h := range c.Hosts {
			if ch := h.Chunk(moraine.ChunkID{Stripe: moraine.StripeID(s.Id), Index: uint8(i)}); ch != nil && h.Device() == s.Chunks[i].Device {
				out = append(out, ch.Data...)
			}
		}
	}
	return out[:s.Length]
}

// Staging that fails releases its resources and returns the reason. It never puts a piece that
// it could not read.
func TestStageRangeFails(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		data := bytesOf(1, 900_000)
		write(t, c, cl, "/f", data, 1<<30, false)
		a, err := cl.Stat(c.ctx, "/f")
		require.NoError(t, err)
		s := c.onStage(data, 0)
		object := &wire.Object{Id: testObject}
		s.refused = errKind(moraine.Fenced)
		require.ErrorIs(t, rawclient.Of(cl).StageRange(c.ctx, 5, 9, client.MessageOf(a), object, 0, 1<<30, nil), moraine.Fenced)
		s.refused = nil
		for _, h := range c.Hosts {
			h.Before(func(_ context.Context, req any) error {
				if _, piece := req.(*wire.GetPiece); piece {
					return errKind(moraine.Lost)
				}
				return nil
			})
		}
		before := c.puts()
		require.ErrorIs(t, rawclient.Of(cl).StageRange(c.ctx, 5, 9, client.MessageOf(a), object, 0, 1<<30, nil), moraine.Lost)
		require.Equal(t, before, c.puts())
		require.Empty(t, s.ops)
		next := proto.Clone(client.MessageOf(a)).(*wire.Attr)
		next.Generation++
		require.ErrorIs(t, rawclient.Of(cl).StageRange(c.ctx, 5, 9, next, object, 0, 1<<30, nil), moraine.Stale)
	})
}

// The client's patience bounds each staged stripe, also if the job has no deadline. A job whose
// chunkservers accept nothing ends, and another mover can take it.
func TestStagingEndsWithThePatience(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cfg := config()
		cfg.Patience = time.Minute
		cl := c.dial("c1", cfg)
		defer cl.Close()
		data := bytesOf(1, 900_000)
		write(t, c, cl, "/f", data, 1<<30, false)
		a, err := cl.Stat(c.ctx, "/f")
		require.NoError(t, err)
		c.onStage(data, 0)
		for _, h := range c.Hosts {
			h.Before(func(_ context.Context, req any) error {
				if _, put := req.(*wire.PutChunk); put {
					return errKind(moraine.Unavailable)
				}
				return nil
			})
		}
		job, stop := context.WithTimeout(c.ctx, time.Hour)
		defer stop()
		err = rawclient.Of(cl).StageRange(job, 5, 9, client.MessageOf(a), &wire.Object{Id: testObject}, 0, 1<<30, nil)
		require.Error(t, err)
		require.NoError(t, job.Err(), "it has ended with the job alone: %v", err)
	})
}
