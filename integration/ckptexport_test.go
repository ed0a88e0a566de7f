package integration_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/internal/llama"
)

// pythonRuns runs a script of testdata with the Python of `make setup`.
func pythonRuns(t *testing.T, script string, args ...string) string {
	t.Helper()
	python, err := filepath.Abs(filepath.Join(pythonEnv, "python"))
	require.NoError(t, err)
	require.FileExists(t, python, "`make setup` makes it")
	out, err := exec.CommandContext(t.Context(), python, append([]string{filepath.Join("testdata", script)}, args...)...).CombinedOutput()
	require.NoError(t, err, string(out))
	return string(out)
}

// filesOf reads all files of a directory.
func filesOf(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		require.NoError(t, err)
		files[e.Name()] = b
	}
	return files
}

// TestImportThenExport: a sharded directory that the safetensors package made is imported, and
// exported into files of another size, to a directory and to a bucket. The safetensors package reads
// the same tensors from both; metadata and other files are kept. A restore gives the directory itself.
func TestImportThenExport(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 3, ObjectServer: true})
	env := settingsFor(c)
	const run = "moraine:///models/m"
	from := t.TempDir()
	pythonRuns(t, "hf_make.py", from, fmt.Sprint(seed(t)%1000))
	original := filesOf(t, from)
	require.NoError(t, os.Mkdir(filepath.Join(from, "original"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(from, "consolidated.safetensors"), []byte("another copy"), 0o644))
	o := invoke(t, env, "ckpt", "import", from, run, "--step", "0", "--json")
	require.Zero(t, o.code, o.stderr)
	require.Contains(t, o.stderr, "left out: consolidated.safetensors")
	require.Contains(t, o.stderr, "left out: original")
	require.Equal(t, "committed", objects(t, o.stdout)[0]["state"])
	back := t.TempDir()
	works(t, env, "ckpt", "restore", run, back)
	requireTree(t, back, original)

	to := filepath.Join(t.TempDir(), "new", "export")
	got := objects(t, works(t, env, "ckpt", "export", run, to, "--step", "0", "--shard-size", "1MB", "--json"))[0]
	require.Equal(t, float64(46), got["tensors"])
	require.Equal(t, float64(4), got["shards"], "two large tensors, and those before and after the second")
	require.FileExists(t, filepath.Join(to, "model-00004-of-00004.safetensors"))
	requireSame := func(dir string) {
		t.Helper()
		var same struct {
			Tensors  int
			Metadata map[string]string
		}
		require.NoError(t, json.Unmarshal([]byte(pythonRuns(t, "hf_same.py", from, dir)), &same))
		require.Equal(t, 46, same.Tensors)
		require.Equal(t, map[string]string{"format": "pt", "made": "by hand"}, same.Metadata)
		require.Contains(t, string(filesOf(t, dir)["model.safetensors.index.json"]), `"total_parameters": 7`)
		require.Equal(t, original["config.json"], filesOf(t, dir)["config.json"])
	}
	requireSame(to)
	requireRefused(t, invoke(t, env, "ckpt", "export", run, to), 2, "is not empty")

	store := c.Node(devcluster.ObjectServerName)
	bucket, err := store.BucketEnv()
	require.NoError(t, err)
	keys := append(append([]string{}, env...), append(bucket, "AWS_ENDPOINT_URL=http://"+store.Address)...)
	works(t, keys, "ckpt", "export", run, "s3://"+devcluster.LocalBucket+"/models/m")
	down := t.TempDir()
	aws := exec.CommandContext(t.Context(), filepath.Join(pythonEnv, "aws"), "s3", "cp", "--recursive", "--quiet", "s3://"+devcluster.LocalBucket+"/models/m", down)
	aws.Env = append(append(os.Environ(), keys...), "AWS_DEFAULT_REGION=us-east-1")
	out, err := aws.CombinedOutput()
	require.NoError(t, err, string(out))
	requireSame(down)
}

// TestImportRefuses: a directory whose index and files differ is refused before a run is made.
func TestImportRefuses(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 1})
	env := settingsFor(c)
	shard := rawSafetensors(`{"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}`, []byte("ab"))
	other := rawSafetensors(`{"v":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"u":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, []byte("cd"))
	index := func(weights string) []byte { return []byte(`{"metadata":{},"weight_map":{` + weights + `}}`) }
	for says, files := range map[string]map[string][]byte{
		"has no *.safetensors file":         {"config.json": []byte("{}")},
		"b.safetensors, which is not there": {"a.safetensors": shard, "model.safetensors.index.json": index(`"w":"b.safetensors"`)},
		"has no such tensor":                {"a.safetensors": shard, "model.safetensors.index.json": index(`"w":"a.safetensors","v":"a.safetensors"`)},
		"does not list":                     {"a.safetensors": shard, "b.safetensors": other, "model.safetensors.index.json": index(`"v":"b.safetensors","w":"a.safetensors"`)},
		"is no index":                       {"a.safetensors": shard, "model.safetensors.index.json": []byte("[]")},
		"not a safetensors file":            {"a.safetensors": shard[:20]},
	} {
		dir, _ := writeFiles(t, files)
		requireRefused(t, invoke(t, env, "ckpt", "import", dir, "moraine:///models/m", "--step", "0"), 1, says)
	}
	requireRefused(t, invoke(t, env, "ckpt", "ls", "moraine:///models/m"), 1, "not found")
}

// TestExportJoinsTheSlicesOfRanks: the parts that four ranks saved become whole tensors, the same that
// one rank would have saved.
func TestExportJoinsTheSlicesOfRanks(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 3})
	env := settingsFor(c)
	dirs := map[uint32]string{}
	for _, world := range []uint32{1, 4} {
		run := fmt.Sprintf("/runs/by-%d", world)
		var parts []*ckpt.Part
		for rank := range world {
			cl, err := client.Open(t.Context(), "moraine://"+c.Endpoint(), client.Options{Certs: c.Certs(), Identity: "admin", Mode: client.Mode(c.Mode())})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, cl.Close()) })
			r, err := ckpt.OpenRun(t.Context(), cl, run, ckpt.RunOptions{Launch: ckpt.Launch{Name: "a"}, Rank: rank, World: world, StagingBytes: 256 << 20})
			require.NoError(t, err)
			part, err := r.Begin(t.Context(), 1, ckpt.BeginOptions{})
			require.NoError(t, err)
			shard := llama.NewShard(llama.Small(), rank, world)
			shard.Fill(11)
			require.NoError(t, shard.AddTo(t.Context(), part))
			require.NoError(t, part.Seal(t.Context()))
			parts = append(parts, part)
		}
		for _, part := range parts {
			<-part.Done()
		}
		works(t, env, "ckpt", "wait", "moraine://"+run, "--step", "1", "--timeout", "1m")
		dirs[world] = filepath.Join(t.TempDir(), "export")
		works(t, env, "ckpt", "export", "moraine://"+run, dirs[world], "--shard-size", "1MB")
	}
	one, four := filesOf(t, dirs[1]), filesOf(t, dirs[4])
	require.Greater(t, len(one), 3)
	for name, want := range one {
		require.Equal(t, len(want), len(four[name]), name)
		require.True(t, string(want) == string(four[name]), "%s differs", name)
	}
	require.Len(t, four, len(one))
	require.False(t, strings.Contains(fmt.Sprint(one), "rank-"))
}
