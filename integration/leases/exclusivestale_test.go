package leases_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// TestFirstContentUnderAnExclusiveLeaseIsNotResubmitted: a device that took the
// first content of a file made under an exclusive lease is lost before the service
// knows of both. Neither exists, the handle reports it, and the next file is made
// as usual.
func TestFirstContentUnderAnExclusiveLeaseIsNotResubmitted(t *testing.T) {
	inCluster(t, 1, func(ctx context.Context, c *incluster.Cluster) {
		var gone atomic.Bool
		m := newMaker(t, ctx, c, func(ctx context.Context, to transport.Metadata, req *wire.MetaRequest) (*wire.MetaResponse, error) {
			if req.GetBatch() != nil && gone.Load() {
				req = proto.CloneOf(req)
				for _, r := range req.GetBatch().Requests {
					for _, s := range r.GetCommit().GetStripes() {
						s.Chunks[0].Device = 1 << 20 // no device has that number
					}
				}
			}
			return to.Do(ctx, req)
		})
		defer m.Close()
		m.hold(t, ctx, "a")
		write := func(name string) error {
			later := &client.Later{}
			a, err := m.Inodes().Create(ctx, m.dir, name, client.NodeOptions{Mode: 0o640, Exclusive: true, Later: later})
			require.NoError(t, err)
			h, err := m.Inodes().OpenHandle(ctx, moraine.InodeID(a.Inode), client.HandleOptions{Later: later})
			require.NoError(t, err)
			_, err = h.WriteAt(ctx, []byte("content"), 0)
			require.NoError(t, err)
			err = h.Flush(ctx)
			_ = h.Close(ctx)
			return err
		}
		gone.Store(true)
		err := write("refused")
		gone.Store(false)
		require.Equal(t, moraine.IOError, moraine.KindOf(err), "%v", err)
		require.NotErrorIs(t, err, moraine.Stale)
		require.ErrorContains(t, err, "the file was not created and its first content is lost")
		_, err = m.Inodes().Lookup(ctx, m.dir, "refused")
		require.ErrorIs(t, err, moraine.NotFound)
		require.NoError(t, write("next"))
		a, err := m.Inodes().Lookup(ctx, m.dir, "next")
		require.NoError(t, err)
		require.EqualValues(t, 7, a.Size)
	})
}
