package raftstore_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/raftstore"
	"github.com/morainefs/moraine/metadata/state/kvtx"
)

// Inspection shows a node's files without changing them. It finds a flipped bit with its entry, and
// shows what follows.
func TestInspect(t *testing.T) {
	g := newGroup(t, 1, nil)
	g.bootstrap()
	g.start("m1")
	for i := range 30 {
		g.propose(fmt.Sprintf("set key%02d %s", i, strings.Repeat("v", 200)))
	}
	require.NoError(t, g.halt("m1"))
	fsys := g.fs["m1"]
	entries := func() (commands, damaged []uint64) {
		t.Helper()
		require.NoError(t, raftstore.InspectLog(fsys, "/node", func(e raftstore.EntryInfo) error {
			switch {
			case e.Damage != nil:
				damaged = append(damaged, e.Index)
			case e.Kind == "command":
				commands = append(commands, e.Index)
			case e.Index == 1:
				require.Equal(t, []string{"m1=m1"}, e.Members)
			}
			return nil
		}))
		return commands, damaged
	}
	commands, damaged := entries()
	require.Len(t, commands, 30)
	require.Empty(t, damaged)
	names, err := fsys.List("/node/log")
	require.NoError(t, err)
	segment := ""
	for _, n := range names {
		if strings.HasSuffix(n, ".wal") {
			segment = "/node/log/" + n
			break
		}
	}
	p := readAll(t, fsys, segment)
	at := strings.Index(string(p), "key15")
	require.Positive(t, at)
	p[at] ^= 1
	writeAll(t, fsys, segment, p)
	left, damaged := entries()
	require.Len(t, damaged, 1)
	require.Equal(t, commands[15], damaged[0])
	require.Equal(t, commands[29], left[28], "the rest is shown")

	seen := 0
	require.NoError(t, raftstore.InspectState(fsys, "/node", func(r kvtx.Reader, applied uint64) error {
		require.Equal(t, commands[29], applied)
		return r.Scan([]byte{0}, nil, func(key, _ []byte) bool { seen++; return true })
	}))
	require.Equal(t, 30, seen)
	require.NoError(t, raftstore.InspectSnapshots(fsys, "/node", func(raftstore.SnapshotInfo) error { return nil }))
}

// Inspecting the state of a directory in which no server ran yet reports that.
func TestInspectStateOfADirectoryNeverStarted(t *testing.T) {
	g := newGroup(t, 1, nil)
	g.bootstrap()
	err := raftstore.InspectState(g.fs["m1"], "/node", func(kvtx.Reader, uint64) error { return nil })
	require.ErrorIs(t, err, moraine.NotFound)
	require.ErrorContains(t, err, "has no state yet")
}
