package client_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/transport/wire"
)

// counting counts the requests that match, from now on.
func (c *cluster) counting(match ...func(*wire.MetaRequest) bool) []atomic.Int64 {
	n := make([]atomic.Int64, len(match))
	c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
		for i, match := range match {
			if match(req) {
				n[i].Add(1)
			}
		}
		return nil, nil
	})
	return n
}

func isDelegate(req *wire.MetaRequest) bool { return req.GetDelegate().GetInode() != 0 }

// A directory that the client makes is delegated before its first entry.
func TestANewDirectoryIsDelegated(t *testing.T) {
	inCluster(t, 3, func(c *cluster) {
		a, b := c.dial("a", delegating()), c.dial("b", config())
		defer a.Close()
		defer b.Close()
		time.Sleep(time.Second) // by then the client trusts its leases
		dir, err := a.Mkdir(c.ctx, "/dir", 0o755)
		require.NoError(t, err)
		time.Sleep(time.Second)
		creates := c.counting(func(req *wire.MetaRequest) bool { return req.GetCreate() != nil })
		makeFiles(c, a, dir.Inode(), 0, 10)
		require.EqualValues(t, 10, a.Stats().DelegatedChanges)
		require.Zero(t, creates[0].Load())
		require.Equal(t, 10, countOf(c, b, dir.Inode()))
		require.Zero(t, a.Stats().DelegatedLost)
	})
}

// What stands against one new directory, or recalls it, ends the requests for others beside it for a while.
func TestNewDirectoriesThatAreNotDelegated(t *testing.T) {
	for name, prepare := range map[string]func(c *cluster, a, b *client.Client, top moraine.InodeID) error{
		"refused": func(c *cluster, a, b *client.Client, top moraine.InodeID) error {
			if err := b.Xattrs().Set(c.ctx, top, "system.posix_acl_default", defaultACL(), client.XattrAny); err != nil {
				return err
			}
			_, err := a.Inodes().Mkdir(c.ctx, top, "first", client.NodeOptions{Mode: 0o755, Exclusive: true})
			return err
		},
		"recalled": func(c *cluster, a, b *client.Client, top moraine.InodeID) error {
			first, err := a.Inodes().Mkdir(c.ctx, top, "first", client.NodeOptions{Mode: 0o755, Exclusive: true})
			if err != nil {
				return err
			}
			time.Sleep(time.Second)
			makeFiles(c, b, first.Inode(), 0, 1)
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			inCluster(t, 3, func(c *cluster) {
				a, b := c.dial("a", delegating()), c.dial("b", config())
				defer a.Close()
				defer b.Close()
				top, err := b.Mkdir(c.ctx, "/top", 0o755)
				require.NoError(t, err)
				time.Sleep(time.Second) // the client has the standing of the leases
				asked := &c.counting(isDelegate)[0]
				require.NoError(t, prepare(c, a, b, top.Inode()))
				time.Sleep(time.Second)
				require.EqualValues(t, 1, asked.Load())
				for i := range 4 {
					_, err := a.Inodes().Mkdir(c.ctx, top.Inode(), fmt.Sprint(i), client.NodeOptions{Mode: 0o755, Exclusive: true})
					require.NoError(t, err)
					time.Sleep(2 * time.Second)
				}
				require.EqualValues(t, 1, asked.Load())
				time.Sleep(10 * time.Second)
				last, err := a.Inodes().Mkdir(c.ctx, top.Inode(), "last", client.NodeOptions{Mode: 0o755, Exclusive: true})
				require.NoError(t, err)
				time.Sleep(time.Second)
				require.EqualValues(t, 2, asked.Load())
				makeFiles(c, a, last.Inode(), 0, 3)
				require.Equal(t, 3, countOf(c, b, last.Inode()))
			})
		})
	}
}

// A directory that is removed while the client asks for it leaves nothing behind.
func TestANewDirectoryIsRemovedAtOnce(t *testing.T) {
	inCluster(t, 3, func(c *cluster) {
		a, b := c.dial("a", delegating()), c.dial("b", config())
		defer a.Close()
		defer b.Close()
		top, err := b.Mkdir(c.ctx, "/top", 0o755)
		require.NoError(t, err)
		for i := range 20 {
			_, err := a.Inodes().Mkdir(c.ctx, top.Inode(), "d", client.NodeOptions{Mode: 0o755, Exclusive: true})
			require.NoError(t, err)
			time.Sleep(time.Duration(i) * 100 * time.Microsecond)
			_, err = a.Inodes().Remove(c.ctx, top.Inode(), "d", client.RemoveOptions{Directory: true})
			require.NoError(t, err)
		}
		require.Zero(t, countOf(c, b, top.Inode()))
		require.Zero(t, a.Stats().DelegatedLost)
	})
}

// The attributes of a new file whose content went to stripes are known without a request for a
// second: what a program sets on it is sent with later changes.
func TestAttributesOfANewLargeFileAreKnown(t *testing.T) {
	inDelegated(t, func(c *cluster, a, b *client.Client, dir moraine.InodeID) {
		counts := c.counting(func(req *wire.MetaRequest) bool { return req.GetSetAttr() != nil || req.GetGetAttr() != nil },
			func(req *wire.MetaRequest) bool { return req.GetCommit() != nil })
		asked, commits := &counts[0], &counts[1]
		f, err := a.Inodes().Create(c.ctx, dir, "large", client.NodeOptions{Mode: 0o644, Exclusive: true})
		require.NoError(t, err)
		h, err := a.Inodes().OpenHandle(c.ctx, f.Inode(), client.HandleOptions{})
		require.NoError(t, err)
		_, err = h.WriteAt(c.ctx, bytesOf(1, 3*moraine.MaxInline), 0)
		require.NoError(t, err)
		at := time.Unix(1_700_000_000, 5)
		_, err = a.Inodes().SetAttr(c.ctx, f.Inode(), client.SetAttr{ModTime: &at})
		require.NoError(t, err)
		_, err = a.Inodes().SetAttr(c.ctx, f.Inode(), client.SetAttr{Mode: new(uint32(0o600))})
		require.NoError(t, err)
		require.NoError(t, h.Close(c.ctx))
		mine, err := a.Inodes().Stat(c.ctx, f.Inode())
		require.NoError(t, err)
		require.Positive(t, commits.Load())
		require.Zero(t, asked.Load())
		require.EqualValues(t, 3*moraine.MaxInline, mine.Size())
		require.True(t, mine.ModTime().Equal(at))
		time.Sleep(2 * time.Second) // jobs of the service may change the level by then
		again, err := a.Inodes().Stat(c.ctx, f.Inode())
		require.NoError(t, err)
		require.Positive(t, asked.Load())
		theirs, err := b.Inodes().Lookup(c.ctx, dir, "large")
		require.NoError(t, err)
		require.Equal(t, shown(theirs, nil), shown(mine, nil))
		require.Equal(t, shown(theirs, nil), shown(again, nil))
		require.True(t, theirs.ModTime().Equal(mine.ModTime()))
		require.True(t, theirs.ChangeTime().Equal(mine.ChangeTime()))
	})
}

// What the client knows of a new large file is right, whatever becomes of the answers to its requests.
func TestAttributesOfANewLargeFileAfterFaults(t *testing.T) {
	isCommit := func(req *wire.MetaRequest) bool { return req.GetCommit() != nil }
	isSetAttr := func(req *wire.MetaRequest) bool { return req.GetSetAttr() != nil }
	for name, fault := range map[string]func(c *cluster){
		"lost commit": func(c *cluster) { c.OnMeta(loseReply(2, isCommit)) },
		"lost size":   func(c *cluster) { c.OnMeta(loseReply(2, isSetAttr)) },
		"lost batch":  func(c *cluster) { c.OnMeta(loseReply(3, isBatch)) },
		"new leader":  func(c *cluster) { c.elect("m2") },
	} {
		t.Run(name, func(t *testing.T) {
			inDelegated(t, func(c *cluster, a, b *client.Client, dir moraine.InodeID) {
				fault(c)
				p, q := &place{c.ctx, a.Inodes(), dir}, &place{c.ctx, b.Inodes(), dir}
				for i := range 5 {
					name := fmt.Sprint("f", i)
					f, err := a.Inodes().Create(c.ctx, dir, name, client.NodeOptions{Mode: 0o644, Exclusive: true})
					require.NoError(t, err)
					p.write(name, 0, bytesOf(uint64(i), 2*moraine.MaxInline))
					_, err = a.Inodes().SetAttr(c.ctx, f.Inode(), client.SetAttr{Mode: new(uint32(0o600))})
					require.NoError(t, err)
					_, err = a.Inodes().SetAttr(c.ctx, f.Inode(), client.SetAttr{Size: new(int64(100 + i))})
					require.NoError(t, err)
					p.write(name, 50, bytesOf(9, 3*moraine.MaxInline))
					mine := shown(p.stat(name))
					require.Contains(t, mine, fmt.Sprint("size ", 50+3*moraine.MaxInline))
					if i == 4 {
						require.Equal(t, shown(q.stat(name)), mine)
					}
				}
				require.NoError(t, a.Inodes().Sync(c.ctx, dir))
				require.Zero(t, a.Stats().DelegatedLost)
			})
		})
	}
}
