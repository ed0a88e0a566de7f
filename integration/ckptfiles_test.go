package integration_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/devcluster"
)

// rawSafetensors makes the bytes of a safetensors file with any header.
func rawSafetensors(header string, data []byte) []byte {
	return append(append([]byte{byte(len(header)), byte(len(header) >> 8), 0, 0, 0, 0, 0, 0}, header...), data...)
}

// randomBytes returns n bytes of rng.
func randomBytes(rng *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// writeFiles writes files below a new directory, and returns it and their paths.
func writeFiles(t *testing.T, files map[string][]byte) (dir string, paths []string) {
	t.Helper()
	dir = t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, content, 0o644))
		paths = append(paths, path)
	}
	return dir, paths
}

// requireTree checks that a directory has exactly these files.
func requireTree(t *testing.T, dir string, want map[string][]byte) {
	t.Helper()
	n := 0
	require.NoError(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		n++
		rel, err := filepath.Rel(dir, path)
		require.NoError(t, err)
		require.Contains(t, want, rel)
		got, err := os.ReadFile(path)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want[rel], got), "%s: %d bytes, the original has %d", rel, len(got), len(want[rel]))
		return nil
	}))
	require.Len(t, want, n)
}

// TestRestoreGivesTheOriginals: `ckpt restore` of what `ckpt save` stored from files gives files
// with the same bytes and names: headers that we would write in another way, empty files, names
// that no blob can have, files of several stripes, and files of two ranks with one name.
func TestRestoreGivesTheOriginals(t *testing.T) {
	t.Parallel()
	rng := random(seed(t))
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 3})
	env := settingsFor(c)
	files := map[string][]byte{
		"odd.safetensors": rawSafetensors(`{ "z":{"shape":[3],"data_offsets":[5,8],"dtype":"U8"} , "__metadata__":{"b":"2","a":"1"},
			"a":{"dtype":"I8","data_offsets":[0,5],"shape":[5,1]},"none":{"dtype":"F32","shape":[0,7],"data_offsets":[8,8]}}   `, []byte("abcdefgh")),
		"big.safetensors":    rawSafetensors(`{"big":{"dtype":"BF16","shape":[3,4000001],"data_offsets":[0,24000006]}}`, randomBytes(rng, 24000006)),
		"empty.safetensors":  rawSafetensors(`{}`, nil),
		"empty":              {},
		"config.json":        []byte(`{"model_type":"llama"}`),
		"a name, with é.txt": randomBytes(rng, 5000),
		".hidden":            randomBytes(rng, 9<<20),
		"moraine-files.json": []byte("{}"),
	}
	_, paths := writeFiles(t, files)
	const run = "moraine:///runs/files"
	works(t, env, append([]string{"ckpt", "save", run, "--step", "1"}, paths...)...)
	dir := t.TempDir()
	works(t, env, "ckpt", "restore", run, dir)
	requireTree(t, dir, files)
	works(t, env, "ckpt", "verify", run)

	dir = t.TempDir()
	works(t, env, "ckpt", "restore", run, dir, "--parts")
	require.FileExists(t, filepath.Join(dir, "rank-00000-of-00001.safetensors"))
	require.FileExists(t, filepath.Join(dir, "rank-00000-of-00001.config.json.blob"))

	// Two ranks, each with a file of the same name.
	want := map[string][]byte{}
	done := make(chan outcome, 2)
	for rank := range 2 {
		name := fmt.Sprintf("m%d.safetensors", rank)
		state := randomBytes(rng, 1000)
		model := rawSafetensors(fmt.Sprintf(`{"w%d":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}`, rank), randomBytes(rng, 4))
		_, paths := writeFiles(t, map[string][]byte{"rng.bin": state, name: model})
		want[fmt.Sprintf("rank-0000%d/rng.bin", rank)], want[fmt.Sprintf("rank-0000%d/%s", rank, name)] = state, model
		go func() {
			done <- invoke(t, append(env, "MORAINE_LAUNCH=two"), append([]string{"ckpt", "save", "moraine:///runs/two", "--step", "7", "--world", "2", "--rank", fmt.Sprint(rank)}, paths...)...)
		}()
	}
	for range 2 {
		o := <-done
		require.Zero(t, o.code, o.stderr)
	}
	dir = t.TempDir()
	works(t, env, "ckpt", "restore", "moraine:///runs/two", dir)
	requireTree(t, dir, want)

	dup, _ := writeFiles(t, map[string][]byte{"config.json": nil})
	requireRefused(t, invoke(t, env, "ckpt", "save", run, "--step", "2", filepath.Join(dup, "config.json"), paths[0], filepath.Join(dup, "config.json")), 1, "names in a part must differ")
	requireRefused(t, invoke(t, env, "ckpt", "save", run, "--step", "2", dup), 1, "not a regular file")
}

// TestARestoreReadsTheObjectWhereTheDisksAreBad: a step is flushed, and then bits flip on the disks
// of all chunkservers. A restore gives the right bytes, from the bucket, and names the bad ranges.
func TestARestoreReadsTheObjectWhereTheDisksAreBad(t *testing.T) {
	t.Parallel()
	rng := random(seed(t))
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 3, ObjectServer: true})
	env := settingsFor(c)
	const run = "moraine:///runs/r"
	file, data := tensorOf(t, rng)
	works(t, env, "ckpt", "save", run, "--step", "1", file)
	works(t, env, "flush", "--wait", run)
	rot(t, c, data)
	dir := t.TempDir()
	o := invoke(t, env, "ckpt", "restore", run, dir)
	require.Zero(t, o.code, o.stderr)
	require.Contains(t, o.stderr, "rank-00000-of-00001.safetensors")
	require.Contains(t, o.stderr, "are bad at level nvme")
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	requireTree(t, dir, map[string][]byte{filepath.Base(file): want})
	t.Log(strings.TrimSpace(o.stderr))
}
