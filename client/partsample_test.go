package client_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/memcluster"
)

// rebuilds makes a file of one stripe whose second chunk is lost. It gives fn a function that
// reads a part of that chunk n times.
func rebuilds(t *testing.T, cfg client.Config, chunk int, fn func(cl *client.Client, times func(n int))) {
	inCluster(t, 6, func(c *cluster) {
		cfg.ChunkBytes = int64(chunk)
		cl := c.dial("c1", cfg)
		defer cl.Close()
		data := bytesOf(7, 4*chunk)
		f, err := cl.Create(c.ctx, "/f", client.CreateOptions{Scheme: moraine.Scheme{K: 4, M: 2}})
		require.NoError(t, err)
		_, err = f.Write(bytes.Clone(data))
		require.NoError(t, err)
		_, err = f.Commit(c.ctx)
		require.NoError(t, err)
		for _, h := range c.Hosts {
			h.Change(func(id moraine.ChunkID, _ *memcluster.Chunk) bool { return id.Index != 1 })
		}
		r, err := cl.OpenFile(c.ctx, "/f")
		require.NoError(t, err)
		defer r.Close()
		fn(cl, func(n int) {
			for range n {
				buf, off := make([]byte, 4096), chunk+8192
				require.NoError(t, r.ReadRange(c.ctx, buf, int64(off)))
				require.True(t, bytes.Equal(data[off:off+len(buf)], buf))
			}
		})
	})
}

// requireParts requires how many parts were rebuilt so far, and how many were verified.
func requireParts(t *testing.T, cl *client.Client, rebuilt, verified int) {
	t.Helper()
	s := cl.Stats()
	require.EqualValues(t, rebuilt, s.PartsRebuilt, "rebuilt")
	require.EqualValues(t, verified, s.PartsVerified, "of %d rebuilt, verified", rebuilt)
}

// TestRebuiltPartsAreVerifiedAgainAndAgain: the client verifies the first rebuilt part, and
// from then on one in 256.
func TestRebuiltPartsAreVerifiedAgainAndAgain(t *testing.T) {
	rebuilds(t, config(), 64<<10, func(cl *client.Client, times func(n int)) {
		const sample = client.WholeSample
		times(1)
		requireParts(t, cl, 1, 1)
		times(sample - 1)
		requireParts(t, cl, sample, 1)
		times(1)
		requireParts(t, cl, sample+1, 2)
		times(sample - 1)
		requireParts(t, cl, 2*sample, 2)
		times(1)
		requireParts(t, cl, 2*sample+1, 3)
	})
}

// TestARebuiltPartThatCouldNotBeVerifiedIsNotCounted: a selected part without memory for its
// verification does not count as a sample. The client verifies another one soon.
func TestARebuiltPartThatCouldNotBeVerifiedIsNotCounted(t *testing.T) {
	rebuilds(t, config(), 64<<10, func(cl *client.Client, times func(n int)) {
		const retry = client.WholeRetry
		release := client.HoldHelpers(cl)
		times(1)
		requireParts(t, cl, 1, 0)
		times(retry)
		requireParts(t, cl, 1+retry, 0)
		release()
		times(retry - 1)
		requireParts(t, cl, 2*retry, 0)
		times(1)
		requireParts(t, cl, 2*retry+1, 1)
		times(client.WholeSample - 1)
		requireParts(t, cl, 2*retry+client.WholeSample, 1)
		times(1)
		requireParts(t, cl, 2*retry+client.WholeSample+1, 2)
	})
}

// TestRebuiltPartsAreVerifiedWithLittleMemory: this also works if the memory for it is smaller
// than one chunk from each device of the stripe.
func TestRebuiltPartsAreVerifiedWithLittleMemory(t *testing.T) {
	const chunk = 1 << 20
	cfg := config()
	cfg.MemoryBytes = client.MinMemory
	rebuilds(t, cfg, chunk, func(cl *client.Client, times func(n int)) {
		require.Less(t, client.HelpersSize(cl), int64(6*chunk))
		times(1)
		requireParts(t, cl, 1, 1)
	})
}
