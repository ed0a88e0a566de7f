package transport

import (
	"crypto/rand"
	"crypto/tls"
	"sync"
	"time"
)

// keyTable holds the keys of control connections in mode crc, at most `most` of them, and at most
// a half of these of one certificate. A certificate with too many keys loses its own oldest one,
// whose caller gets Stale and makes another. A full table removes the oldest key of the certificate
// that has the most keys. So nobody loses a key to the holder of another certificate that has more.
type keyTable struct {
	most int

	mu   sync.Mutex // guards the fields below
	keys map[string]*tableKey
	of   map[principal][]string // the keys of each certificate, oldest first
}

type tableKey struct {
	key   []byte
	peer  Peer
	until time.Time
}

const (
	// maxKeys limits the table.
	maxKeys = 32 << 10
	// keyLife is how long a key can open connections.
	keyLife = 24 * time.Hour
)

func newKeyTable(most int) *keyTable {
	return &keyTable{most: most, keys: make(map[string]*tableKey), of: make(map[principal][]string)}
}

// add derives the key of a control connection and returns its id. full says that the peer's
// certificate has as many keys as it may have, so that its oldest one was removed.
func (t *keyTable) add(cs *tls.ConnectionState, peer *Peer, now time.Time) (id []byte, full bool, err error) {
	key, err := cs.ExportKeyingMaterial(keyLabel, nil, 32)
	if err != nil {
		return nil, false, err
	}
	id = make([]byte, 16)
	rand.Read(id) //nolint:errcheck // never fails
	until := now.Add(keyLife)
	if end := cs.PeerCertificates[0].NotAfter; end.Before(until) {
		until = end
	}
	holder := principalOf(peer)
	t.mu.Lock()
	defer t.mu.Unlock()
	if full = len(t.of[holder]) >= max(1, t.most/shareOfMost); full {
		t.removeOldest(holder)
	} else if len(t.keys) >= t.most {
		t.removeOldest(t.largest())
	}
	t.keys[string(id)] = &tableKey{key: key, peer: *peer, until: until}
	t.of[holder] = append(t.of[holder], string(id))
	return id, full, nil
}

// largest returns the certificate that has the most keys. The caller holds the mutex.
func (t *keyTable) largest() (largest principal) {
	most := 0
	for p, ids := range t.of {
		if len(ids) > most {
			largest, most = p, len(ids)
		}
	}
	return largest
}

// removeOldest removes the oldest key of a certificate. The caller holds the mutex.
func (t *keyTable) removeOldest(p principal) {
	ids := t.of[p]
	delete(t.keys, ids[0])
	if len(ids) == 1 {
		delete(t.of, p)
		return
	}
	t.of[p] = ids[1:]
}

// find returns a key and a copy of its peer, or nil if there is none.
func (t *keyTable) find(id []byte, now time.Time) ([]byte, *Peer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.keys[string(id)]
	if k == nil || now.After(k.until) {
		return nil, nil
	}
	peer := k.peer
	return k.key, &peer
}
