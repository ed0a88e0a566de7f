package metadata_test

import (
	"bytes"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
)

// flipInLog flips a bit of the first occurrence of text in the log of /node.
func flipInLog(t *testing.T, fsys vfs.FS, text string) {
	t.Helper()
	names, err := fsys.List("/node/log")
	require.NoError(t, err)
	for _, name := range names {
		f, err := fsys.Open(filepath.Join("/node/log", name), vfs.Write)
		require.NoError(t, err)
		size, err := f.Size()
		require.NoError(t, err)
		p := make([]byte, size)
		_, err = f.ReadAt(p, 0)
		require.NoError(t, err)
		at := bytes.Index(p, []byte(text))
		if at >= 0 {
			_, err = f.WriteAt([]byte{p[at] ^ 4}, int64(at))
			require.NoError(t, err)
		}
		require.NoError(t, f.Close())
		if at >= 0 {
			return
		}
	}
	t.Fatalf("%q is not in the log", text)
}

// flipCluster is three servers with disks that a test may inspect.
func flipCluster(t *testing.T) (*raftCluster, map[string]*vfs.Mem) {
	disks := map[string]*vfs.Mem{}
	for i := range 3 {
		disks[fmt.Sprintf("m%d", i+1)] = vfs.NewMem(uint64(i))
	}
	c := newPatientRaftCluster(t, 3, steady, func(name string) (vfs.FS, string) { return disks[name], "/node" })
	return c, disks
}

// endsOfLog waits until the server name has stopped because of its log.
func endsOfLog(t *testing.T, c *raftCluster, name, says string) {
	t.Helper()
	select {
	case err := <-c.ends[name]:
		require.ErrorIs(t, err, moraine.Corrupt)
		require.ErrorContains(t, err, says)
	case <-time.After(30 * time.Second):
		t.Fatal("it goes on")
	}
	c.stop(name)
}

// A leader that finds a flipped bit in its log, while it reads entries for a server that was away,
// stops and sends nothing of it. The others continue with every entry.
func TestALeaderThatMeetsAFlippedBitOfItsLogEnds(t *testing.T) {
	c, disks := flipCluster(t)
	for _, name := range c.names { // they were started without
		c.stop(name)
		c.ends[name] = make(chan error, 1)
		c.start(name)
	}
	k := c.caller("c1")
	k.open()
	leader := c.leader()
	away := "m1"
	if leader == away {
		away = "m2"
	}
	c.stop(away)
	require.NoError(t, <-c.ends[away])
	const dirs = 700 // more than the leader keeps in memory
	for i := range dirs {
		_, err := k.mutate(mkdir(root, fmt.Sprintf("directory-%04d", i)))
		require.NoError(t, err)
	}
	require.Equal(t, leader, c.leader())
	flipInLog(t, disks[leader], "directory-0010")
	c.start(away)
	endsOfLog(t, c, leader, "on this disk")
	for i := range dirs {
		req := lookup(fmt.Sprintf("directory-%04d", i))
		req.Session = k.session
		_, err := k.do(req)
		require.NoError(t, err)
	}
	_, err := k.mutate(mkdir(root, "again"))
	require.NoError(t, err)
	for _, name := range c.names {
		if name != leader {
			require.NoError(t, c.servers[name].Healthy())
		}
	}

	// It does not come back with that log either, which does not affect the others.
	c.start(leader)
	endsOfLog(t, c, leader, "log")
	_, err = k.mutate(mkdir(root, "and again"))
	require.NoError(t, err)
}
