package client_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client"
)

// TestFilesOfManyTables: a file written in many small steps can be overwritten, truncated and
// emptied like any other. The steps are a write and a flush each, from its end to its
// beginning, or a concatenation of many parts.
func TestFilesOfManyTables(t *testing.T) {
	const parts, size = 700, 1000
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
		for what, change := range map[string]func(c *cluster, h *client.Handle) []byte{
			"written over": func(c *cluster, h *client.Handle) []byte {
				fresh := bytesOf(5, parts*size)
				writeAt(c.t, c, h, fresh, 0)
				require.NoError(c.t, h.Flush(c.ctx))
				return fresh
			},
			"written over in the middle": func(c *cluster, h *client.Handle) []byte {
				fresh := bytesOf(5, (parts-3)*size)
				writeAt(c.t, c, h, fresh, 1500)
				require.NoError(c.t, h.Flush(c.ctx))
				out := append([]byte(nil), content...)
				copy(out[1500:], fresh)
				return out
			},
			"emptied": func(c *cluster, h *client.Handle) []byte {
				require.NoError(c.t, h.Truncate(c.ctx, 0))
				return nil
			},
			"truncated": func(c *cluster, h *client.Handle) []byte {
				require.NoError(c.t, h.Truncate(c.ctx, 350*size+7))
				return content[:350*size+7]
			},
			"truncated to a little": func(c *cluster, h *client.Handle) []byte {
				require.NoError(c.t, h.Truncate(c.ctx, 2*size+7))
				return content[:2*size+7]
			},
		} {
			t.Run(fmt.Sprint(how, ", ", what), func(t *testing.T) {
				inCluster(t, 3, func(c *cluster) {
					cl := c.dial("c1", config())
					defer cl.Close()
					h := begin(c, cl)
					want := change(c, h)
					requireContent(t, c, h, want)
					require.NoError(t, h.Close(c.ctx))
					require.Equal(t, sum(want), sum(read(t, c, cl, "/f")))
				})
			})
		}
	}
}
