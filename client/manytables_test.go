package client_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client"
)

// tableBytes is what each table of a file of TestFilesOfManyTables has.
const tableBytes = 1000

// TestFilesOfManyTables: a file written in many small steps can be overwritten, truncated and
// emptied like any other. The steps are a write and a flush each, from its end to its
// beginning, or a concatenation of many parts. Each change is made to a clone of the file, and the
// last one to the file.
func TestFilesOfManyTables(t *testing.T) {
	const parts, size = 700, tableBytes
	content := bytesOf(4, parts*size)
	for how, begin := range map[string]func(c *cluster, cl *client.Client) *client.Handle{
		"written backwards": func(c *cluster, cl *client.Client) *client.Handle {
			h := openNew(c.t, c, cl, "f")
			for n := parts - 1; n >= 0; n-- {
				writeAt(c.t, c, h, content[n*size:(n+1)*size], int64(n*size))
				require.NoError(c.t, h.Flush(c.ctx))
			}
			return h
		},
		"put together": func(c *cluster, cl *client.Client) *client.Handle {
			h := openNew(c.t, c, cl, "src")
			writeAt(c.t, c, h, content, 0)
			require.NoError(c.t, h.Close(c.ctx))
			var ranges []client.InodeRange
			for n := range parts {
				ranges = append(ranges, client.InodeRange{Inode: h.Inode(), Offset: int64(n * size), Length: size})
			}
			a, err := cl.Concat(c.ctx, "/f", ranges, client.CreateOptions{})
			require.NoError(c.t, err)
			h, err = cl.Inodes().OpenHandle(c.ctx, a.Inode(), client.HandleOptions{})
			require.NoError(c.t, err)
			return h
		},
	} {
		t.Run(how, func(t *testing.T) {
			inCluster(t, 3, func(c *cluster) {
				cl := c.dial("c1", config())
				defer cl.Close()
				h := begin(c, cl)
				left := len(changesOfTables)
				for what, change := range changesOfTables {
					path, changed := "/f", h
					if left--; left > 0 { // the last change is of the file itself
						path = fmt.Sprint("/f", left)
						changed = cloned(c, cl, h, path)
					}
					want := change(c, changed, content)
					requireContent(t, c, changed, want)
					require.NoError(t, changed.Close(c.ctx))
					require.Equal(t, sum(want), sum(read(t, c, cl, path)), what)
				}
			})
		})
	}
}

// cloned opens a clone of a file, which has the same tables.
func cloned(c *cluster, cl *client.Client, h *client.Handle, path string) *client.Handle {
	c.t.Helper()
	a, err := cl.CloneFile(c.ctx, h.Inode(), path, client.CreateOptions{})
	require.NoError(c.t, err)
	out, err := cl.Inodes().OpenHandle(c.ctx, a.Inode(), client.HandleOptions{})
	require.NoError(c.t, err)
	return out
}

// changesOfTables change a file of TestFilesOfManyTables, and return its new content.
var changesOfTables = map[string]func(c *cluster, h *client.Handle, was []byte) []byte{
	"written over": func(c *cluster, h *client.Handle, was []byte) []byte {
		fresh := bytesOf(5, len(was))
		writeAt(c.t, c, h, fresh, 0)
		require.NoError(c.t, h.Flush(c.ctx))
		return fresh
	},
	"written over in the middle": func(c *cluster, h *client.Handle, was []byte) []byte {
		fresh := bytesOf(5, len(was)-3*tableBytes)
		writeAt(c.t, c, h, fresh, 1500)
		require.NoError(c.t, h.Flush(c.ctx))
		out := append([]byte(nil), was...)
		copy(out[1500:], fresh)
		return out
	},
	"emptied": func(c *cluster, h *client.Handle, _ []byte) []byte {
		require.NoError(c.t, h.Truncate(c.ctx, 0))
		return nil
	},
	"truncated": func(c *cluster, h *client.Handle, was []byte) []byte {
		require.NoError(c.t, h.Truncate(c.ctx, 350*tableBytes+7))
		return was[:350*tableBytes+7]
	},
	"truncated to a little": func(c *cluster, h *client.Handle, was []byte) []byte {
		require.NoError(c.t, h.Truncate(c.ctx, 2*tableBytes+7))
		return was[:2*tableBytes+7]
	},
}
