package integration_test

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/devcluster"
)

// moraine watch prints the changes by other processes, one object a line, and ends
// without an error at a signal.
func TestWatchCommand(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 1})
	env := settingsFor(c)
	works(t, env, "cluster", "status", "--wait", "1m")
	works(t, env, "mkdir", "moraine:///runs")
	cmd := command(t, env, "watch", "moraine:///runs", "--json")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(out)
	late := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	typ := ""
	next := func() (e struct{ Event, Path, Inode, Time string }, old string) {
		t.Helper()
		require.True(t, lines.Scan(), "the watch ended: %v", lines.Err())
		var all map[string]string
		require.NoError(t, json.Unmarshal(lines.Bytes(), &all), lines.Text())
		require.NoError(t, json.Unmarshal(lines.Bytes(), &e), lines.Text())
		require.NotEmpty(t, e.Inode)
		require.NotEmpty(t, e.Time)
		typ = all["type"]
		return e, all["old_path"]
	}
	e, _ := next()
	require.Equal(t, "resync", e.Event)
	expect := func(event, old, path string) {
		t.Helper()
		e, was := next()
		require.Equal(t, []string{event, old, path}, []string{e.Event, was, e.Path})
	}
	works(t, env, "mkdir", "moraine:///runs/a")
	expect("created", "", "/runs/a")
	require.Equal(t, "directory", typ)
	works(t, env, "mkdir", "moraine:///elsewhere")
	works(t, env, "mv", "moraine:///runs/a", "moraine:///runs/b")
	expect("renamed", "/runs/a", "/runs/b")
	file := filepath.Join(t.TempDir(), "f")
	require.NoError(t, os.WriteFile(file, []byte("x"), 0o600))
	works(t, env, "cp", file, "moraine:///runs/b/f")
	expect("created", "", "/runs/b/f")
	works(t, env, "rm", "moraine:///runs/b/f")
	expect("removed", "", "/runs/b/f")
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	require.NoError(t, cmd.Wait(), "its end by a signal is no failure")
	requireRefused(t, invoke(t, env, "watch", "moraine:///nope"), 1, "/nope", "not found")
}
