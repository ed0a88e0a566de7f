package chunkserver

import (
	"crypto/ed25519"
	"sync/atomic"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// metaState is what this server received from the metadata service. Only the start
// and then the heartbeat loop change it. Requests and the tasks of devices read each
// field by itself, without a lock.
type metaState struct {
	cfg   *Config
	deps  *Deps
	fleet *atomic.Pointer[fleet]

	// keys are the public keys that verify session tokens.
	keys atomic.Pointer[map[uint64]ed25519.PublicKey]
	// revoked are the certificates that are no longer accepted.
	revoked atomic.Pointer[transport.Revocations]
	// applied is the index of the metadata state at the answer to the last
	// heartbeat.
	applied atomic.Uint64
	// newestIncarnation is the newest incarnation of the metadata that this server
	// received.
	newestIncarnation atomic.Pointer[moraine.MarkedIncarnation]
}

// takeKeys takes over the public keys that verify tokens.
func (ms *metaState) takeKeys(keys []*wire.SigningKey) {
	m := make(map[uint64]ed25519.PublicKey, len(keys))
	for _, k := range keys {
		if len(k.PublicKey) == ed25519.PublicKeySize {
			m[k.Id] = k.PublicKey
		}
	}
	ms.keys.Store(&m)
}

// key finds the public key of session tokens; nil: it is unknown.
func (ms *metaState) key(id uint64) ed25519.PublicKey {
	if keys := ms.keys.Load(); keys != nil {
		return (*keys)[id]
	}
	return nil
}

// newest is the newest incarnation of the metadata that this server
// received; number 0 before the first.
func (ms *metaState) newest() moraine.MarkedIncarnation {
	if h := ms.newestIncarnation.Load(); h != nil {
		return *h
	}
	return moraine.MarkedIncarnation{}
}
