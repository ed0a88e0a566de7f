package client_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/crc"
)

// A read under crc.WithSums keeps the checksums of the blocks as they arrive, so that a restore need not
// read its bytes again for a digest.
func TestAReadKeepsTheSumsOfItsBlocks(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		data := bytesOf(7, 1_300_000)
		write(t, c, cl, "/f", data, 1<<30, false)
		r, err := cl.OpenFile(c.ctx, "/f")
		require.NoError(t, err)
		defer r.Close()

		missing := readWithSums(t, c, r, data, 0)
		require.Zero(t, missing, "blocks that did not arrive whole")
		// At another offset chunks cut the buffer's blocks: those have two requests each.
		require.Less(t, readWithSums(t, c, r, data, 100), crc.BlockCount(int64(len(data)))/8)

	})
}

// readWithSums reads the file from an offset on, and returns how many blocks have no checksum of their
// arrival.
func readWithSums(t *testing.T, c *cluster, r *client.Reader, data []byte, off int) int {
	t.Helper()
	dst := make([]byte, len(data)-off)
	sums := crc.NewSums(dst)
	require.NoError(t, r.ReadRange(crc.WithSums(c.ctx, sums), dst, int64(off)))
	require.True(t, bytes.Equal(data[off:], dst))
	missing := sums.Missing()
	require.True(t, slices.Equal(crc.Blocks(nil, dst), sums.Blocks()))
	return missing
}

// TestSumsOfARebuiltReadAreThoseOfItsBytes: the sums of a read that meets damage are those of the bytes that
// it returns, not of the damaged ones that arrived first.
func TestSumsOfARebuiltReadAreThoseOfItsBytes(t *testing.T) {
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			inCluster(t, 6, func(c *cluster) {
				cl := c.dial("c1", config())
				defer cl.Close()
				data := bytesOf(7, 300_000)
				write(t, c, cl, "/f", data, 1<<30, false)
				r, err := cl.OpenFile(c.ctx, "/f")
				require.NoError(t, err)
				defer r.Close()
				damage(c.Hosts[0])
				damage(c.Hosts[1])
				readWithSums(t, c, r, data, 0)
			})
		})
	}
}
