package fuse_test

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/stretchr/testify/require"
)

// asked counts the requests of a client by kind, except those that renew its
// session and its leases.
type asked struct {
	transport.Dialer
	mu sync.Mutex
	n  map[string]int
}

func (a *asked) over(d transport.Dialer) transport.Dialer { a.Dialer = d; return a }

func (a *asked) Metadata(addrs []string) transport.Metadata {
	return askedMetadata{a.Dialer.Metadata(addrs), a}
}

func (a *asked) take() map[string]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := a.n
	a.n = map[string]int{}
	return n
}

type askedMetadata struct {
	transport.Metadata
	a *asked
}

func (m askedMetadata) Do(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	switch req.Op.(type) {
	case *wire.MetaRequest_Leases, *wire.MetaRequest_RenewSession:
	default:
		m.a.mu.Lock()
		m.a.n[fmt.Sprintf("%T", req.Op)]++
		m.a.mu.Unlock()
	}
	return m.Metadata.Do(ctx, req)
}

// Repeated `ls -lR` and `find` on an unchanged tree send no request to the metadata
// service. A change by another mount is visible at once.
func TestAnUnchangedTreeIsWalkedWithoutRequests(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	count := &asked{n: map[string]int{}}
	one := mount(t, c, "c1", mountOptions{client: client.Config{CacheEntries: 10_000}, over: count.over})
	other := mount(t, c, "c2", mountOptions{client: client.Config{CacheEntries: 10_000}})
	for i := range 10 {
		dir := other.at(fmt.Sprintf("a/d%d", i))
		require.NoError(t, os.MkdirAll(dir, 0o755))
		for j := range 20 {
			require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(j)), []byte("x"), 0o644))
		}
		require.NoError(t, os.Symlink("0", filepath.Join(dir, "link")))
	}
	walk := func() (n int) {
		require.NoError(t, filepath.WalkDir(one.at("a"), func(path string, d fs.DirEntry, err error) error {
			require.NoError(t, err)
			n++
			info, err := os.Lstat(path)
			require.NoError(t, err)
			require.Equal(t, d.Type(), info.Mode().Type())
			if d.Type() == fs.ModeSymlink {
				_, err = os.Stat(path)
				require.NoError(t, err)
			}
			_, err = os.Lstat(filepath.Join(filepath.Dir(path), "none"))
			require.ErrorIs(t, err, fs.ErrNotExist)
			return nil
		}))
		return n
	}
	require.Equal(t, 1+10*22, walk())
	require.Eventually(t, func() bool { // the client has its leases
		walk()
		walk()
		return len(count.take()) == 0
	}, 20*time.Second, 10*time.Millisecond)
	count.take()
	for range 5 {
		walk()
	}
	require.Empty(t, count.take(), "requests for a tree that did not change")

	require.NoError(t, os.Remove(other.at("a/d3/7")))
	_, err := os.Lstat(one.at("a/d3/7"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoError(t, os.WriteFile(other.at("a/d3/8"), []byte("longer"), 0o644))
	info, err := os.Lstat(one.at("a/d3/8"))
	require.NoError(t, err)
	require.EqualValues(t, 6, info.Size())
	require.NoError(t, os.Rename(other.at("a/d4"), other.at("a/d4new")))
	require.Equal(t, 10*22, walk())
	require.NoError(t, os.WriteFile(one.at("a/d5/own"), []byte("own"), 0o600))
	require.Equal(t, 1+10*22, walk())
	got, err := os.ReadFile(other.at("a/d5/own"))
	require.NoError(t, err)
	require.Equal(t, "own", string(got))
}
