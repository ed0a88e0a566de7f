package client_test

import (
	"bytes"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/transport/wire"
)

// requests counts what clients send, by kind.
type requests struct {
	mu                              sync.Mutex
	names, delegates, lists, others int
}

func (r *requests) see(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case req.GetRemove() != nil || req.GetRename() != nil || req.GetCreate() != nil:
		r.names++
	case req.GetDelegate().GetInode() != 0:
		r.delegates++
	case req.GetReadDir() != nil:
		r.lists++
	case req.GetGetAttr() != nil || req.GetWalk() != nil || req.GetLookup() != nil:
		r.others++
	}
	return nil, nil
}

// take returns how many changes of names, delegations and reads of attributes were sent, and begins again.
func (r *requests) take() (names, delegates, attrs int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	names, delegates, attrs = r.names, r.delegates, r.others
	r.names, r.delegates, r.lists, r.others = 0, 0, 0, 0
	return names, delegates, attrs
}

// uncached is a client that has no cache leases, so that it keeps no directory from being delegated.
func uncached() client.Config {
	cfg := config()
	cfg.CacheEntries = -1
	return cfg
}

// older runs fn with two directories that have files of another client, and are then delegated to a.
func older(t *testing.T, fn func(c *cluster, a, b *client.Client, dirs [2]moraine.InodeID)) {
	t.Helper()
	inCluster(t, 3, func(c *cluster) {
		a, b := c.dial("a", delegating()), c.dial("b", uncached())
		defer a.Close()
		defer b.Close()
		var dirs [2]moraine.InodeID
		for i := range dirs {
			dir, err := b.Mkdir(c.ctx, fmt.Sprint("/dir", i), 0o755)
			require.NoError(t, err)
			dirs[i] = dir.Inode()
			makeFiles(c, b, dirs[i], 0, 40)
			c.delegate(a, dirs[i])
		}
		fn(c, a, b, dirs)
		require.Zero(t, a.Stats().DelegatedLost)
	})
}

// Older files of delegated directories are renamed and removed without a request, also between two
// such directories and over each other. The client answers their attributes as they are after that, and
// another client sees the changes when it looks.
func TestOlderFilesAreChangedLocally(t *testing.T) {
	older(t, func(c *cluster, a, b *client.Client, dirs [2]moraine.InodeID) {
		in, sent := a.Inodes(), &requests{}
		at := func(dir, file int) client.Entry {
			return client.Entry{Parent: dirs[dir], Name: fmt.Sprintf("f%06d", file)}
		}
		was, err := in.Lookup(c.ctx, dirs[0], at(0, 20).Name)
		require.NoError(t, err)
		c.OnMeta(sent.see)
		for i := range 10 { // in a directory, to another, and over others
			require.NoError(t, in.Rename(c.ctx, at(0, i), client.Entry{Parent: dirs[0], Name: fmt.Sprint("r", i)}, client.RenameOptions{}))
			require.NoError(t, in.Rename(c.ctx, at(0, 10+i), client.Entry{Parent: dirs[1], Name: fmt.Sprint("r", i)}, client.RenameOptions{}))
			require.NoError(t, in.Rename(c.ctx, at(0, 20+i), at(1, i), client.RenameOptions{}))
			_, err := in.Remove(c.ctx, dirs[0], at(0, 30+i).Name, client.RemoveOptions{})
			require.NoError(t, err)
			require.ErrorIs(t, in.Rename(c.ctx, at(0, 30+i), at(0, 99), client.RenameOptions{}), moraine.NotFound)
			require.ErrorIs(t, in.Rename(c.ctx, at(1, i), at(1, 10+i), client.RenameOptions{NoReplace: true}), moraine.Exists)
		}
		names, _, attrs := sent.take()
		require.Zero(t, names)
		require.Zero(t, attrs)
		now, err := in.Stat(c.ctx, was.Inode())
		require.NoError(t, err)
		require.Equal(t, dirs[1], now.Parent())
		require.Greater(t, now.ChangeTime(), was.ChangeTime())
		mine := (&place{c.ctx, in, dirs[0]}).tree(dirs[0], "")
		mine = append(mine, (&place{c.ctx, in, dirs[1]}).tree(dirs[1], "")...)
		his := (&place{c.ctx, b.Inodes(), dirs[0]}).tree(dirs[0], "")
		his = append(his, (&place{c.ctx, b.Inodes(), dirs[1]}).tree(dirs[1], "")...)
		require.Equal(t, his, mine)
		require.Len(t, mine, 1+10+1+50)
	})
}

// What others may change of an older file without the directory does not hinder a change that the client
// has answered: another name of it, its attributes, its content. The link count is right at once.
func TestOthersChangeOlderFiles(t *testing.T) {
	older(t, func(c *cluster, a, b *client.Client, dirs [2]moraine.InodeID) {
		other, err := b.Mkdir(c.ctx, "/other", 0o755)
		require.NoError(t, err)
		var files []moraine.InodeID
		for i := range 10 {
			f, err := a.Inodes().Lookup(c.ctx, dirs[0], fmt.Sprintf("f%06d", i))
			require.NoError(t, err)
			require.EqualValues(t, 1, f.Nlink())
			files = append(files, f.Inode())
		}
		for i, f := range files { // b knows the numbers
			switch i % 3 {
			case 0:
				_, err := b.Inodes().Link(c.ctx, f, other.Inode(), fmt.Sprint("link", i))
				require.NoError(t, err)
			case 1:
				_, err := b.Inodes().SetAttr(c.ctx, f, client.SetAttr{Mode: new(uint32(0o600))})
				require.NoError(t, err)
			case 2:
				require.NotContains(t, (&place{c.ctx, b.Inodes(), other.Inode()}).writeTo(f, []byte("later")), "err")
			}
		}
		for i, f := range files {
			name := fmt.Sprintf("f%06d", i)
			if i%2 == 0 {
				gone, err := a.Inodes().Remove(c.ctx, dirs[0], name, client.RemoveOptions{})
				require.NoError(t, err)
				require.Equal(t, f, gone)
			} else {
				require.NoError(t, a.Inodes().Rename(c.ctx, client.Entry{Parent: dirs[0], Name: name}, client.Entry{Parent: dirs[1], Name: "moved" + name}, client.RenameOptions{}))
			}
			links := 0
			if i%3 == 0 {
				links++
			}
			if i%2 != 0 {
				links++
			}
			for _, cl := range []*client.Client{a, b} {
				now, err := cl.Inodes().Stat(c.ctx, f)
				if links == 0 && moraine.KindOf(err) == moraine.NotFound {
					continue
				}
				require.NoError(t, err)
				require.EqualValues(t, links, now.Nlink(), "file %d", i)
				require.Equal(t, i%3 == 1, now.Mode() == 0o600, "file %d", i)
			}
		}
	})
}

// writeTo writes to a file by its number.
func (p *place) writeTo(inode moraine.InodeID, b []byte) string {
	h, err := p.in.OpenHandle(p.ctx, inode, client.HandleOptions{})
	if err == nil {
		_, err = h.WriteAt(p.ctx, b, 0)
		if cerr := h.Close(p.ctx); err == nil {
			err = cerr
		}
	}
	if err != nil {
		return "err " + err.Error()
	}
	return ""
}

// An older file that clients have open lives on after its removal was answered: for the client that
// removes it, and for another.
func TestARemovedOlderFileStaysOpen(t *testing.T) {
	older(t, func(c *cluster, a, b *client.Client, dirs [2]moraine.InodeID) {
		f, err := b.Inodes().Lookup(c.ctx, dirs[0], "f000000")
		require.NoError(t, err)
		want := bytesOf(7, 100_000)
		require.Empty(t, (&place{c.ctx, b.Inodes(), dirs[0]}).writeTo(f.Inode(), want))
		c.delegateSoon(a, dirs[0])
		time.Sleep(20 * time.Second)
		c.delegate(a, dirs[0])
		var handles []*client.Handle
		for _, cl := range []*client.Client{a, b} {
			h, err := cl.Inodes().OpenHandle(c.ctx, f.Inode(), client.HandleOptions{})
			require.NoError(t, err)
			handles = append(handles, h)
		}
		local := a.Stats().DelegatedChanges
		_, err = a.Inodes().Remove(c.ctx, dirs[0], "f000000", client.RemoveOptions{Keep: true})
		require.NoError(t, err)
		require.Equal(t, local+1, a.Stats().DelegatedChanges)
		time.Sleep(3 * time.Minute)
		for i, h := range handles {
			got := make([]byte, len(want))
			n, err := h.ReadAt(c.ctx, got, 0)
			require.NoError(t, err, "client %d", i)
			require.True(t, n == len(want) && bytes.Equal(want, got), "client %d", i)
			require.NoError(t, h.Close(c.ctx))
		}
	})
}

// A subdirectory in which another client makes something is not removed by the client that emptied it.
func TestAnOlderDirectoryIsRemovedOnlyIfItIsEmpty(t *testing.T) {
	inCluster(t, 3, func(c *cluster) {
		a, b := c.dial("a", delegating()), c.dial("b", uncached())
		defer a.Close()
		defer b.Close()
		top, err := b.Mkdir(c.ctx, "/top", 0o755)
		require.NoError(t, err)
		for _, name := range []string{"one", "two", "three"} {
			sub, err := b.Mkdir(c.ctx, "/top/"+name, 0o755)
			require.NoError(t, err)
			makeFiles(c, b, sub.Inode(), 0, 6)
		}
		c.delegate(a, top.Inode())
		remove := func(name string) error {
			sub, err := a.Inodes().Lookup(c.ctx, top.Inode(), name)
			require.NoError(t, err)
			_, err = a.Inodes().Remove(c.ctx, top.Inode(), name, client.RemoveOptions{Directory: true})
			require.ErrorIs(t, err, moraine.NotEmpty)
			for i := range 6 {
				_, err := a.Inodes().Remove(c.ctx, sub.Inode(), fmt.Sprintf("f%06d", i), client.RemoveOptions{})
				require.NoError(t, err)
				time.Sleep(time.Millisecond)
			}
			if name == "two" {
				makeFiles(c, b, sub.Inode(), 0, 1)
			}
			_, err = a.Inodes().Remove(c.ctx, top.Inode(), name, client.RemoveOptions{Directory: true})
			return err
		}
		require.NoError(t, remove("one"))
		require.ErrorIs(t, remove("two"), moraine.NotEmpty)
		require.NoError(t, remove("three"))
		require.Equal(t, 1, countOf(c, b, top.Inode()))
		require.Zero(t, a.Stats().DelegatedLost)
	})
}

// The removal of a tree asks for each directory once, before the first removal in it, and sends next to
// nothing else. It does so again after the client was quiet, without a pause.
func TestTheRemovalOfATreeAsksForEachDirectory(t *testing.T) {
	const many, each = 30, 12
	inCluster(t, 3, func(c *cluster) {
		a := c.dial("a", delegating())
		defer a.Close()
		for round := range 3 {
			name, b := fmt.Sprint("/tree", round), c.dial("b", uncached())
			top, err := b.Mkdir(c.ctx, name, 0o755)
			require.NoError(t, err)
			for i := range many {
				sub, err := b.Mkdir(c.ctx, fmt.Sprint(name, "/", i), 0o755)
				require.NoError(t, err)
				makeFiles(c, b, sub.Inode(), 0, each)
			}
			require.NoError(t, b.Close())
			time.Sleep(10 * time.Second) // a gives back what is quiet
			sent := &requests{}
			c.OnMeta(sent.see)
			began := time.Now()
			in := a.Inodes()
			for e, err := range in.ReadDir(c.ctx, top.Inode()) {
				require.NoError(t, err)
				for f, err := range in.ReadDir(c.ctx, e.Attr.Inode()) {
					require.NoError(t, err)
					_, err = in.Remove(c.ctx, e.Attr.Inode(), f.Name, client.RemoveOptions{})
					require.NoError(t, err)
				}
				_, err = in.Remove(c.ctx, top.Inode(), e.Name, client.RemoveOptions{Directory: true})
				require.NoError(t, err)
			}
			require.Less(t, time.Since(began), 5*time.Second)
			names, delegates, _ := sent.take()
			c.OnMeta(nil)
			require.LessOrEqual(t, delegates, many+2, "round %d", round)
			require.Less(t, names, 3*each, "round %d: %d delegations", round, delegates)
			require.Zero(t, countOf(c, a, top.Inode()))
		}
		require.Zero(t, a.Stats().DelegatedLost)
	})
}

// An older file in a directory below one with a trash goes there.
func TestARemovedOlderFileGoesToTheTrash(t *testing.T) {
	inCluster(t, 3, func(c *cluster) {
		a, b := c.dial("a", delegating()), c.dial("b", uncached())
		defer a.Close()
		defer b.Close()
		top, err := b.Mkdir(c.ctx, "/top", 0o755)
		require.NoError(t, err)
		require.NoError(t, b.Policies().Set(c.ctx, top.Inode(), client.Policy{Trash: time.Hour}))
		dir, err := b.Mkdir(c.ctx, "/top/dir", 0o755)
		require.NoError(t, err)
		makeFiles(c, b, dir.Inode(), 0, 3)
		c.delegate(a, dir.Inode())
		local := a.Stats().DelegatedChanges
		_, err = a.Inodes().Remove(c.ctx, dir.Inode(), "f000000", client.RemoveOptions{})
		require.NoError(t, err)
		require.NoError(t, a.Inodes().Rename(c.ctx, client.Entry{Parent: dir.Inode(), Name: "f000001"}, client.Entry{Parent: dir.Inode(), Name: "f000002"}, client.RenameOptions{}))
		require.Equal(t, local+2, a.Stats().DelegatedChanges)
		require.NoError(t, a.Inodes().Sync(c.ctx, dir.Inode()))
		var hours []string
		for e, err := range b.ReadDir(c.ctx, "/top/.trash") {
			require.NoError(t, err)
			hours = append(hours, e.Name)
		}
		require.Len(t, hours, 1)
		for _, name := range []string{"f000000", "f000002"} {
			_, err := b.Stat(c.ctx, "/top/.trash/"+hours[0]+"/dir/"+name)
			require.NoError(t, err, name)
		}
		require.Zero(t, a.Stats().DelegatedLost)
	})
}
