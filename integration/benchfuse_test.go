package integration_test

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/morainefs/moraine/internal/bench/fusebench"
	"github.com/stretchr/testify/require"
)

// `bench fuse` runs every row on a mount of its own cluster and on a directory of the disk beside it.
// Each row did the work that it says: the benchmark itself checks the files that it made, and the
// test the counts. The test does not judge how fast.
func TestBenchmarkOfAMount(t *testing.T) {
	t.Parallel()
	if f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0); err != nil {
		t.Skipf("nothing can be mounted here: %v", err)
	} else {
		require.NoError(t, f.Close())
	}
	const size, files, tree = 16 << 20, 24, 18
	names := fusebench.Rows()
	if _, err := exec.LookPath("fio"); err != nil {
		names = slices.DeleteFunc(names, func(n string) bool { return strings.HasPrefix(n, "seq-") || strings.HasPrefix(n, "rand-") })
	}
	path := t.TempDir()
	rows := fuseRows(t, "--path", path, "--size", fmt.Sprint(size), "--files", fmt.Sprint(files), "--tree-files", fmt.Sprint(tree), "--rounds", "1", "--rows", strings.Join(names, ","))
	root := os.Geteuid() == 0
	for _, n := range names {
		for _, target := range []string{"moraine", path} {
			i := slices.IndexFunc(rows, func(r fusebench.Row) bool { return r.Row == n && r.Path == target })
			if i < 0 && target == path && strings.HasSuffix(n, "-cold") && !root {
				continue // no user but root can drop the page cache
			}
			require.GreaterOrEqual(t, i, 0, "%s on %s", n, target)
			checkFuseRow(t, rows[i], size, files, tree)
		}
	}
	left, err := os.ReadDir(path)
	require.NoError(t, err)
	require.Empty(t, left)
}

// checkFuseRow checks the fields of a row, and the work that it did.
func checkFuseRow(t *testing.T, r fusebench.Row, size, files, tree int64) {
	t.Helper()
	at := r.Row + " on " + r.Path
	require.Positive(t, r.Value, at)
	require.Positive(t, r.Seconds, at)
	require.Equal(t, 1, r.Rounds, at)
	require.NotNil(t, r.CPUMount, at)
	require.NotNil(t, r.CPUServers, at)
	require.Equal(t, strings.HasSuffix(r.Row, "-cold"), r.Cold != "", at)
	seq, random := strings.HasPrefix(r.Row, "seq-"), strings.HasPrefix(r.Row, "rand-")
	if seq || random {
		require.Positive(t, r.Limit, at)
		require.InDelta(t, r.Value/r.Limit, r.Ratio, 1e-9, at)
	}
	if seq {
		require.Equal(t, size, r.Bytes, at)
		require.Equal(t, []string{"MB/s", "s/GB"}, []string{r.Unit, r.CPUUnit}, at)
		return
	}
	require.Equal(t, []string{"ops/s", "ms/op"}, []string{r.Unit, r.CPUUnit}, at)
	switch {
	case random:
		require.Equal(t, 4096*r.Ops, r.Bytes, at)
	case r.Row == "untar" || r.Row == "rm-r" || strings.HasPrefix(r.Row, "ls-"):
		require.Equal(t, tree, r.Ops, at)
	default:
		require.Equal(t, files, r.Ops, at)
	}
	if r.Row == "create-4k" || strings.HasPrefix(r.Row, "read-small") {
		require.Equal(t, 4096*files, r.Bytes, at)
	}
}

// fuseRows runs `bench fuse`, and returns its rows.
func fuseRows(t *testing.T, args ...string) (rows []fusebench.Row) {
	t.Helper()
	bin, err := binary()
	require.NoError(t, err)
	cmd := exec.Command(bin, append([]string{"bench", "fuse", "--json", "--seconds", "0.2", "--dir", t.TempDir()}, args...)...)
	// Other tests write to the same disk here: a stall is no failure of a benchmark.
	cmd.Env = append(os.Environ(), "MORAINE_METADATA_LOG_STALL=15s")
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	require.NoError(t, err, said.String())
	for dec := json.NewDecoder(strings.NewReader(string(out))); dec.More(); {
		var r fusebench.Row
		require.NoError(t, dec.Decode(&r))
		rows = append(rows, r)
	}
	return rows
}

// With --keep the files of the last round stay, so that they can be counted. Only the named rows are
// printed, also where they need others. Wrong use and a missing fio are errors before anything starts.
func TestBenchmarkOfAPathAlone(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	rows := fuseRows(t, "--paths-only", "--path", path, "--keep", "--rounds", "2", "--files", "13", "--processes", "3", "--tree-files", "30",
		"--rows", "read-small-warm,rename,ls-warm")
	require.Len(t, rows, 3)
	for i, want := range []struct {
		name string
		ops  int64
	}{{"read-small-warm", 12}, {"rename", 12}, {"ls-warm", 30}} {
		require.Equal(t, want.name, rows[i].Row)
		require.Equal(t, want.ops, rows[i].Ops)
		require.Equal(t, 2, rows[i].Rounds)
		require.Zero(t, *rows[i].CPUMount, "no process serves it")
	}
	kept := map[string]int{}
	require.NoError(t, filepath.WalkDir(path, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			kept[e.Name()[:1]]++
			if e.Name()[0] == 'f' && !strings.HasSuffix(e.Name(), ".txt") {
				st, err := e.Info()
				require.NoError(t, err)
				require.EqualValues(t, 4096, st.Size())
			}
		}
		return err
	}))
	require.Equal(t, map[string]int{"f": 12 + 30, "r": 12}, kept, "small files and files of the tree, and renamed ones")

	bin, err := binary()
	require.NoError(t, err)
	for _, wrong := range []struct {
		args []string
		says string
	}{
		{[]string{"--rows", "seq-writ"}, `no row "seq-writ"`},
		{[]string{"--rows", "seq-write"}, "apt install fio"},
		{[]string{"--path", path + "/none"}, "--path"},
		{[]string{"--remount", "/mnt=true"}, "--remount"},
		{[]string{"--paths-only"}, "--paths-only"},
	} {
		cmd := exec.Command(bin, append([]string{"bench", "fuse"}, wrong.args...)...)
		cmd.Env = append(os.Environ(), "PATH="+t.TempDir()) // no fio is there
		said, err := cmd.CombinedOutput()
		require.Error(t, err)
		require.Contains(t, string(said), wrong.says)
		require.NotContains(t, string(said), "...\n", "nothing was started")
	}
}
