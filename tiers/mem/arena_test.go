package mem_test

import (
	"context"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/bufpool"
	"github.com/morainefs/moraine/tiers/mem"
)

func openArena(t testing.TB, cfg mem.ArenaConfig) *mem.Arena {
	t.Helper()
	a, err := mem.OpenArena(cfg)
	require.NoError(t, err)
	t.Cleanup(a.Close)
	return a
}

// TestBuffersOfAnArenaDoNotOverlap lends and returns buffers at random, and each
// buffer keeps a mark of its own. At the end all of the memory is one run again.
func TestBuffersOfAnArenaDoNotOverlap(t *testing.T) {
	a := openArena(t, mem.ArenaConfig{Bytes: 40 * mib, Prefault: true})
	rng := rand.New(rand.NewPCG(1, 1))
	type lent struct {
		buf  *bufpool.Buffer
		mark byte
	}
	var all []lent
	check := func(l lent) {
		full := l.buf.Bytes()[:cap(l.buf.Bytes())]
		for i := 0; i < len(full); i += moraine.BlockSize {
			require.Equal(t, l.mark, full[i])
		}
		l.buf.Release()
	}
	for n := range 5000 {
		size := 1 + rng.IntN(1<<(8+rng.IntN(14)))
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // do not wait
		buf, err := a.Get(ctx, size)
		if err != nil {
			require.ErrorIs(t, err, moraine.Canceled)
			for range len(all) / 2 {
				i := rng.IntN(len(all))
				check(all[i])
				all[i] = all[len(all)-1]
				all = all[:len(all)-1]
			}
			continue
		}
		require.Len(t, buf.Bytes(), size)
		require.Zero(t, uintptr(unsafe.Pointer(unsafe.SliceData(buf.Bytes())))%moraine.BlockSize)
		require.Zero(t, cap(buf.Bytes())%moraine.BlockSize)
		full := buf.Bytes()[:cap(buf.Bytes())]
		for i := 0; i < len(full); i += moraine.BlockSize {
			full[i] = byte(n)
		}
		all = append(all, lent{buf, byte(n)})
	}
	for _, l := range all {
		check(l)
	}
	require.Zero(t, a.Stats().InUseBytes)
	one, err := a.Get(t.Context(), bufpool.MaxSize)
	require.NoError(t, err)
	two, err := a.Get(t.Context(), bufpool.MaxSize)
	require.NoError(t, err, "two of the largest fit in 40 MiB that nobody uses")
	one.Release()
	two.Release()
}

// TestTheArenaIsAHardLimit has more callers request buffers than there is memory.
// They wait in order, and the memory in use never exceeds the whole.
func TestTheArenaIsAHardLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := openArena(t, mem.ArenaConfig{Bytes: 20 * mib})
		var held []*bufpool.Buffer
		for range 5 {
			b, err := a.Get(t.Context(), 4*mib)
			require.NoError(t, err)
			held = append(held, b)
		}
		var mu sync.Mutex
		var order []int
		var wg sync.WaitGroup
		for n, size := range []int{8 * mib, mib, 2 * mib} {
			wg.Go(func() {
				b, err := a.Get(t.Context(), size)
				require.NoError(t, err)
				mu.Lock()
				order = append(order, n)
				mu.Unlock()
				b.Release()
			})
			synctest.Wait()
		}
		require.EqualValues(t, 3, a.Stats().Waiting)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := a.Get(ctx, mib)
		require.ErrorIs(t, err, moraine.Timeout)
		held[0].Release()
		synctest.Wait()
		require.Empty(t, order, "a waiter that needs less does not overtake")
		for _, b := range held[1:] {
			b.Release()
		}
		wg.Wait()
		require.Len(t, order, 3)
		require.Zero(t, a.Stats().InUseBytes)
		a.Close()
		_, err = a.Get(t.Context(), 1)
		require.ErrorIs(t, err, moraine.Unavailable)
	})
}

func TestWhatAnArenaRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		cfg  mem.ArenaConfig
		kind moraine.Kind
	}{
		"too little":            {mem.ArenaConfig{Bytes: mib}, moraine.InvalidArgument},
		"more than the machine": {mem.ArenaConfig{Bytes: 1 << 43, Prefault: true}, moraine.NoSpace},
		"no such path":          {mem.ArenaConfig{Bytes: 32 * mib, Path: "/nowhere/at/all"}, moraine.NotFound},
		"a plain file":          {mem.ArenaConfig{Bytes: 32 * mib, Path: os.Args[0]}, moraine.InvalidArgument},
		"a node out of range":   {mem.ArenaConfig{Bytes: 32 * mib, Node: 5000}, moraine.InvalidArgument},
	} {
		_, err := mem.OpenArena(c.cfg)
		require.ErrorIs(t, err, c.kind, name)
	}
}
