package fuse_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/incluster"
)

// A mount removes a tree of older files, and renames such files, with some requests for each directory. It
// sends none for each file.
func TestATreeIsRemovedWithFewRequests(t *testing.T) {
	const dirs, files = 20, 30
	c := startCluster(t, incluster.Options{})
	var mu sync.Mutex
	sent := map[string]int{}
	seen := &counted{see: func(kind string) {
		mu.Lock()
		defer mu.Unlock()
		sent[kind]++
	}}
	take := func() map[string]int {
		mu.Lock()
		defer mu.Unlock()
		was := maps.Clone(sent)
		clear(sent)
		delete(was, "leases")
		delete(was, "renew_session")
		return was
	}
	m := mount(t, c, "a", mountOptions{client: client.Config{Delegation: true}, over: seen.over})
	for i := range dirs {
		dir := m.at(fmt.Sprintf("tree/%d", i))
		require.NoError(t, os.MkdirAll(dir, 0o755))
		for j := range files {
			require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(j)), []byte("text"), 0o644))
		}
	}
	require.Eventually(t, func() bool { return take()["end_delegation"] > 0 && m.client.Stats().DelegatedLost == 0 }, time.Minute, 100*time.Millisecond)
	time.Sleep(time.Second) // all that is quiet is given back together, or soon after
	take()
	dir := m.at("tree/0")
	for j := range files {
		require.NoError(t, os.Rename(filepath.Join(dir, fmt.Sprint(j)), filepath.Join(dir, fmt.Sprint("renamed", j))))
	}
	renames := take()
	require.NoError(t, os.RemoveAll(m.at("tree")))
	removal := take()
	t.Log("renames:", renames, "removal:", removal)
	all := func(of map[string]int) (n int) {
		for _, k := range of {
			n += k
		}
		return n
	}
	require.Less(t, all(renames), files)
	require.Less(t, all(removal), dirs*8)
	require.Zero(t, m.client.Stats().DelegatedLost)
}
