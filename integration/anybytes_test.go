package integration_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/devcluster"
)

// Commands take and show names of any bytes. JSON has each of them without loss, and a terminal
// gets no byte on which it acts.
func TestCommandsOnNamesOfAnyBytes(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 1, ObjectServer: true})
	env := settingsFor(c)
	local := filepath.Join(t.TempDir(), "tree")
	require.NoError(t, os.Mkdir(local, 0o755))
	names := []string{"\xff\xfe", "caf\xe9", "new\nline", "\xed\xb3\xbf"}
	for _, name := range names {
		require.NoError(t, os.WriteFile(filepath.Join(local, name), []byte(name), 0o644))
	}
	works(t, env, "cp", "-r", local, "moraine:///tree")
	json := works(t, env, "ls", "moraine:///tree", "--json")
	for _, want := range []string{`"path":"\udcff\udcfe"`, `"path":"caf\udce9"`, `"path":"new\nline"`, `"path":"\udced\udcb3\udcbf"`} {
		require.Contains(t, json, want)
	}
	shown := works(t, env, "ls", "moraine:///tree")
	for _, want := range []string{`\xff\xfe`, `caf\xe9`, `new\nline`} {
		require.Contains(t, shown, want+"\n")
	}
	for _, name := range names {
		require.Equal(t, name, works(t, env, "cat", "moraine:///tree/"+name))
	}
	works(t, env, "flush", "--wait", "moraine:///tree")
	works(t, env, "evict", "--wait", "moraine:///tree")
	works(t, env, "fsck", "moraine:///tree")
	works(t, env, "mv", "moraine:///tree/\xff\xfe", "moraine:///tree/\xfe")
	down := filepath.Join(t.TempDir(), "down")
	works(t, env, "cp", "-r", "moraine:///tree", down)
	data, err := os.ReadFile(filepath.Join(down, "\xfe"))
	require.NoError(t, err)
	require.Equal(t, "\xff\xfe", string(data))
	requireRefused(t, invoke(t, env, "cat", "moraine:///tree/none\xfd"), 1, `none\xfd`)
	require.False(t, strings.Contains(works(t, env, "du", "moraine:///tree", "--json"), `\ufffd`))
	works(t, env, "rm", "-r", "moraine:///tree")
}
