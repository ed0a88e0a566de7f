package transport_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// cachingShelf has the chunks of even stripes in memory. A GetChunk waits until it is released.
type cachingShelf struct {
	*shelf
	asked, released atomic.Int64
	longest         atomic.Uint64
	waits           chan struct{} // gets one for each GetChunk
	go1             chan struct{} // lets GetChunk go on
}

func newCachingShelf() *cachingShelf {
	return &cachingShelf{shelf: newShelf(), waits: make(chan struct{}, 64), go1: make(chan struct{})}
}

func (s *cachingShelf) GetCached(ctx context.Context, req *wire.GetChunk) (*wire.GetChunkReply, [][]byte, func(), bool) {
	s.asked.Add(1)
	s.longest.Store(max(s.longest.Load(), req.Length))
	if transport.PeerFrom(ctx) == nil {
		panic("no caller")
	}
	if req.Stripe == 666 {
		panic("rotten")
	}
	if req.Stripe%2 != 0 {
		return nil, nil, nil, false
	}
	data := s.bytes(req)
	return &wire.GetChunkReply{ChunkLength: 1 << 20, PayloadCrc: crc.Sum(data)}, [][]byte{data}, func() { s.released.Add(1) }, true
}

func (s *cachingShelf) bytes(req *wire.GetChunk) []byte {
	data := make([]byte, req.Length)
	for i := range data {
		data[i] = byte(req.Stripe + req.Offset + uint64(i))
	}
	return data
}

func (s *cachingShelf) GetChunk(ctx context.Context, req *wire.GetChunk) (*wire.GetChunkReply, [][]byte, func(), error) {
	s.waits <- struct{}{}
	select {
	case <-s.go1:
	case <-ctx.Done():
		return nil, nil, nil, ctx.Err()
	}
	data := s.bytes(req)
	return &wire.GetChunkReply{ChunkLength: 1 << 20, PayloadCrc: crc.Sum(data)}, [][]byte{data}, func() { s.released.Add(1) }, nil
}

// A chunkserver answers from memory on the connection's reader. A request that must wait, for a disk
// that hangs for example, delays none of the others on its connection, whatever their order.
func TestCachedChunksAreServedPastOneThatWaits(t *testing.T) {
	for _, mode := range []transport.Mode{transport.Secure, transport.CRC} {
		t.Run(string(mode), func(t *testing.T) {
			n, a, s := network{mode: mode}, newAuthority(t), newCachingShelf()
			server := n.serve(t, a, transport.RoleChunkserver, "n1", transport.HandlerForChunks(s))
			pool := n.poolWith(t, a, transport.PoolConfig{Role: transport.RoleClient, Node: "c1", BulkConnections: 1}, nil)
			chunks := pool.Chunks("n1", server.Addresses())
			get := func(stripe, off uint64, n int) error {
				dst := make([]byte, n)
				req := &wire.GetChunk{Stripe: stripe, Offset: off, Length: uint64(n)}
				reply, got, err := chunks.Get(t.Context(), req, dst, nil)
				switch {
				case err != nil:
					return err
				case got != n || string(dst) != string(s.bytes(req)) || reply.PayloadCrc != crc.Sum(dst):
					return fmt.Errorf("%d bytes of %d are other ones", got, n)
				}
				return nil
			}
			waiting := make(chan error, 2)
			go func() { waiting <- get(1, 0, 4096) }() // not in memory
			within(t, s.waits)
			go func() { waiting <- get(2, 0, 65<<10) }() // too long for the reader
			within(t, s.waits)
			for i := range 200 {
				require.NoError(t, get(2*uint64(i), uint64(i)*4096, 1+i*300))
			}
			require.EqualValues(t, 201, s.asked.Load(), "each was served from memory but the first")
			require.LessOrEqual(t, s.longest.Load(), uint64(64<<10))
			require.Empty(t, waiting)
			close(s.go1)
			require.NoError(t, within(t, waiting))
			require.NoError(t, within(t, waiting))
			require.Eventually(t, func() bool { return s.released.Load() == 202 }, 10*time.Second, time.Millisecond)

			// A panic ends its request, and not the connection.
			require.ErrorIs(t, get(666, 0, 4096), moraine.Internal)
			require.NoError(t, get(2, 0, 4096))
		})
	}
}
