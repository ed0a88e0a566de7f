package raftstore_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata/raftstore"
)

// flippingDisk flips a bit of the first snapshot received on it, on its way to the medium.
type flippingDisk struct {
	vfs.FS
	flipped atomic.Bool
}

func (d *flippingDisk) Open(name string, flag vfs.OpenFlag) (vfs.File, error) {
	f, err := d.FS.Open(name, flag)
	if err != nil || !strings.Contains(name, "/snapshots/tmp-") || !strings.HasSuffix(name, ".sst") || flag&vfs.Create == 0 {
		return f, err
	}
	return &flippingFile{f, d}, nil
}

type flippingFile struct {
	vfs.File
	disk *flippingDisk
}

func (f *flippingFile) WriteAt(p []byte, off int64) (int, error) {
	if len(p) > 1000 && f.disk.flipped.CompareAndSwap(false, true) {
		p = append([]byte(nil), p...)
		p[len(p)/2] ^= 4
	}
	return f.File.WriteAt(p, off)
}

// TestFlippedBitOfAReceivedSnapshot flips one bit of a snapshot sent to a follower. The follower
// refuses it and never uses it as its state. It receives another, and continues with that.
func TestFlippedBitOfAReceivedSnapshot(t *testing.T) {
	g := newGroup(t, 3, func(_ string, cfg *raftstore.Config) {
		cfg.LogRetention = time.Nanosecond
		cfg.SnapshotEntries = 1 << 60 // when the test says
	})
	g.bootstrap()
	g.startAll()
	g.propose("set before x")
	away := g.names[0]
	if g.leader().name == away {
		away = g.names[1]
	}
	require.NoError(t, g.halt(away))
	for i := range 300 { // several segments
		g.propose(fmt.Sprintf("set k%d v%0500d", i, i))
	}
	for _, n := range g.nodes {
		eventually(t, "both have all", func() bool { return n.get("k299") != "" })
		require.NoError(t, n.store.TakeSnapshot())
	}
	disk := &flippingDisk{FS: g.fs[away]}
	g.fs[away] = disk
	n := g.start(away)
	<-n.store.Ready()
	eventually(t, "a bit is turned", disk.flipped.Load)
	g.propose("set meanwhile z")
	eventually(t, "it catches up", func() bool { return n.get("meanwhile") == "z" })
	for i := range 300 {
		require.Equal(t, fmt.Sprintf("v%0500d", i), n.get(fmt.Sprint("k", i)))
	}
	names, err := g.fs[away].List("/node/snapshots")
	require.NoError(t, err)
	require.Len(t, names, 1, "nothing of the damaged one is left")
}
