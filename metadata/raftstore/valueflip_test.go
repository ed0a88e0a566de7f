package raftstore_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata/raftstore"
	"github.com/morainefs/moraine/metadata/state/kvtx"
)

// flipState is a state of some pairs; a read of each returns the right value or an error.
type flipState struct {
	t     *testing.T
	db    *raftstore.StateForTest
	pairs map[string][]byte
	held  map[string][]byte // the very memory that the state keeps
	key   string            // whose value changes
}

func newFlipState(t *testing.T, rng *rand.Rand) *flipState {
	db, err := raftstore.OpenStateForTest(vfs.NewMem(1), 1<<20)
	require.NoError(t, err)
	f := &flipState{t: t, db: db, pairs: map[string][]byte{}, held: map[string][]byte{}}
	t.Cleanup(func() { _ = db.Close() }) // of a state that is damaged it may fail
	require.NoError(t, db.Apply(1, func(kv kvtx.KV) error {
		for i := range 40 {
			key, value := fmt.Sprintf("table/%02d", i), make([]byte, 1+rng.IntN(120))
			for j := range value {
				value[j] = byte(rng.Uint32())
			}
			f.pairs[key], f.held[key] = bytes.Clone(value), value
			if err := kv.Set([]byte(key), value); err != nil {
				return err
			}
		}
		return nil
	}))
	f.key = fmt.Sprintf("table/%02d", rng.IntN(40))
	return f
}

func (f *flipState) flipHeld(bit int) {
	p := f.held[f.key]
	bit %= 8 * len(p)
	p[bit/8] ^= 1 << (bit % 8)
}

// check compares what r shows with what was written, and returns its error.
func (f *flipState) check(r kvtx.Reader, scan bool) error {
	if !scan {
		value, ok, err := r.Get([]byte(f.key))
		if err == nil {
			require.True(f.t, ok)
			require.Equal(f.t, f.pairs[f.key], value, "a wrong value is served")
		}
		return err
	}
	return r.Scan([]byte("table/"), nil, func(key, value []byte) bool {
		require.Equal(f.t, f.pairs[string(key)], value, "a wrong value is served")
		return true
	})
}

// TestAValueThatChangesInMemoryIsNotServed flips a bit of a value in each place in a metadata
// server's memory that has one. A read that finds it is left to another server, and this one ends.
// An entry that finds it is not applied. Nothing of it reaches the disk.
func TestAValueThatChangesInMemoryIsNotServed(t *testing.T) {
	rounds := 8
	if os.Getenv("MORAINE_TEST_LONG") != "" {
		rounds = 400
	}
	spill := func(flush bool) func(f *flipState, bit int) {
		return func(f *flipState, bit int) {
			require.NoError(f.t, f.db.Spill(flush))
			f.db.Forget()
			require.NoError(f.t, f.db.FlipStored([]byte(f.key), bit))
		}
	}
	for where, flip := range map[string]func(f *flipState, bit int){
		"what was committed last": (*flipState).flipHeld,
		"the records": func(f *flipState, bit int) {
			require.NoError(f.t, f.db.Spill(false))
			f.flipHeld(bit)
		},
		"pebble's table in memory": spill(false),
		"pebble's cache of blocks": spill(true),
	} {
		for _, scan := range []bool{false, true} {
			if scan && where == "the records" {
				continue // a scan does not look there
			}
			t.Run(fmt.Sprintf("%s, scan %v", where, scan), func(t *testing.T) {
				for round := range rounds {
					seed := uint64(round)
					rng := rand.New(rand.NewPCG(seed, 5))
					f := newFlipState(t, rng)
					flip(f, int(rng.Uint32()>>1))
					err := f.db.Apply(2, func(kv kvtx.KV) error { return f.check(kv, scan) })
					require.ErrorIs(t, err, moraine.Corrupt, "seed %d", seed)
					require.NoError(t, f.db.Ended(), "ending the node is for who applies entries")
					err = f.db.View(func(r kvtx.Reader, _ uint64) error { return f.check(r, scan) })
					require.ErrorIs(t, err, moraine.Unavailable, "seed %d", seed)
					require.ErrorIs(t, f.db.Ended(), moraine.Corrupt)
					require.ErrorContains(t, f.db.Ended(), fmt.Sprintf("value of key %x", f.key))
				}
			})
		}
	}
}

// TestAValueThatChangesInMemoryIsNotWrittenToDisk: a value that flips after its commit and before
// it reaches the database ends the node; the log has it.
func TestAValueThatChangesInMemoryIsNotWrittenToDisk(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 5))
	f := newFlipState(t, rng)
	f.flipHeld(int(rng.Uint32() >> 1))
	require.ErrorIs(t, f.db.Spill(true), moraine.Corrupt)
}

func BenchmarkGetOfARecord(b *testing.B) {
	db, err := raftstore.OpenStateForTest(vfs.NewMem(1), 1<<20)
	require.NoError(b, err)
	defer db.Close()
	key := []byte("\x00\x00\x10inodenum")
	require.NoError(b, db.Apply(1, func(kv kvtx.KV) error { return kv.Set(key, make([]byte, 90)) }))
	require.NoError(b, db.Spill(false))
	require.NoError(b, db.View(func(r kvtx.Reader, _ uint64) error {
		for b.Loop() {
			if _, _, err := r.Get(key); err != nil {
				return err
			}
		}
		return nil
	}))
}

// BenchmarkValueSum measures what the checksum of a value adds to a read.
func BenchmarkValueSum(b *testing.B) {
	key, value := []byte("\x00\x00\x10inodenum"), make([]byte, 90)
	for b.Loop() {
		raftstore.ValueSum(key, value)
	}
}

func TestGoldenValue(t *testing.T) {
	key, value := []byte("\x00\x00\x10inodenum"), []byte("\x01value")
	golden(t, "value-v1.golden", raftstore.SealValue(nil, value, raftstore.ValueSum(key, value)))
}

// FuzzOpenValue: what pebble has for a key is a value with its checksum, or damaged.
func FuzzOpenValue(f *testing.F) {
	f.Add([]byte("key"), []byte("value"), uint16(3))
	f.Fuzz(func(t *testing.T, key, value []byte, bit uint16) {
		stored := raftstore.SealValue(nil, value, raftstore.ValueSum(key, value))
		got, _, err := raftstore.OpenValue(key, stored)
		require.NoError(t, err)
		require.True(t, bytes.Equal(value, got))
		at := int(bit) % (8 * len(stored))
		stored[at/8] ^= 1 << (at % 8)
		_, _, err = raftstore.OpenValue(key, stored)
		require.ErrorIs(t, err, moraine.Corrupt)
		_, _, err = raftstore.OpenValue(key, value) // whatever it is, it is no reason to panic
		_ = err
	})
}
