package raftstore_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata/raftstore"
	"github.com/morainefs/moraine/metadata/state/kvtx"
)

// recordHistory[i] is the whole state after entry i; it is complete before that
// entry is applied.
type recordHistory []map[string]string

const recordKeys = 64

// recordKey is a key of the state at about entry i: a frequently used one, or one of a table among
// those used so far.
func recordKey(i uint64, random *rand.Rand) string {
	n := random.IntN(recordKeys)
	if n%2 == 0 {
		return fmt.Sprint("key", n)
	}
	return fmt.Sprintf("keytable-%02d/%d", random.Uint64N(1+i/16), n)
}

// check reads some keys and compares them with the state after entry index.
func (h recordHistory) check(r kvtx.Reader, index uint64, random *rand.Rand) error {
	for range 8 {
		key := recordKey(index, random)
		got, there, err := r.Get([]byte(key))
		if err != nil {
			return err
		}
		if want, should := h[index][key]; string(got) != want || there != should {
			return fmt.Errorf("after entry %d %s is %q (%v), want %q (%v)", index, key, got, there, want, should)
		}
	}
	return nil
}

// checkScan compares all keys with the state after entry index.
func (h recordHistory) checkScan(r kvtx.Reader, index uint64) error {
	got := map[string]string{}
	err := r.Scan([]byte("key"), []byte("kez"), func(key, value []byte) bool {
		got[string(key)] = string(value)
		return true
	})
	if err == nil && !maps.Equal(got, h[index]) {
		err = fmt.Errorf("after entry %d a scan shows %q, want %q", index, got, h[index])
	}
	return err
}

// next applies entry i: some random writes, each seen by the batch that made it.
func (h recordHistory) next(kv kvtx.KV, i uint64, random *rand.Rand) error {
	h[i] = maps.Clone(h[i-1])
	if err := h.check(kv, i, random); err != nil {
		return err
	}
	for range 1 + random.IntN(6) {
		key := recordKey(i, random)
		if random.IntN(4) == 0 {
			delete(h[i], key)
			if err := kv.Delete([]byte(key)); err != nil {
				return err
			}
			continue
		}
		set := kv.Set
		if _, there := h[i][key]; !there { // as the state machine does
			set = kv.(kvtx.Inserter).Insert
		}
		h[i][key] = fmt.Sprintf("%d-%0*d", i, random.IntN(64), 0)
		if random.IntN(32) == 0 { // too large to be kept
			h[i][key] = fmt.Sprintf("%09000d", i)
		}
		if err := set([]byte(key), []byte(h[i][key])); err != nil {
			return err
		}
	}
	if i%4 == 0 {
		if err := h.checkScan(kv, i); err != nil {
			return err
		}
		key := recordKey(i, random)
		h[i][key] = "written after a scan"
		if err := kv.Set([]byte(key), []byte(h[i][key])); err != nil {
			return err
		}
		if err := h.checkScan(kv, i); err != nil {
			return err
		}
	}
	return h.check(kv, i, random)
}

// A view shows each key as of the view's entry, whatever is read and written meanwhile and however
// small the cache is; so does a batch.
func TestRecordsAgreeWithTheStateOfTheView(t *testing.T) {
	for _, bytes := range []int64{1, 64 << 10, 64 << 20} {
		t.Run(fmt.Sprint(bytes), func(t *testing.T) {
			const readers = 4
			entries := testseed.Of(uint64(100), 1000)
			s, err := raftstore.OpenStateForTest(vfs.NewMem(1), bytes)
			require.NoError(t, err)
			defer func() { require.NoError(t, s.Close()) }()
			history := make(recordHistory, entries+1)
			history[0] = map[string]string{}
			var ended atomic.Bool
			defer ended.Store(true)
			var wg sync.WaitGroup
			for r := range readers {
				wg.Go(func() {
					random := rand.New(rand.NewPCG(2, uint64(r)))
					for last := false; !last && !t.Failed(); {
						last = ended.Load()
						err := s.View(func(r kvtx.Reader, applied uint64) error {
							return errors.Join(history.check(r, applied, random), history.checkScan(r, applied))
						})
						if err != nil {
							t.Error(err)
						}
					}
				})
			}
			random := rand.New(rand.NewPCG(1, uint64(bytes)))
			for i := uint64(1); i <= entries && !t.Failed(); i++ {
				require.NoError(t, s.Apply(i, func(kv kvtx.KV) error { return history.next(kv, i, random) }))
			}
			ended.Store(true)
			wg.Wait()
		})
	}
}

// The state of a closed store is completely on disk, with the index of its last entry. After a
// power cut the disk has the state after an earlier entry, with its index.
func TestWhatIsGatheredComesToTheDisk(t *testing.T) {
	for _, seed := range testseed.Seeds(t, 16, 256) {
		random := rand.New(rand.NewPCG(3, seed))
		disk := vfs.NewMem(1)
		s, err := raftstore.OpenStateForTest(disk, 64<<10)
		require.NoError(t, err)
		entries := 1 + random.Uint64N(400)
		history := make(recordHistory, entries+1)
		history[0] = map[string]string{}
		for i := uint64(1); i <= entries; i++ {
			require.NoError(t, s.Apply(i, func(kv kvtx.KV) error { return history.next(kv, i, random) }))
		}
		reached := func(disk *vfs.Mem) (reached uint64) {
			s, err := raftstore.OpenStateForTest(disk, 64<<10)
			require.NoError(t, err)
			require.NoError(t, s.View(func(r kvtx.Reader, applied uint64) error {
				reached = applied
				return history.checkScan(r, applied)
			}))
			require.NoError(t, s.Close())
			return reached
		}
		require.LessOrEqual(t, reached(disk.Crash(random)), entries)
		require.NoError(t, s.Close())
		require.Equal(t, entries, reached(disk), "seed %d", seed)
	}
}

// The end of a table that a batch finds includes the batch's own writes.
func TestEndOfATableThatIsBeingWritten(t *testing.T) {
	s, err := raftstore.OpenStateForTest(vfs.NewMem(1), 1)
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	absent := func(kv kvtx.KV) {
		for i := range 8 {
			_, there, err := kv.Get(fmt.Appendf(nil, "keytable-00/absent-%d", i))
			require.NoError(t, err)
			require.False(t, there)
		}
	}
	fresh := []byte("keytable-00/fresh")
	require.NoError(t, s.Apply(1, func(kv kvtx.KV) error {
		require.NoError(t, kv.Set(fresh, []byte("v")))
		absent(kv)
		return nil
	}))
	require.NoError(t, s.Apply(2, func(kv kvtx.KV) error { // so that no record of it is kept
		for i := range 2000 {
			require.NoError(t, kv.Set(fmt.Append(nil, "other", i), nil))
		}
		return nil
	}))
	require.NoError(t, s.Apply(3, func(kv kvtx.KV) error {
		absent(kv)
		value, there, err := kv.Get(fresh)
		require.NoError(t, err)
		require.True(t, there)
		require.Equal(t, "v", string(value))
		return nil
	}))
}

// A state whose disk fails while it is closed reports that, and the stop continues.
func TestAStateIsClosedOnADiskThatFails(t *testing.T) {
	var failing atomic.Bool
	disk := vfs.NewFault(vfs.NewMem(1), func(op vfs.Op) error {
		if failing.Load() && (op.Kind == vfs.OpWrite || op.Kind == vfs.OpSync) {
			return syscall.ENOSPC
		}
		return nil
	})
	s, err := raftstore.OpenStateForTest(disk, 64<<10)
	require.NoError(t, err)
	for i := uint64(1); i <= 8; i++ {
		require.NoError(t, s.Apply(i, func(kv kvtx.KV) error { return kv.Set(fmt.Append(nil, "key", i), make([]byte, 8<<10)) }))
	}
	failing.Store(true)
	closed := make(chan error, 1)
	go func() {
		err := errors.New("pebble ended the goroutine")
		defer func() { closed <- err }()
		err = s.Close()
	}()
	select {
	case err := <-closed:
		require.Error(t, err)
	case <-time.After(time.Minute):
		t.Fatal("it is still being closed")
	}
}
