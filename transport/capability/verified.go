package capability

import (
	"sync"

	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// maxVerified limits the capabilities that a Verifier caches, and maxRemembered
	// the length of one of them in bytes.
	maxVerified, maxRemembered = 8192, 4096
)

// Verifier verifies capabilities, each once while it is cached. Presented again
// byte for byte, a capability costs a look-up. Safe for concurrent use.
type Verifier struct {
	keys transport.Keys

	mu sync.RWMutex // guards the fields below
	// young and old hold the verified capabilities. An entry of old that is used
	// moves to young. When young is full it becomes old, and the previous old is
	// dropped.
	young, old map[string]*wire.CapabilityClaims
}

// NewVerifier returns a Verifier with the keys to verify with.
func NewVerifier(keys transport.Keys) *Verifier {
	return &Verifier{keys: keys, young: make(map[string]*wire.CapabilityClaims)}
}

// Verify is the package's Verify. The claims are shared: they must not be changed.
func (v *Verifier) Verify(b []byte) (*wire.CapabilityClaims, error) {
	v.mu.RLock()
	c, isYoung := v.young[string(b)]
	if !isYoung {
		c = v.old[string(b)]
	}
	v.mu.RUnlock()
	if isYoung {
		return c, nil
	}
	if c == nil {
		var err error
		if c, err = Verify(b, v.keys); err != nil || len(b) > maxRemembered {
			return c, err
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.young) >= maxVerified/2 {
		v.young, v.old = make(map[string]*wire.CapabilityClaims), v.young
	}
	v.young[string(b)] = c
	return c, nil
}
