package client_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/transport/wire"
)

// padded adds names to a page of a directory, as if it had 19,000 more.
func padded(r *wire.ReadDirReply, after string) {
	const all, page = 19_000, 1000
	first := 0
	if _, err := fmt.Sscanf(after, "z%d", &first); err == nil {
		first++
	}
	for i := first; i < min(first+page, all); i++ {
		r.Entries = append(r.Entries, &wire.DirEntry{Name: fmt.Sprintf("z%06d", i), Attr: &wire.Attr{Inode: 1 << 50, Type: wire.FileType_FILE_TYPE_REGULAR}})
	}
	r.More = first+page < all
}

// The names of all delegated directories together are bounded: those used least recently are given back.
func TestNamesOfDelegatedDirectoriesAreBounded(t *testing.T) {
	inCluster(t, 3, func(c *cluster) {
		a, b := c.dial("a", delegating()), c.dial("b", config())
		defer a.Close()
		defer b.Close()
		_, err := b.Mkdir(c.ctx, "/many", 0o755)
		require.NoError(t, err)
		var given atomic.Bool
		c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
			if req.GetEndDelegation() != nil {
				given.Store(true)
			}
			after := req.GetReadDir().GetAfter()
			if req.GetReadDir().GetLimit() != 1000 {
				return nil, nil
			}
			return func(r *wire.MetaResponse, err error) (*wire.MetaResponse, error) {
				if l := r.GetReadDir(); err == nil && l != nil && (!l.More || strings.HasPrefix(after, "z")) {
					padded(l, after)
				}
				return r, err
			}, nil
		})
		for i := range 27 {
			require.False(t, given.Load() && i < 26, "directory %d", i)
			dir, err := b.Mkdir(c.ctx, fmt.Sprint("/many/", i), 0o755)
			require.NoError(t, err)
			c.delegate(a, dir.Inode())
		}
		time.Sleep(2 * time.Second)
		require.True(t, given.Load())
		require.Zero(t, a.Stats().DelegatedLost)
	})
}
