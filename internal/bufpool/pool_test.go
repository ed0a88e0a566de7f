package bufpool_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/bufpool"
)

const mib = 1 << 20

func TestBuffersAreAlignedAndAsLongAsAsked(t *testing.T) {
	p := bufpool.New(bufpool.Config{LimitBytes: 64 * mib})
	defer p.Close()
	for _, n := range []int{1, 4095, 4096, 4097, 5 * 4096, 9*4096 + 1, 256 << 10, mib, 4 * mib, 4*mib + 1,
		16 * mib, 16*mib + 4096, bufpool.MaxSize} {
		b, err := p.Get(t.Context(), n)
		require.NoError(t, err)
		require.Len(t, b.Bytes(), n)
		require.Equal(t, (n+4095)/4096*4096, cap(b.Bytes()))
		require.Zero(t, uintptr(unsafe.Pointer(unsafe.SliceData(b.Bytes())))%moraine.BlockSize)
		full := b.Bytes()[:cap(b.Bytes())]
		full[0], full[len(full)-1] = 1, 2
		require.LessOrEqual(t, p.Stats().InUseBytes, int64(n)*5/4+4*4096, "waste of %d", n)
		b.Release()
	}
	require.Zero(t, p.Stats().InUseBytes)
}

func TestEverySizeFitsItsBuffer(t *testing.T) {
	p := bufpool.New(bufpool.Config{LimitBytes: 64 * mib})
	defer p.Close()
	for blocks := 1; blocks*moraine.BlockSize <= bufpool.MaxSize; blocks++ {
		b := p.TryGet(blocks * moraine.BlockSize)
		require.NotNil(t, b, "%d blocks", blocks)
		require.GreaterOrEqual(t, p.Stats().InUseBytes, int64(blocks*moraine.BlockSize))
		b.Release()
	}
}

func TestSizesOutOfRangeAreRefused(t *testing.T) {
	p := bufpool.New(bufpool.Config{})
	for _, n := range []int{-1, 0, bufpool.MaxSize + 1} {
		_, err := p.Get(t.Context(), n)
		require.ErrorIs(t, err, moraine.TooLarge)
		require.Nil(t, p.TryGet(n))
	}
}

func TestReleasedTwicePanics(t *testing.T) {
	p := bufpool.New(bufpool.Config{})
	b, err := p.Get(t.Context(), 1)
	require.NoError(t, err)
	b.Release()
	require.PanicsWithValue(t, "bufpool: buffer released twice", b.Release)
}

func TestMemoryIsReusedAndStaysWithinTheLimit(t *testing.T) {
	p := bufpool.New(bufpool.Config{LimitBytes: 40 * mib})
	defer p.Close()
	for _, n := range []int{mib, 2 * mib, 4 * mib, 8 * mib, 16 * mib, 4096, 16 * mib, mib} {
		for range 3 {
			var lent []*bufpool.Buffer
			for {
				b := p.TryGet(n)
				if b == nil || len(lent) > 100 {
					if b != nil {
						b.Release()
					}
					break
				}
				lent = append(lent, b)
			}
			require.NotEmpty(t, lent)
			require.LessOrEqual(t, p.Stats().MappedBytes, int64(40*mib))
			for _, b := range lent {
				b.Release()
			}
		}
	}
	p.Close()
	require.Zero(t, p.Stats().MappedBytes)
}

func TestGetWaitsForTheBudgetInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := bufpool.New(bufpool.Config{LimitBytes: bufpool.MaxSize})
		defer p.Close()
		first, err := p.Get(t.Context(), bufpool.MaxSize)
		require.NoError(t, err)
		require.Nil(t, p.TryGet(1))

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = p.Get(ctx, 1)
		require.ErrorIs(t, err, moraine.Timeout)

		var mu sync.Mutex
		var order []int
		for i, n := range []int{bufpool.MaxSize, 1} { // the small one must not overtake
			go func() {
				b, err := p.Get(context.Background(), n)
				if err != nil {
					t.Errorf("get %d: %v", n, err)
					return
				}
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				b.Release()
			}()
			synctest.Wait()
		}
		require.Equal(t, int64(2), p.Stats().Waiting)
		first.Release()
		synctest.Wait()
		require.Equal(t, []int{0, 1}, order)
		require.Equal(t, uint64(3), p.Stats().Waits)
	})
}

func TestBuffersLentWhileThePoolClosesStayGood(t *testing.T) {
	p := bufpool.New(bufpool.Config{})
	b, err := p.Get(t.Context(), mib)
	require.NoError(t, err)
	p.Close()
	b.Bytes()[mib-1] = 7
	b.Release()
	require.Zero(t, p.Stats().MappedBytes)
}
