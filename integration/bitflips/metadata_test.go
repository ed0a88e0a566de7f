package bitflips_test

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/metadata/state/kvtx"
)

// flippedStore flips one bit of a value in the memory of a metadata server: its
// Reader returns the memory in which the server keeps the value.
type flippedStore struct {
	metadata.Store
	node string
	f    *memoryFlip
}

// memoryFlip selects the value and the bit.
type memoryFlip struct {
	mu   sync.Mutex
	in   []byte // the value contains these bytes; nil: none
	bit  int
	node string // the server whose memory it was
}

// View implements metadata.Store.
func (s flippedStore) View(fn func(r kvtx.Reader, applied uint64) error) error {
	return s.Store.View(func(r kvtx.Reader, applied uint64) error {
		seen := &seenReader{Reader: r}
		err := fn(seen, applied)
		s.f.mu.Lock()
		defer s.f.mu.Unlock()
		for _, value := range seen.values { // after the answer was made from them
			if s.f.in != nil && bytes.Contains(value, s.f.in) {
				flipBit(value, s.f.bit)
				s.f.in, s.f.node = nil, s.node
			}
		}
		return err
	})
}

type seenReader struct {
	kvtx.Reader
	values [][]byte
}

// Get implements state.Reader.
func (s *seenReader) Get(key []byte) ([]byte, bool, error) {
	value, ok, err := s.Reader.Get(key)
	s.values = append(s.values, value)
	return value, ok, err
}

// TestAValueThatChangesInTheLeadersMemoryIsNotServed: a bit of an inode flips in
// the leader's memory. The client that requests it again gets the right one from
// another server. The leader that detected it has ended, and has the right one
// after a restart.
func TestAValueThatChangesInTheLeadersMemoryIsNotServed(t *testing.T) {
	target := strings.Repeat("where it was ", 20)
	for try := range tries(1, 30) {
		rng, seed := rngOf(try)
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			flip := &memoryFlip{}
			c, err := incluster.Start(ctx, incluster.Options{Seed: 7, Metadata: 3, Chunkservers: -1, MemTableBytes: 4 << 20, SnapshotEntries: 5000,
				Store: func(node string, s metadata.Store) metadata.Store { return flippedStore{s, node, flip} }})
			require.NoError(t, err)
			defer func() { require.ErrorContains(t, c.Stop(), "checksum mismatch", "seed %d", seed) }()
			require.NoError(t, c.WaitReady(ctx))
			admin, err := c.Admin(ctx, "ops")
			require.NoError(t, err)
			defer func() { require.NoError(t, admin.Close()) }()
			_, err = admin.Symlink(ctx, target, "/link")
			require.NoError(t, err)
			look := func() string {
				attr, err := admin.Lstat(ctx, "/link")
				require.NoError(t, err)
				return attr.Target()
			}
			require.Equal(t, target, look())
			leader := c.Leader()
			flip.mu.Lock()
			flip.in, flip.bit = []byte(target), int(rng.Uint32()>>1)
			flip.mu.Unlock()
			for range 10 {
				require.Equal(t, target, look(), "a wrong value is served, seed %d", seed)
				time.Sleep(time.Second)
			}
			flip.mu.Lock()
			require.Equal(t, leader, flip.node, "it was the leader's memory, and has flipped")
			flip.mu.Unlock()
			require.NotEqual(t, leader, c.Leader())
			require.ErrorContains(t, c.Err(), leader+" ended")
			require.ErrorContains(t, c.Err(), "value of key")
			c.Kill(leader) // its process has ended
			require.NoError(t, c.Restart(leader))
			time.Sleep(10 * time.Second) // WaitReady reports that it had ended
			require.Equal(t, target, look())
			require.NoError(t, c.Check())
		})
	}
}
