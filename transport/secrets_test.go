package transport_test

import (
	"bytes"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/transport"
)

// tap records what passes a proxy.
type tap struct {
	mu   sync.Mutex
	seen []byte
}

func (p *tap) on(x *proxy) {
	x.set(func(_ bool, b []byte) []byte {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.seen = append(p.seen, b...)
		return b
	})
}

func (p *tap) has(b []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return bytes.Contains(p.seen, b)
}

// TestNoTokenOnTheWire: an eavesdropper can read neither the token of a hello nor
// the one that replaces it. In mode crc it can read the bytes of a chunk.
func TestNoTokenOnTheWire(t *testing.T) {
	for _, mode := range []transport.Mode{transport.Secure, transport.CRC} {
		n := network{mode: mode}
		a, sh := newAuthority(t), newShelf()
		s := n.serve(t, a, transport.RoleChunkserver, "n1", transport.HandlerForChunks(sh))
		x := newProxy(t, s.Addresses()[0])
		var p tap
		p.on(x)
		pool := n.pool(t, a, transport.RoleClient, "c1")
		first, second := a.token(t, "c1", time.Hour), a.token(t, "c1", 2*time.Hour)
		pool.SetToken(first)
		c := pool.Chunks("n1", []string{x.addr()})
		data := bytes.Repeat([]byte("payload "), 1000)
		_, err := put(testContext(t), c, 1, data)
		require.NoError(t, err)
		pool.SetToken(second)
		eventually(t, func() error {
			if !pool.Shown() {
				return io.EOF
			}
			return nil
		})
		_, err = put(testContext(t), c, 1, data)
		require.NoError(t, err)
		require.Equal(t, mode == transport.CRC, p.has(data[:100]), "%s: the payload", mode)
		for what, token := range map[string][]byte{"of the hello": first, "that replaced it": second} {
			require.False(t, p.has(token[:40]), "%s: the token %s is on the wire", mode, what)
			require.False(t, p.has(token[len(token)-40:]), "%s: the signature of the token %s is on the wire", mode, what)
		}
	}
}

// TestTheLogIsEncrypted: an eavesdropper can read nothing of a connection of class
// Raft, also in mode crc. An unencrypted one is refused.
func TestTheLogIsEncrypted(t *testing.T) {
	for _, mode := range []transport.Mode{transport.Secure, transport.CRC} {
		n := network{mode: mode}
		a := newAuthority(t)
		s := n.serve(t, a, transport.RoleMetadata, "m1", transport.HandlerForMetadata(clerk(answer)))
		x := newProxy(t, s.Addresses()[0])
		var p tap
		p.on(x)
		nc, err := n.pool(t, a, transport.RoleMetadata, "m2").DialRaft(x.addr(), 0)
		require.NoError(t, err)
		defer nc.Close()
		got, err := s.RaftListener().Accept()
		require.NoError(t, err)
		defer got.Close()
		entry := []byte("an entry of the log with a key in it")
		_, err = nc.Write(entry)
		require.NoError(t, err)
		b := make([]byte, len(entry))
		_, err = io.ReadFull(got, b)
		require.NoError(t, err)
		require.Equal(t, entry, b)
		require.False(t, p.has(entry), "%s: the log is on the wire", mode)
	}
}
