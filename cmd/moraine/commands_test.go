package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// invoke runs one command line in this process.
func invoke(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errOut bytes.Buffer
	code = run(t.Context(), args, &out, &errOut)
	return out.String(), errOut.String(), code
}

// writeSettings makes a settings file.
func writeSettings(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "moraine.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}

// settingsOf applies the settings to `moraine chunkserver ARGS`, without running
// it, and returns the values of two flags: a global one and one of the command.
func settingsOf(t *testing.T, args ...string) (endpoint, memory string) {
	t.Helper()
	env := &cli.Env{Out: &bytes.Buffer{}, Err: &bytes.Buffer{}}
	root := newRootCommand(env)
	for _, c := range root.Commands() {
		if c.Name() != "chunkserver" {
			continue
		}
		c.RunE = func(cmd *cobra.Command, _ []string) error {
			endpoint, memory = cmd.Flag("endpoint").Value.String(), cmd.Flag("memory").Value.String()
			return nil
		}
	}
	root.SetArgs(append([]string{"chunkserver"}, args...))
	require.NoError(t, root.ExecuteContext(t.Context()))
	return endpoint, memory
}

func TestFlagBeatsEnvironmentBeatsFile(t *testing.T) {
	file := "--config=" + writeSettings(t, "endpoint: file:1\nchunkserver:\n  memory: 1MiB\n")
	endpoint, memory := settingsOf(t, file)
	require.Equal(t, "file:1", endpoint)
	require.Equal(t, "1.0 MiB", memory)

	t.Setenv("MORAINE_ENDPOINT", "env:1")
	t.Setenv("MORAINE_CHUNKSERVER_MEMORY", "2MiB")
	endpoint, memory = settingsOf(t, file)
	require.Equal(t, "env:1", endpoint)
	require.Equal(t, "2.0 MiB", memory)

	endpoint, memory = settingsOf(t, file, "--endpoint", "flag:1", "--memory", "3MiB")
	require.Equal(t, "flag:1", endpoint)
	require.Equal(t, "3.0 MiB", memory)
}

// flagsOf applies the settings to a command below `moraine`, without running it,
// and returns its flags.
func flagsOf(t *testing.T, args ...string) *pflag.FlagSet {
	t.Helper()
	root := newRootCommand((&cli.Env{Out: &bytes.Buffer{}, Err: &bytes.Buffer{}}))
	cmd, _, err := root.Find(args)
	require.NoError(t, err)
	cmd.RunE = func(*cobra.Command, []string) error { return nil }
	root.SetArgs(args)
	require.NoError(t, root.ExecuteContext(t.Context()))
	return cmd.Flags()
}

// A flag that several commands share has one name in the environment and the file: that of
// the parent command, as --help of each says.
func TestSettingsOfSharedFlags(t *testing.T) {
	file := "--config=" + writeSettings(t, "bench:\n  bytes: 1MiB\n  seconds: 2\nls:\nendpoint:\n")
	t.Setenv("MORAINE_BENCH_SECONDS", "3")
	flags := flagsOf(t, "bench", "write", file)
	require.Equal(t, "1.0 MiB", flags.Lookup("bytes").Value.String())
	require.Equal(t, "3", flags.Lookup("seconds").Value.String())
	require.False(t, flags.Changed("endpoint"), "named in the file, and left empty")
	stdout, _, _ := invoke(t, "bench", "write", "--help")
	require.Contains(t, stdout, "[MORAINE_BENCH_BYTES, bench.bytes]")
	_, stderr, code := invoke(t, "version", "--config", writeSettings(t, "bench:\n  write:\n    bytes: 1MiB\n"))
	require.Equal(t, cli.ExitWrongUse, code)
	require.Contains(t, stderr, `unknown key "bench.write.bytes"`)
}

func TestSeveralDevicesFromEnvironmentAndFile(t *testing.T) {
	file := "--config=" + writeSettings(t, "chunkserver:\n  device: [/a, /b]\n")
	require.Equal(t, "[/a,/b]", flagsOf(t, "chunkserver", file).Lookup("device").Value.String())
	t.Setenv("MORAINE_CHUNKSERVER_DEVICE", "/c,/d")
	require.Equal(t, "[/c,/d]", flagsOf(t, "chunkserver", file).Lookup("device").Value.String())
}

func TestWrongUse(t *testing.T) {
	unknown := writeSettings(t, "chunkserver:\n  listne: 127.0.0.1:1\n")
	broken := writeSettings(t, "mode: [1")
	value := writeSettings(t, "chunkserver:\n  capacity: lots\n")
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"unknown command":          {[]string{"lss"}, `unknown command "lss"`},
		"unknown subcommand":       {[]string{"cluster", "stauts"}, `unknown command "stauts"`},
		"unknown flag":             {[]string{"ls", "--foo"}, "unknown flag: --foo; see `moraine ls --help`"},
		"no argument":              {[]string{"ls"}, "arguments are missing; the form is `moraine ls PATH...`; see `moraine ls --help`"},
		"too few arguments":        {[]string{"cert", "issue", "ca", "client"}, "the form is `moraine cert issue DIR ROLE NAME`"},
		"time below zero":          {[]string{"cluster", "status", "--wait", "-1s"}, "--wait -1s"},
		"one slash too few":        {[]string{"ls", "moraine:/a/b"}, "moraine:/a/b: write a path in the cluster as moraine:///a/b"},
		"unknown key in the file":  {[]string{"version", "--config", unknown}, `unknown key "chunkserver.listne"`},
		"file that does not parse": {[]string{"version", "--config", broken}, broken},
		"wrong value in the file":  {[]string{"chunkserver", "--config", value}, "chunkserver.capacity"},
		"no such file":             {[]string{"version", "--config", "/nonexistent/moraine.yaml"}, "/nonexistent/moraine.yaml"},
		"no cluster named":         {[]string{"ls", "moraine:///"}, "--endpoint"},
		"no certificate":           {[]string{"ls", "moraine://127.0.0.1:1/"}, "--certs"},
		"wrong mode":               {[]string{"ls", "--mode", "fast", "moraine://127.0.0.1:1/"}, "--mode"},
		"local path":               {[]string{"rm", "/etc/passwd"}, "moraine:///etc/passwd"},
		"not among the peers":      {[]string{"metadata", "--insecure", "--id", "m1", "--data", "x", "--peers", "m2=a:1"}, "--peers"},
		"no id":                    {[]string{"metadata", "--insecure"}, "--id"},
		"no device":                {[]string{"chunkserver", "--insecure"}, "--device"},
		"address nobody can reach": {[]string{"chunkserver", "--insecure", "--id", "n1", "--device", "x", "--endpoint", "a", "--listen", "0.0.0.0:1"}, "--advertise"},
		"size":                     {[]string{"bench", "write", "--bytes", "lots"}, "lots"},
		"path that is not there":   {[]string{"bench", "write", "--path", filepath.Join(t.TempDir(), "mnt")}, "--path"},
		"number of servers":        {[]string{"dev-cluster", "--metadata", "2"}, "1, 3 or 5"},
		"scheme":                   {[]string{"cp", "--scheme", "abc", "/etc/passwd", "moraine://127.0.0.1:1/"}, "--scheme"},
		"which step":               {[]string{"ckpt", "save", "moraine:///r", "f"}, "--step"},
		"step to wait for":         {[]string{"ckpt", "wait", "moraine:///r"}, "--step"},
		"level to wait for":        {[]string{"ckpt", "wait", "moraine:///r", "--step", "1", "--level", "local"}, "--level"},
		"steps to compare":         {[]string{"ckpt", "diff", "moraine:///r", "1"}, "the form is `moraine ckpt diff RUN A [RUN2] B`"},
		"no number of a step":      {[]string{"ckpt", "diff", "moraine:///r", "1", "moraine:///q"}, "is not a step"},
		"time between failures":    {[]string{"ckpt", "advise", "--stall", "2s", "--restore", "1m"}, "--mtbf"},
		"two of them":              {[]string{"ckpt", "advise", "--mtbf", "1h", "--nodes", "4", "--node-mtbf", "1h"}, "--mtbf"},
		"a stall is never guessed": {[]string{"ckpt", "advise", "moraine:///r", "--mtbf", "1h", "--restore", "1m"}, "--stall"},
		"no stall at all":          {[]string{"ckpt", "advise", "--mtbf", "1h", "--restore", "1m", "--stall", "0s"}, "above 0"},
		"role":                     {[]string{"cert", "issue", t.TempDir(), "king", "k"}, `role "king"`},
		"log level":                {[]string{"ls", "--insecure", "--log-level", "loud", "moraine://127.0.0.1:1/"}, "--log-level"},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, code := invoke(t, c.args...)
			require.Equal(t, cli.ExitWrongUse, code, stderr)
			require.Empty(t, stdout)
			requireOneLine(t, stderr)
			require.Contains(t, stderr, c.says)
		})
	}
}

// requireOneLine checks the form of a command's error.
func requireOneLine(t *testing.T, stderr string) {
	t.Helper()
	require.True(t, strings.HasPrefix(stderr, "moraine: "), stderr)
	require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
	require.True(t, strings.HasSuffix(stderr, "\n"), stderr)
}

func TestHelpTeachesEnvironmentAndFile(t *testing.T) {
	stdout, stderr, code := invoke(t, "chunkserver", "--help")
	require.Equal(t, cli.ExitFine, code)
	require.Empty(t, stderr)
	for _, want := range []string{"--device", "[MORAINE_CHUNKSERVER_DEVICE, chunkserver.device]", "[MORAINE_ENDPOINT, endpoint]", "MORAINE_CONFIG"} {
		require.Contains(t, stdout, want)
	}
	// Every command has its own help, with a text for each flag.
	var walk func(c *cobra.Command, path []string)
	walk = func(c *cobra.Command, path []string) {
		stdout, _, code := invoke(t, append(path, "--help")...)
		require.Equal(t, cli.ExitFine, code, path)
		require.Contains(t, stdout, "Usage:", path)
		for _, sub := range c.Commands() {
			require.NotEmpty(t, sub.Short, "%v %s", path, sub.Name())
			walk(sub, append(path[:len(path):len(path)], sub.Name()))
		}
	}
	walk(newRootCommand((&cli.Env{})), nil)
}

func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		stdout, stderr, code := invoke(t, "completion", shell)
		require.Equal(t, cli.ExitFine, code, stderr)
		require.Contains(t, stdout, "moraine")
	}
	stdout, _, code := invoke(t, "__complete", "cluster", "")
	require.Equal(t, cli.ExitFine, code)
	require.Contains(t, stdout, "status")
}

func TestLocalCommandsInJSON(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "f"), []byte("12345"), 0o644))
	ca := filepath.Join(dir, "ca")
	for _, args := range [][]string{
		{"version"}, {"ls", dir}, {"stat", filepath.Join(dir, "f")}, {"du", dir},
		{"cp", filepath.Join(dir, "f"), filepath.Join(dir, "g")},
		{"cert", "init", ca}, {"cert", "issue", ca, "client", "alice", "--scope", "/a"}, {"cert", "show", ca, "alice"},
	} {
		stdout, stderr, code := invoke(t, append(args, "--json")...)
		require.Equal(t, cli.ExitFine, code, stderr)
		require.Empty(t, stderr)
		require.NotEmpty(t, stdout, args)
		for line := range strings.Lines(stdout) {
			var v map[string]any
			require.NoError(t, json.Unmarshal([]byte(line), &v), "%v: %s", args, line)
			require.NotEmpty(t, v)
		}
	}
}

func TestDeviceFormat(t *testing.T) {
	dir := t.TempDir()
	ca, device := filepath.Join(dir, "ca"), filepath.Join(dir, "device")
	certs := []string{"--certs", ca, "--identity", "n1"}
	format := append([]string{"device", "format", device}, certs...)
	for _, args := range [][]string{{"cert", "init", ca}, {"cert", "issue", ca, "chunkserver", "n1"}} {
		_, stderr, code := invoke(t, args...)
		require.Equal(t, cli.ExitFine, code, stderr)
	}
	_, stderr, code := invoke(t, format...)
	require.Equal(t, cli.ExitWrongUse, code, "the name may be mistyped")
	requireOneLine(t, stderr)
	require.Contains(t, stderr, device+": there is no such directory")
	require.NoDirExists(t, device)

	require.NoError(t, os.Mkdir(device, 0o755))
	_, stderr, code = invoke(t, format...)
	require.Equal(t, cli.ExitFine, code, stderr)
	stdout, _, code := invoke(t, "inspect", "device", device)
	require.Equal(t, cli.ExitFine, code)
	require.Contains(t, stdout, "0 records")

	before, err := os.ReadFile(filepath.Join(device, "device"))
	require.NoError(t, err)
	_, stderr, code = invoke(t, format...)
	require.Equal(t, cli.ExitFailed, code)
	requireOneLine(t, stderr)
	require.Contains(t, stderr, device+" is a device already")
	after, err := os.ReadFile(filepath.Join(device, "device"))
	require.NoError(t, err)
	require.Equal(t, before, after)

	_, stderr, code = invoke(t, append([]string{"device", "format", dir}, certs...)...)
	require.Equal(t, cli.ExitFailed, code, "it holds something else")
	requireOneLine(t, stderr)
	require.Contains(t, stderr, "name an empty directory")
}

// TestRestoreOfAnotherFile: the error names the file, and says that it is not a backup.
func TestRestoreOfAnotherFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "f")
	require.NoError(t, os.WriteFile(file, bytes.Repeat([]byte("x"), 1000), 0o644))
	_, stderr, code := invoke(t, "metadata", "restore", file, "--insecure", "--id", "m1", "--data", filepath.Join(dir, "m1"),
		"--address", "127.0.0.1:1", "--after-incarnation", "1")
	require.Equal(t, cli.ExitFailed, code)
	requireOneLine(t, stderr)
	require.Contains(t, stderr, file+": ")
	require.Contains(t, stderr, "it does not begin as a backup of the metadata")
	require.NotContains(t, stderr, "ReadBackup")
	require.NoDirExists(t, filepath.Join(dir, "m1"))
}

// TestCertShowOfADirectory: without a name, the command shows each certificate of the
// directory.
func TestCertShowOfADirectory(t *testing.T) {
	ca := filepath.Join(t.TempDir(), "ca")
	for _, args := range [][]string{{"cert", "init", ca}, {"cert", "issue", ca, "metadata", "m1"}, {"cert", "issue", ca, "admin", "ops"}} {
		_, stderr, code := invoke(t, args...)
		require.Equal(t, cli.ExitFine, code, stderr)
	}
	stdout, stderr, code := invoke(t, "cert", "show", ca, "--json")
	require.Equal(t, cli.ExitFine, code, stderr)
	require.Equal(t, 2, strings.Count(stdout, "\n"), stdout)
	require.Contains(t, stdout, `"name":"m1"`)
	require.Contains(t, stdout, `"name":"ops"`)
	_, stderr, code = invoke(t, "cert", "show", t.TempDir())
	require.Equal(t, cli.ExitWrongUse, code)
	require.Contains(t, stderr, "moraine cert issue")
}
