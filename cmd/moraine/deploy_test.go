package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

const deployDir = "../../deploy"

// deployFiles returns the files of deploy/ with one of the extensions.
func deployFiles(t *testing.T, atLeast int, extensions ...string) (files []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(deployDir, func(path string, d os.DirEntry, err error) error {
		for _, ext := range extensions {
			if err == nil && filepath.Ext(path) == ext {
				files = append(files, path)
			}
		}
		return err
	}))
	require.GreaterOrEqual(t, len(files), atLeast)
	return files
}

// called finds the calls of moraine in a script, a unit or a page: up to what the shell gives another
// meaning.
var called = regexp.MustCompile("(?m)(?:^|[ =(`])(?:/usr/local/bin/)?moraine ((?:[^\\n`;|&<>)]|\\\\\\n)+)")

// callsIn returns the command lines of moraine in a text, without comments.
func callsIn(text string) (calls []string) {
	var code []string
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(strings.TrimSpace(line), "#") {
			code = append(code, line)
		}
	}
	for _, m := range called.FindAllStringSubmatch(strings.Join(code, ""), -1) {
		call := strings.TrimPrefix(strings.ReplaceAll(m[1], `"`, ""), "moraine ") // the user of that name
		calls = append(calls, strings.TrimSpace(regexp.MustCompile(`\s\d$`).ReplaceAllString(call, "")))
	}
	return calls
}

// TestDeployNamesCommandsThatExist: each command of deploy/ exists, with its flags, and takes so many
// arguments.
func TestDeployNamesCommandsThatExist(t *testing.T) {
	found := map[string]bool{}
	for _, file := range deployFiles(t, 9, ".service", ".sh", ".sbatch", ".md") {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, call := range callsIn(string(text)) {
			root := newRootCommand(&cli.Env{Out: &bytes.Buffer{}, Err: &bytes.Buffer{}})
			cmd, rest, err := root.Find(wordsOf(call))
			require.NoError(t, err, "%s: %s", file, call)
			require.False(t, cmd == root, "%s: %s: no such command", file, call)
			values := regexp.MustCompile(`\$\w+`)
			for i, word := range rest { // a variable stands for a value that its flag takes
				rest[i] = values.ReplaceAllString(word, exampleOf(cmd, rest, i))
			}
			require.NoError(t, cmd.ParseFlags(rest), "%s: %s", file, call)
			require.NoError(t, cmd.ValidateArgs(cmd.Flags().Args()), "%s: %s", file, call)
			found[cmd.CommandPath()] = true
		}
	}
	for _, want := range []string{"metadata", "chunkserver", "s3", "agent", "mount", "ckpt push"} {
		require.True(t, found["moraine "+want], "no file of deploy/ calls %s", want)
	}
}

// exampleOf returns a value that the flag before the i-th word takes.
func exampleOf(cmd *cobra.Command, words []string, i int) string {
	if i == 0 {
		return "x"
	}
	f := cmd.Flags().Lookup(strings.TrimLeft(words[i-1], "-"))
	if f == nil {
		return "x"
	}
	switch f.Value.Type() {
	case "duration":
		return "1s"
	case "string":
		return "x"
	}
	return "1"
}

// TestDeploySettingsExist: each settings file of deploy/ has only keys that a command has, and the unit
// beside it reads it.
func TestDeploySettingsExist(t *testing.T) {
	for _, file := range deployFiles(t, 5, ".yaml") {
		var stderr bytes.Buffer
		env := &cli.Env{Out: &bytes.Buffer{}, Err: &stderr}
		root := newRootCommand(env)
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		root.SetArgs([]string{"version", "--config", file})
		require.NoError(t, root.Execute(), file)
		units, err := filepath.Glob(filepath.Join(filepath.Dir(file), "moraine-"+name+"*.service"))
		require.NoError(t, err)
		require.Len(t, units, 1, file)
		unit, err := os.ReadFile(units[0])
		require.NoError(t, err)
		require.Contains(t, string(unit), "--config /etc/moraine/"+name+".yaml")
	}
}

// TestDeployScriptsAreShell: bash reads each script, and so does shellcheck where it is installed.
func TestDeployScriptsAreShell(t *testing.T) {
	bash, err := exec.LookPath("bash")
	require.NoError(t, err)
	shellcheck, missing := exec.LookPath("shellcheck")
	for _, file := range deployFiles(t, 5, ".sh", ".sbatch", ".env") {
		out, err := exec.CommandContext(t.Context(), bash, "-n", file).CombinedOutput()
		require.NoError(t, err, "%s: %s", file, out)
		if missing == nil {
			out, err := exec.CommandContext(t.Context(), shellcheck, "-s", "bash", "-x", "-P", filepath.Dir(file), "-e", "SC2034", file).CombinedOutput()
			require.NoError(t, err, "%s: %s", file, out)
		}
	}
}

// TestDeployUnitsAreSound: systemd finds nothing wrong with the units, with an executable in the place
// of the binary. Without systemd-analyze the test is skipped.
func TestDeployUnitsAreSound(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not installed")
	}
	self, err := os.Executable()
	require.NoError(t, err)
	dir := t.TempDir()
	var copies []string
	for _, file := range deployFiles(t, 6, ".service", ".mount") {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		name := strings.Replace(filepath.Base(file), "@.service", "@mnt-moraine.service", 1)
		to := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(to, []byte(strings.ReplaceAll(string(text), "/usr/local/bin/moraine", self)), 0o644))
		copies = append(copies, to)
	}
	out, err := exec.CommandContext(t.Context(), analyze, append([]string{"verify", "--man=no"}, copies...)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NotContains(t, string(out), dir, "a warning")
}
