package metadata_test

import (
	"sync"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
)

// seenReads lets a test observe the service's reads of the state.
type seenReads struct {
	mu sync.Mutex
	// get is called with the key of each read; true hides the value.
	get func(key []byte) (hidden bool)
}

func (s *seenReads) set(get func(key []byte) (hidden bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.get = get
}

type seenStore struct {
	metadata.Store
	seen *seenReads
}

type seenReader struct {
	kvtx.Reader
	seen *seenReads
}

func (s seenStore) View(fn func(kvtx.Reader, uint64) error) error {
	return s.Store.View(func(r kvtx.Reader, applied uint64) error { return fn(seenReader{r, s.seen}, applied) })
}

func (r seenReader) Get(key []byte) ([]byte, bool, error) {
	r.seen.mu.Lock()
	get := r.seen.get
	r.seen.mu.Unlock()
	if get != nil && get(key) {
		return nil, false, nil
	}
	return r.Reader.Get(key)
}

// bubbleSeen is bubble with observed reads of the state.
func bubbleSeen(t *testing.T, fn func(c *cluster, seen *seenReads)) {
	t.Helper()
	seen := &seenReads{}
	bubbleWith(t, func(_ *metadata.Config, deps *metadata.Deps) {
		open := deps.NewStore
		deps.NewStore = func(fsm metadata.FSM) (metadata.Store, error) {
			s, err := open(fsm)
			return seenStore{s, seen}, err
		}
	}, func(c *cluster) { fn(c, seen) })
}

// keyReader records the requested key.
type keyReader struct {
	kvtx.Reader
	key string
}

func (k *keyReader) Get(key []byte) ([]byte, bool, error) {
	k.key = string(key)
	return nil, false, nil
}

// stripeKey is the key of a stripe's record.
func stripeKey(id uint64) string {
	var k keyReader
	_, _ = fleet.StripeByID(state.New(0).View(&k), moraine.StripeID(id))
	return k.key
}
