package transport_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/stretchr/testify/require"
)

// pipeShelf reads chunks into one of a few buffers and returns one, so that the
// benchmark measures the transport.
type pipeShelf struct {
	*shelf
	bufs chan []byte
	data []byte
}

func newPipeShelf(n int) *pipeShelf {
	s := &pipeShelf{shelf: newShelf(), bufs: make(chan []byte, 64), data: random(n, 1)}
	for range cap(s.bufs) {
		s.bufs <- make([]byte, n)
	}
	return s
}

func (s *pipeShelf) PutChunk(_ context.Context, req *wire.PutChunk, p transport.Payload) (*wire.PutChunkReply, error) {
	b := <-s.bufs
	err := p.ReadInto(b, nil)
	s.bufs <- b
	return &wire.PutChunkReply{Level: req.Level}, err
}

func (s *pipeShelf) GetChunk(_ context.Context, req *wire.GetChunk) (*wire.GetChunkReply, [][]byte, func(), error) {
	return &wire.GetChunkReply{}, [][]byte{s.data[:req.Length]}, nil, nil
}

// BenchmarkChunks measures requests in both directions, with both ends in this
// process, one and eight at a time.
func BenchmarkChunks(b *testing.B) {
	for _, n := range networks() {
		for _, size := range []int{4 << 10, 1 << 20} {
			for _, parallel := range []int{1, 8} {
				b.Run(fmt.Sprintf("%v/%dKiB/x%d", n, size>>10, parallel), func(b *testing.B) {
					a := newAuthority(b)
					s := n.serve(b, a, transport.RoleChunkserver, "n1", transport.HandlerForChunks(newPipeShelf(size)))
					c := n.pool(b, a, transport.RoleClient, "c1").Chunks("n1", s.Addresses())
					data := random(size, 2)
					b.Run("put", func(b *testing.B) {
						run(b, size, parallel, func([]byte) error {
							_, err := c.Put(b.Context(), &wire.PutChunk{Stripe: 1}, data)
							return err
						})
					})
					b.Run("get", func(b *testing.B) {
						run(b, size, parallel, func(dst []byte) error {
							_, _, err := c.Get(b.Context(), &wire.GetChunk{Stripe: 1, Length: uint64(size)}, dst, nil)
							return err
						})
					})
				})
			}
		}
	}
}

// BenchmarkMetadata measures small requests without a payload.
func BenchmarkMetadata(b *testing.B) {
	for _, n := range networks() {
		for _, parallel := range []int{1, 64} {
			b.Run(fmt.Sprintf("%v/x%d", n, parallel), func(b *testing.B) {
				a := newAuthority(b)
				s := n.serve(b, a, transport.RoleMetadata, "m1", transport.HandlerForMetadata(clerk(answer)))
				m := n.pool(b, a, transport.RoleChunkserver, "n1").Metadata(s.Addresses())
				run(b, 0, parallel, func([]byte) error {
					_, err := m.Do(b.Context(), &wire.MetaRequest{Session: 1})
					return err
				})
			})
		}
	}
}

func run(b *testing.B, size, parallel int, f func(dst []byte) error) {
	require.NoError(b, f(make([]byte, size))) // connect
	b.SetBytes(int64(size))
	b.ReportAllocs()
	work := make(chan struct{}, 1024)
	done := make(chan error, parallel)
	b.ResetTimer()
	for range parallel {
		go func() {
			dst := make([]byte, size)
			var err error
			for range work {
				if e := f(dst); e != nil {
					err = e
				}
			}
			done <- err
		}()
	}
	for range b.N {
		work <- struct{}{}
	}
	close(work)
	for range parallel {
		require.NoError(b, <-done)
	}
}
