package transport_test

import (
	"bytes"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// eavesdropper records what passes a proxy, in both directions.
type eavesdropper struct {
	mu   sync.Mutex
	seen [2]bytes.Buffer
}

func (e *eavesdropper) listen(up bool, p []byte) []byte {
	e.mu.Lock()
	defer e.mu.Unlock()
	if up {
		e.seen[0].Write(p)
	} else {
		e.seen[1].Write(p)
	}
	return p
}

// saw reports whether text passed unencrypted, to the server and from it.
func (e *eavesdropper) saw(text []byte) (up, down bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return bytes.Contains(e.seen[0].Bytes(), text), bytes.Contains(e.seen[1].Bytes(), text)
}

// A server in mode crc serves a caller in mode secure over TLS: none of the
// caller's data is unencrypted in transit. A caller in mode crc shows that the
// eavesdropper would have detected it.
func TestSecureCallerOfACRCServerIsEncrypted(t *testing.T) {
	for _, c := range []struct {
		mode transport.Mode
		saw  bool
	}{{transport.Secure, false}, {transport.CRC, true}} {
		t.Run(string(c.mode), func(t *testing.T) {
			a := newAuthority(t)
			s := network{mode: transport.CRC}.serve(t, a, transport.RoleChunkserver, "n1", transport.HandlerForChunks(newShelf()))
			x, e := newProxy(t, s.Addresses()[0]), &eavesdropper{}
			x.set(e.listen)
			ch := network{mode: c.mode}.pool(t, a, transport.RoleClient, "c1").Chunks("n1", []string{x.addr()})
			secret := bytes.Repeat([]byte("the weights of the model "), 1000)
			_, err := put(testContext(t), ch, 7, secret)
			require.NoError(t, err)
			got := make([]byte, len(secret))
			_, n, err := ch.Get(testContext(t), &wire.GetChunk{Stripe: 7, Length: uint64(len(got))}, got, nil)
			require.NoError(t, err)
			require.Equal(t, crc.Sum(secret), crc.Sum(got[:n]))
			up, down := e.saw(secret[:50])
			require.Equal(t, c.saw, up, "what is put passes in clear")
			require.Equal(t, c.saw, down, "what is got passes in clear")
		})
	}
}
