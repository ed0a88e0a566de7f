package fuse_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// delegating is a mount to which directories are delegated.
func delegating() mountOptions { return mountOptions{client: client.Config{Delegation: true}} }

// delegate makes files in a directory of a mount until it is delegated.
func delegate(t *testing.T, m *mounted, dir string) {
	t.Helper()
	was := m.client.Stats().DelegatedChanges
	for i := range 200 {
		name := m.at(filepath.Join(dir, fmt.Sprint("delegate", i)))
		require.NoError(t, os.WriteFile(name, nil, 0o600))
		require.NoError(t, os.Remove(name))
		if m.client.Stats().DelegatedChanges > was {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	require.FailNow(t, "the directory is not delegated")
}

// look is what a program sees of a directory.
func look(t *testing.T, dir string) (out []string) {
	t.Helper()
	show := func(name string, st *syscall.Stat_t) {
		out = append(out, fmt.Sprintf("%s %d %o %d:%d links %d size %d mtime %v ctime %v", name, st.Ino, st.Mode, st.Uid, st.Gid, st.Nlink, st.Size, st.Mtim, st.Ctim))
	}
	var st syscall.Stat_t
	require.NoError(t, syscall.Lstat(dir, &st))
	show(".", &st)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		require.NoError(t, syscall.Lstat(filepath.Join(dir, e.Name()), &st))
		show(e.Name(), &st)
	}
	slices.Sort(out[1:])
	return out
}

// Another mount sees what was done in a delegated directory as soon as the call has returned.
func TestMountsSeeWhatIsDoneInADelegatedDirectory(t *testing.T) {
	c := startCluster(t, incluster.Options{})
	a, b := mount(t, c, "a", delegating()), mount(t, c, "b")
	r := rand.New(rand.NewPCG(seed(t), 1))
	changed := uint64(0)
	for round := range 12 {
		dir := fmt.Sprint("dir", round)
		require.NoError(t, os.Mkdir(a.at(dir), 0o755))
		delegate(t, a, dir)
		was := a.client.Stats().DelegatedChanges
		for range 1 + r.IntN(40) {
			change(t, r, a.at(dir))
		}
		changed += a.client.Stats().DelegatedChanges - was
		mine := look(t, a.at(dir))
		require.Equal(t, mine, look(t, b.at(dir)))
		for range 5 { // both change it
			change(t, r, a.at(dir))
			require.Equal(t, look(t, a.at(dir)), look(t, b.at(dir)))
			change(t, r, b.at(dir))
			require.Equal(t, look(t, b.at(dir)), look(t, a.at(dir)))
		}
	}
	require.Greater(t, changed, uint64(50))
	require.Zero(t, a.client.Stats().DelegatedLost)
}

// change makes a random change in a directory.
func change(t *testing.T, r *rand.Rand, dir string) {
	t.Helper()
	name, other := filepath.Join(dir, string(rune('a'+r.IntN(8)))), filepath.Join(dir, string(rune('a'+r.IntN(8))))
	switch r.IntN(8) {
	case 0, 1:
		if err := os.WriteFile(name, make([]byte, r.IntN(20_000)), 0o640); err != nil {
			require.ErrorIs(t, err, syscall.EISDIR)
		}
	case 2:
		if err := os.Mkdir(name, 0o2750); err != nil {
			require.ErrorIs(t, err, os.ErrExist)
		}
	case 3, 4:
		_ = os.Rename(name, other) // it may not exist, or replace nothing
	case 5:
		_ = os.Remove(name)
	case 6:
		_ = os.Symlink("target", name)
	case 7:
		_ = os.Chmod(name, os.FileMode(r.IntN(0o1000)))
	}
}

// fsync of a directory waits for what was done in it: batches that are held up, too.
func TestFsyncOfADelegatedDirectory(t *testing.T) {
	c := startCluster(t, incluster.Options{})
	var batches incluster.Nap
	opts := delegating()
	opts.over = func(d transport.Dialer) transport.Dialer {
		return incluster.Through(d, func(ctx context.Context, m transport.Metadata, req *wire.MetaRequest) (*wire.MetaResponse, error) {
			if req.GetBatch() != nil {
				batches.Sleep()
			}
			return m.Do(ctx, req)
		})
	}
	a := mount(t, c, "a", opts)
	b, err := c.Client(t.Context(), "b")
	require.NoError(t, err)
	defer b.Close()
	require.NoError(t, os.Mkdir(a.at("dir"), 0o755))
	delegate(t, a, "dir")
	batches.Begin()
	for i := range 100 {
		require.NoError(t, os.WriteFile(a.at(fmt.Sprint("dir/f", i)), nil, 0o600))
	}
	d, err := os.Open(a.at("dir"))
	require.NoError(t, err)
	defer d.Close()
	synced := make(chan error, 1)
	go func() { synced <- d.Sync() }()
	select {
	case <-synced:
		require.FailNow(t, "fsync does not wait")
	case <-time.After(100 * time.Millisecond):
	}
	batches.End()
	require.NoError(t, <-synced)
	c.Net.Isolate("a") // from here on it is as good as dead
	defer c.Net.Rejoin("a", "*")
	for i := range 100 {
		_, err := b.Stat(t.Context(), fmt.Sprint("/dir/f", i))
		require.NoError(t, err)
	}
}
