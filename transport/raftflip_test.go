package transport_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/transport"
)

// TestBitsOfTheLogThatChangeOnTheWay: metadata servers send entries, snapshots and
// votes of the log without checksums of their own on the wire. TLS protects them in
// each mode but insecure. The test flips one bit in transit, in either direction.
// The receiver gets the bytes sent before it, then an error, and no byte that was
// not sent.
func TestBitsOfTheLogThatChangeOnTheWay(t *testing.T) {
	seed := testseed.First(t)
	for _, n := range []network{{mode: transport.Secure}, {mode: transport.CRC}} {
		t.Run(n.String(), func(t *testing.T) {
			a, r := newAuthority(t), rand.New(rand.NewPCG(seed, 8))
			s := n.serve(t, a, transport.RoleMetadata, "m1", transport.HandlerForChunks(newShelf()))
			l := s.RaftListener()
			p := n.pool(t, a, transport.RoleMetadata, "m2")
			for try := range testseed.Of(24, 400) {
				flipOnTheLog(t, r, newProxy(t, s.Addresses()[0]), l, p, try%2 == 0)
			}
		})
	}
}

// flipOnTheLog sends bytes over a connection of the log, up or down, and flips one
// bit in transit.
func flipOnTheLog(t *testing.T, r *rand.Rand, x *proxy, l net.Listener, p *transport.Pool, up bool) {
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			accepted <- c
		}
	}()
	near, err := p.DialRaft(x.addr(), 5*time.Second)
	require.NoError(t, err)
	defer near.Close()
	far := <-accepted
	defer far.Close()
	from, to := near, far
	if !up {
		from, to = far, near
	}

	sent := random(100_000, r.Uint64())
	at := r.IntN(len(sent)) // not counting what TLS adds
	flipped := atomic.Bool{}
	bit := byte(1) << r.IntN(8)
	x.set(func(u bool, b []byte) []byte {
		if u == up && !flipped.Load() {
			if at < len(b) {
				b[at] ^= bit
				flipped.Store(true)
			}
			at -= len(b)
		}
		return b
	})
	require.NoError(t, to.SetReadDeadline(time.Now().Add(20*time.Second))) // limits a hang, which would be a bug
	require.NoError(t, from.SetWriteDeadline(time.Now().Add(20*time.Second)))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = from.Write(sent) // it may fail as the other end closes
	}()
	got, err := io.ReadAll(io.LimitReader(to, int64(len(sent))))
	require.True(t, flipped.Load())
	require.Error(t, err, "a bit of the log changed on the way, and nothing was found")
	require.NotErrorIs(t, err, io.EOF)
	var timeout net.Error
	if errors.As(err, &timeout) {
		require.False(t, timeout.Timeout(), "the end that got it hangs")
	}
	require.Less(t, len(got), len(sent))
	require.True(t, bytes.HasPrefix(sent, got), "a byte was taken that was not sent")
	to.Close()
	<-done
}
