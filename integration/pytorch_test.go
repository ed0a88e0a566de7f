package integration_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/devcluster"
)

// TestTheEnvironmentOfPyTorchNeedsSpace: the script that makes it stops with one sentence where the
// disk has too little room, before it downloads anything.
func TestTheEnvironmentOfPyTorchNeedsSpace(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "df"), []byte("#!/bin/sh\necho Avail; echo 14999999999\n"), 0o755))
	cmd := exec.CommandContext(t.Context(), "../internal/tools/torch.sh")
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "XDG_CACHE_HOME="+dir)
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	require.Equal(t, "stock PyTorch needs 15 GB free in "+dir+"/moraine\n", string(out))
}

// TestTheLibrariesOfPythonNeedSpace: nor are the libraries downloaded there.
func TestTheLibrariesOfPythonNeedSpace(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "df"), []byte("#!/bin/sh\necho Avail; echo 2999999999\n"), 0o755))
	script, err := os.ReadFile("../internal/tools/torch.sh")
	require.NoError(t, err)
	torch := between(t, string(script), "torch=", "\n")
	env := filepath.Join(dir, "moraine", "torch-"+torch)
	require.NoError(t, os.MkdirAll(env, 0o755))
	made := "torch==" + torch + " " + between(t, string(script), "packages=(", ")") + "\n"
	require.NoError(t, os.WriteFile(filepath.Join(env, "made"), []byte(made), 0o644))
	cmd := exec.CommandContext(t.Context(), "../internal/tools/torch.sh", "libraries")
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "XDG_CACHE_HOME="+dir)
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	require.Equal(t, "pandas, datasets, webdataset and ray need 3 GB free in "+dir+"/moraine\n", string(out))
}

// between returns the first text between two others.
func between(t *testing.T, text, before, after string) string {
	t.Helper()
	_, text, found := strings.Cut(text, before)
	require.True(t, found)
	text, _, found = strings.Cut(text, after)
	require.True(t, found)
	return text
}

// torchPython returns the interpreter of the environment of the long tests. The first run makes it, 5.4 GB
// outside of the checkout, and 0.6 GB more with the libraries.
func torchPython(t *testing.T, with ...string) string {
	t.Helper()
	made, err := exec.Command("../internal/tools/torch.sh", with...).Output()
	if exit, ok := err.(*exec.ExitError); ok {
		require.NoError(t, err, string(exit.Stderr))
	}
	require.NoError(t, err)
	return strings.TrimSpace(string(made))
}

// pytest runs the Python tests of a folder below python/ that need the environment. None may be skipped.
func pytest(t *testing.T, python, folder string, env ...string) {
	t.Helper()
	begun := time.Now()
	cmd := exec.CommandContext(t.Context(), python, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider")
	cmd.Dir = filepath.Join("../python", folder) // not beside the source of the package: env says which one is tested
	cmd.Env = append(append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1"), env...)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), " passed")
	require.NotContains(t, string(out), "skipped")
	t.Logf("%s\n%s", time.Since(begun).Round(time.Second), out)
}

// TestPyTorch runs the tests of moraine.torch with stock PyTorch, against an agent, a cluster and a
// mount.
func TestPyTorch(t *testing.T) {
	if !long() {
		t.Skip("it needs stock PyTorch: make test-long")
	}
	t.Parallel()
	python := torchPython(t)
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 1})
	m := mountCluster(t, c)
	a := newAgentProc(t, c)
	a.start()
	cli, err := binary()
	require.NoError(t, err)
	source, err := filepath.Abs("../python")
	require.NoError(t, err)
	pytest(t, python, "tests_torch", append(settingsFor(c), "MORAINE_AGENT="+a.socket(), "MORAINE_TEST_MOUNT="+m.dir, "MORAINE_TEST_CLI="+cli, "PYTHONPATH="+source)...)
}

// TestPythonLibraries runs pandas, pyarrow, datasets, webdataset and Ray Data on moraine://, against an
// agent and a cluster, with the package as it is installed.
func TestPythonLibraries(t *testing.T) {
	if !long() {
		t.Skip("it needs stock PyTorch and libraries: make test-long")
	}
	t.Parallel()
	python := torchPython(t, "libraries")
	a := newAgentProc(t, startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 1}))
	a.memory = "256MiB" // each file that is open takes what it reads at once
	a.start()
	pytest(t, python, "tests_libs", "MORAINE_AGENT="+a.socket(), "PYTHONPATH="+installed(t, python))
}
