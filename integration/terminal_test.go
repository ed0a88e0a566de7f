package integration_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/morainefs/moraine/internal/devcluster"
)

// onTerminal runs a command whose standard error is a terminal, and returns what it showed there.
func onTerminal(t *testing.T, env []string, args ...string) string {
	t.Helper()
	ptm, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	require.NoError(t, err)
	defer ptm.Close()
	require.NoError(t, unix.IoctlSetPointerInt(int(ptm.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(ptm.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	pts, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	shown := make(chan string, 1)
	go func() {
		var b bytes.Buffer
		_, _ = io.Copy(&b, ptm) // it ends with EIO when nobody has the other end
		shown <- b.String()
	}()
	path, err := binary()
	require.NoError(t, err)
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, pts
	err = cmd.Run()
	require.NoError(t, pts.Close())
	text := <-shown
	require.NoError(t, err, "%v: %s%s", args, out.String(), text)
	return text
}

// TestCommandsShowProgress: on a terminal, commands that move or read a checkpoint show how far they are. Elsewhere they
// show nothing. With --json each prints an object.
func TestCommandsShowProgress(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 1})
	env := settingsFor(c)
	a := newAgentProc(t, c)
	a.start()
	dir := t.TempDir()
	model := filepath.Join(dir, "model.safetensors")
	require.NoError(t, os.WriteFile(model, rawSafetensors(`{"w":{"dtype":"U8","shape":[100000],"data_offsets":[0,100000]}}`, make([]byte, 100000)), 0o600))
	const run = "moraine:///runs/bars"
	for _, one := range []struct {
		shows string
		args  []string
	}{
		{"saved", []string{"ckpt", "save", run, "--step", "1", model}},
		{"saved", []string{"ckpt", "import", dir, run, "--step", "2"}},
		{"saved", []string{"ckpt", "save", "moraine:///runs/local", "--step", "3", "--agent", a.socket(), model}},
		{"verified", []string{"ckpt", "verify", run}},
		{"verified", []string{"ckpt", "drill", run}},
		{"read to compare", []string{"ckpt", "diff", run, "1", "1"}},
		{"ranks have sealed", []string{"ckpt", "wait", run, "--step", "2"}},
		{"pushed", []string{"ckpt", "push", "--agent", a.socket(), "--deadline", "30s"}},
	} {
		require.Contains(t, onTerminal(t, env, one.args...), one.shows, one.args)
	}
	o := invoke(t, env, "ckpt", "verify", run)
	require.Zero(t, o.code)
	require.Empty(t, o.stderr, "it is no terminal")

	one := func(args ...string) map[string]any {
		t.Helper()
		got := objects(t, works(t, env, append(args, "--json")...))
		require.Len(t, got, 1, args)
		return got[0]
	}
	got := one("ckpt", "save", "moraine:///runs/local", "--step", "4", "--agent", a.socket(), "--level", "local", model)
	require.Equal(t, map[string]any{"run": "moraine:///runs/local", "step": 4.0, "rank": 0.0, "world": 1.0, "level": "local"}, got)
	require.Equal(t, map[string]any{"level": "nvme", "safe": true}, one("ckpt", "push", "--agent", a.socket(), "--deadline", "30s"))
	require.Equal(t, map[string]any{"run": "/runs/local", "level": "nvme", "safe": true},
		one("ckpt", "push", "--agent", a.socket(), "--deadline", "30s", "--run", "moraine:///runs/local"))
	works(t, env, "mkdir", "moraine:///scratch")
	require.Equal(t, map[string]any{"path": "moraine:///scratch", "format": "hf", "quiet_seconds": 90.0},
		one("ckpt", "adopt", "moraine:///scratch", "--always", "hf", "--quiet", "90s"))
	require.Equal(t, map[string]any{"path": "moraine:///scratch", "format": "never"}, one("ckpt", "adopt", "moraine:///scratch", "--always", "never"))
	levels := objects(t, works(t, env, "ckpt", "policy", "moraine:///scratch", "--json"))
	require.Len(t, levels, 3)
	require.Equal(t, map[string]any{"level": "memory", "own": false}, levels[0])
	requireRefused(t, invoke(t, env, "ckpt", "adopt", "moraine:///scratch", "--always", "never", "--quiet", "90s"), 2, "--quiet")
	requireRefused(t, invoke(t, env, "ckpt", "adopt", "moraine:///scratch", "--run", run, "--step", "1", "--quiet", "90s"), 2, "--quiet")
	require.Contains(t, works(t, env, "ckpt", "rm", "--help"), "refused also with --force")
}
