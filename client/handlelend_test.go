package client_test

import (
	"bytes"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client"
)

// What a sequential reader's handle lends is what ReadAt reads, to the end of the file. It lends nothing
// that it did not fetch ahead, and nothing where the file has bytes that are not committed.
func TestAHandleLendsWhatItFetchedAhead(t *testing.T) {
	inCluster(t, 3, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		const piece = 100_000 // blocks begin within pieces
		want := bytesOf(7, 2<<20+333)
		f, err := cl.Inodes().CreateEmpty(c.ctx, cl.Root(), "f", 0o644)
		require.NoError(t, err)
		h, err := cl.Inodes().OpenHandle(c.ctx, f.Inode(), client.HandleOptions{})
		require.NoError(t, err)
		lendsNothing := func(off int64, why string) {
			_, release := h.Lend(c.ctx, off, piece)
			require.Nil(t, release, why)
		}
		_, err = h.WriteAt(c.ctx, want, 0)
		require.NoError(t, err)
		lendsNothing(0, "nothing is committed")
		require.NoError(t, h.Flush(c.ctx))

		lendsNothing(1<<20, "the first read is not sequential")
		lendsNothing(int64(len(want)), "it begins at the end")
		lendsNothing(-1, "there is no such offset")
		p := make([]byte, piece)
		lent := 0
		for off := int64(0); off < int64(len(want)); off += piece {
			end := min(off+piece, int64(len(want)))
			if parts, release := h.Lend(c.ctx, off, piece); release != nil {
				require.True(t, bytes.Equal(want[off:end], bytes.Join(parts, nil)))
				release()
				lent++
				continue
			}
			n, _ := h.ReadAt(c.ctx, p, off)
			require.True(t, bytes.Equal(want[off:end], p[:n]))
		}
		require.Greater(t, lent, 15, "of 21 pieces")

		last := int64(len(want)) - piece
		_, err = h.WriteAt(c.ctx, []byte("new"), last+10)
		require.NoError(t, err)
		lendsNothing(last, "it is not committed")
		require.NoError(t, h.Close(c.ctx))
		lendsNothing(0, "the handle is closed")
	})
}

// Lent bytes stay as they are when the file is changed and the handle closed.
func TestLentBytesOutliveTheHandle(t *testing.T) {
	inCluster(t, 3, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		want := bytesOf(8, 1<<20)
		f, err := cl.Inodes().CreateEmpty(c.ctx, cl.Root(), "f", 0o644)
		require.NoError(t, err)
		h, err := cl.Inodes().OpenHandle(c.ctx, f.Inode(), client.HandleOptions{})
		require.NoError(t, err)
		_, err = h.WriteAt(c.ctx, want, 0)
		require.NoError(t, err)
		require.NoError(t, h.Flush(c.ctx))
		p := make([]byte, 64<<10)
		for off := range int64(4) {
			_, err = h.ReadAt(c.ctx, p, off<<16)
			require.NoError(t, err)
		}
		parts, release := h.Lend(c.ctx, 4<<16, 64<<10)
		require.NotNil(t, release)
		_, err = h.WriteAt(c.ctx, bytesOf(9, 1<<20), 0)
		require.NoError(t, err)
		require.NoError(t, h.Close(c.ctx))
		synctest.Wait()
		require.True(t, bytes.Equal(want[4<<16:5<<16], bytes.Join(parts, nil)))
		release()
	})
}
