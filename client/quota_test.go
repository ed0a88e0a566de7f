package client_test

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/memcluster"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// admin opens a client with an administrator's certificate.
func (c *cluster) admin(cfg client.Config) *client.Client {
	c.t.Helper()
	return c.Dial(memcluster.Peer(transport.RoleAdmin, "admin"), cfg)
}

// A client that has written nothing yet knows of the quotas from the opening of its session. A
// command that copies one file knows nothing else.
func TestQuotaRefusesTheFirstWrite(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		admin := c.admin(config())
		defer admin.Close()
		early := c.dial("c1", config())
		defer early.Close()
		dir, err := admin.Mkdir(c.ctx, "/team", 0o777)
		require.NoError(t, err)
		require.NoError(t, admin.Quotas().Set(c.ctx, dir.Inode(), 1<<20, 0))
		late := c.dial("c2", config())
		defer late.Close()
		time.Sleep(6 * time.Second) // an existing session learns of it with a renewal

		for _, cl := range []*client.Client{late, early} {
			before := c.puts()
			f, err := cl.Create(c.ctx, "/team/f", client.CreateOptions{})
			require.NoError(t, err)
			_, err = f.Write(bytesOf(1, 2<<20))
			require.ErrorIs(t, err, moraine.QuotaExceeded)
			require.ErrorContains(t, err, "below /team: it has 0, and its quota is 1048576")
			require.NotContains(t, err.Error(), "inodes")
			f.Abort()

			write(t, c, cl, "/team/empty", nil, 1<<30, false)
			h, err := cl.Inodes().OpenHandle(c.ctx, c.inode(cl, "/team/empty"), client.HandleOptions{})
			require.NoError(t, err)
			_, err = h.WriteAt(c.ctx, bytesOf(1, 2<<20), 0)
			require.ErrorIs(t, err, moraine.QuotaExceeded)
			require.NoError(t, h.Close(c.ctx))
			require.NoError(t, cl.Remove(c.ctx, "/team/empty"))
			require.Equal(t, before, c.puts(), "no byte was sent")
		}
	})
}

// The client refuses a write that a quota forbids before it sends a byte. If several writers
// pass that check at once, the service enforces the quota.
func TestQuotaRefusesBeforeBytesAreSent(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		admin := c.admin(config())
		defer admin.Close()
		cl := c.dial("c1", config())
		defer cl.Close()
		dir, err := cl.Mkdir(c.ctx, "/team", 0o755)
		require.NoError(t, err)
		require.ErrorIs(t, cl.Quotas().Set(c.ctx, dir.Inode(), 1, 0), moraine.PermissionDenied)
		require.NoError(t, admin.Quotas().Set(c.ctx, dir.Inode(), 1_000_000, 3))

		write(t, c, cl, "/team/f", bytesOf(1, 900_000), 1<<30, false)
		before := c.puts()
		f, err := cl.Create(c.ctx, "/team/g", client.CreateOptions{})
		require.NoError(t, err)
		_, err = f.Write(bytesOf(2, 200_000))
		require.ErrorIs(t, err, moraine.QuotaExceeded)
		require.ErrorContains(t, err, "/team")
		f.Abort()
		require.Equal(t, before, c.puts(), "no byte was sent")

		h, err := cl.Inodes().OpenHandle(c.ctx, c.inode(cl, "/team/f"), client.HandleOptions{})
		require.NoError(t, err)
		_, err = h.WriteAt(c.ctx, bytesOf(3, 200_000), 850_000)
		require.ErrorIs(t, err, moraine.QuotaExceeded)
		_, err = h.WriteAt(c.ctx, bytesOf(3, 200_000), 0)
		require.NoError(t, err, "in place")
		require.NoError(t, h.Close(c.ctx))

		// Each of them fits at its beginning; one of them is too late.
		a, err := cl.Create(c.ctx, "/team/a", client.CreateOptions{})
		require.NoError(t, err)
		b, err := cl.Create(c.ctx, "/team/b", client.CreateOptions{})
		require.NoError(t, err)
		_, err = a.Write(bytesOf(4, 80_000))
		require.NoError(t, err)
		_, err = b.Write(bytesOf(5, 80_000))
		require.NoError(t, err)
		_, err = a.Commit(c.ctx)
		require.NoError(t, err)
		_, err = b.Commit(c.ctx)
		require.ErrorIs(t, err, moraine.QuotaExceeded)
		b.Abort()
		u, err := cl.Quotas().Usage(c.ctx, dir.Inode())
		require.NoError(t, err)
		require.EqualValues(t, 980_000, u.Usage.Bytes)
		require.EqualValues(t, 2, u.Usage.Inodes)
		require.EqualValues(t, 20_000, u.RoomBytes)

		// The next write can use freed room.
		require.NoError(t, cl.Remove(c.ctx, "/team/f"))
		time.Sleep(time.Second)
		write(t, c, cl, "/team/b", bytesOf(5, 500_000), 1<<30, false)

		j, err := admin.Quotas().Recount(c.ctx)
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			now, err := admin.Jobs().Get(c.ctx, j.ID)
			return err == nil && now.State == client.JobDone && now.Error == ""
		}, time.Minute, 100*time.Millisecond)
		for q, err := range cl.Quotas().List(c.ctx) {
			require.NoError(t, err)
			require.Equal(t, "/team", q.Path)
			require.EqualValues(t, 580_000, q.Bytes)
		}
	})
}

// A file that replaces another needs room only for the difference, even if the quota is nearly
// full. Without that room the client refuses it before it sends a byte.
func TestQuotaOfAFileThatReplacesAnother(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		admin := c.admin(config())
		defer admin.Close()
		dir, err := admin.Mkdir(c.ctx, "/team", 0o777)
		require.NoError(t, err)
		require.NoError(t, admin.Quotas().Set(c.ctx, dir.Inode(), 1_000_000, 1))
		cl := c.dial("c1", config())
		defer cl.Close()
		replace := func(seed uint64, size int) error {
			f, err := cl.Create(c.ctx, "/team/f", client.CreateOptions{Replace: true})
			require.NoError(t, err)
			defer f.Abort() // no effect after the commit
			for part := range slices.Chunk(bytesOf(seed, size), 100_000) {
				if _, err := f.Write(part); err != nil {
					return err
				}
			}
			_, err = f.Commit(c.ctx)
			return err
		}
		for n, size := range []int{900_000, 950_000, 1_000_000, 1_000_000, 600_000, 999_999} {
			require.NoError(t, replace(uint64(n), size))
			u, err := cl.Quotas().Usage(c.ctx, dir.Inode())
			require.NoError(t, err)
			require.EqualValues(t, size, u.Usage.Bytes)
			require.Equal(t, bytesOf(uint64(n), size), read(t, c, cl, "/team/f"))
		}
		before := c.puts()
		f, err := cl.Create(c.ctx, "/team/f", client.CreateOptions{Replace: true})
		require.NoError(t, err)
		_, err = f.Write(bytesOf(9, 1_000_001))
		require.ErrorIs(t, err, moraine.QuotaExceeded)
		f.Abort()
		require.Equal(t, before, c.puts(), "no byte was sent")
		require.ErrorIs(t, replace(9, 1_000_001), moraine.QuotaExceeded, "in parts, of which the first would fit")

		// Its size counts as of the last byte, not as of the first.
		f, err = cl.Create(c.ctx, "/team/f", client.CreateOptions{Replace: true})
		require.NoError(t, err)
		_, err = f.Write(bytesOf(7, 500_000))
		require.NoError(t, err)
		require.NoError(t, replace(8, 100_000))
		time.Sleep(time.Second)
		_, err = f.Write(bytesOf(7, 500_000))
		require.NoError(t, err)
		_, err = f.Commit(c.ctx)
		require.NoError(t, err)
	})
}

// If the service refuses one of several writes in one commit, only that one fails. At a full
// quota an overwrite succeeds beside a write that would grow the file.
func TestARefusedWriteTakesNoOtherWithIt(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		admin := c.admin(config())
		defer admin.Close()
		cl := c.dial("c1", config())
		defer cl.Close()
		dir, err := cl.Mkdir(c.ctx, "/team", 0o755)
		require.NoError(t, err)
		require.NoError(t, admin.Quotas().Set(c.ctx, dir.Inode(), 1_000_000, 0))
		old := bytesOf(1, 800_000)
		write(t, c, cl, "/team/f", old, 1<<30, false)
		h, err := cl.Inodes().OpenHandle(c.ctx, c.inode(cl, "/team/f"), client.HandleOptions{})
		require.NoError(t, err)

		var commits atomic.Int32
		goOn := make(chan struct{})
		c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
			if req.GetCommit() != nil {
				if commits.Add(1) == 1 { // what is sent meanwhile is committed in one step
					<-goOn
				}
			}
			return nil, nil
		})
		_, err = h.WriteAt(c.ctx, bytesOf(5, 1000), 400_000)
		require.NoError(t, err)
		synced := make(chan error, 2)
		go func() { synced <- h.Sync(c.ctx) }()
		time.Sleep(time.Second)
		inPlace := bytesOf(2, 10_000)
		_, err = h.WriteAt(c.ctx, inPlace, 0)
		require.NoError(t, err)
		_, err = h.WriteAt(c.ctx, bytesOf(3, 150_000), 800_000)
		require.NoError(t, err)
		go func() { synced <- h.Sync(c.ctx) }()
		time.Sleep(time.Second)
		require.EqualValues(t, 1, commits.Load())
		require.NoError(t, admin.Quotas().Set(c.ctx, dir.Inode(), 850_000, 0))
		close(goOn)
		errs := []error{<-synced, <-synced}
		require.True(t, errors.Is(errs[0], moraine.QuotaExceeded) != errors.Is(errs[1], moraine.QuotaExceeded), "%v", errs)
		c.OnMeta(nil)
		require.EqualValues(t, 4, commits.Load(), "one that was waited for, one of both, and one of each")
		require.NoError(t, h.Sync(c.ctx))
		require.NoError(t, h.Close(c.ctx))
		require.Equal(t, slices.Concat(inPlace, old[len(inPlace):400_000], bytesOf(5, 1000), old[401_000:]), read(t, c, cl, "/team/f"))
	})
}
