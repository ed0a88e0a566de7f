package fusebench

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// names returns those of choices; one that runs only for another is in parentheses.
func names(chosen []choice) (all []string) {
	for _, c := range chosen {
		if c.reported {
			all = append(all, c.name)
		} else {
			all = append(all, "("+c.name+")")
		}
	}
	return all
}

// TestARowRunsWithThoseThatItNeeds: in the order of the table, and each once. Each row needs an
// earlier one, or none.
func TestARowRunsWithThoseThatItNeeds(t *testing.T) {
	all, err := choose(nil)
	require.NoError(t, err)
	require.Equal(t, Rows(), names(all))
	some, err := choose([]string{"rm-r", "stat-warm", "rename"})
	require.NoError(t, err)
	require.Equal(t, []string{"(create-4k)", "(create-empty)", "stat-warm", "rename", "(untar)", "rm-r"}, names(some))
	_, err = choose([]string{"rm-r", "nope"})
	require.ErrorContains(t, err, `"nope"`)
	seen := map[string]bool{"": true}
	for _, s := range specs {
		require.True(t, seen[s.needs], s.name)
		require.False(t, seen[s.name], s.name)
		seen[s.name] = true
	}
}

// TestTheMedianRoundIsReported: with its own CPU, per GB or per operation, and the limit of the target.
func TestTheMedianRoundIsReported(t *testing.T) {
	chosen, err := choose([]string{"seq-write", "rm-r"})
	require.NoError(t, err)
	mount := 0.5
	round := func(wall time.Duration) done {
		return done{ops: 100, bytes: 2e9, wall: wall, cpu: wall.Seconds(), mount: &mount}
	}
	r := run{targets: []Target{{Name: "a", Redundancy: 1.5}, {Name: "b"}}, limits: limits{write: 3e9}, got: map[key][]done{}}
	for _, c := range chosen {
		for i := range r.targets {
			r.got[key{c.index, i}] = []done{round(4 * time.Second), round(1 * time.Second), round(2 * time.Second)}
		}
	}
	delete(r.got, key{chosen[1].index, 0})
	delete(r.got, key{chosen[2].index, 0})
	rows := r.rows(chosen)
	require.Len(t, rows, 4)
	a := rows[0]
	require.Equal(t, []any{"seq-write", "a", "MB/s", "s/GB", "disk/1.5", 3}, []any{a.Row, a.Path, a.Unit, a.CPUUnit, a.LimitName, a.Rounds})
	require.InDelta(t, 1000, a.Value, 1e-6)
	require.InDelta(t, 2000, a.Limit, 1e-6)
	require.InDelta(t, 0.5, a.Ratio, 1e-9)
	require.InDelta(t, 1, a.CPUBench, 1e-9)
	require.InDelta(t, 0.25, *a.CPUMount, 1e-9)
	require.Nil(t, a.CPUServers)
	require.InDelta(t, 3000, rows[1].Limit, 1e-6)
	last := rows[3]
	require.Equal(t, []string{"rm-r", "b", "ops/s", "ms/op"}, []string{last.Row, last.Path, last.Unit, last.CPUUnit})
	require.InDelta(t, 50, last.Value, 1e-9)
	require.InDelta(t, 20, last.CPUBench, 1e-9)
	text, err := json.Marshal(last)
	require.NoError(t, err)
	require.Contains(t, string(text), `"cpu_servers":null`)
}

// TestAWorkerNoticesWrongFiles: it fails where a file is missing, has another length or other bytes.
func TestAWorkerNoticesWrongFiles(t *testing.T) {
	dir := t.TempDir()
	work := func(op string, size int) (r result) {
		spec, err := json.Marshal(Work{Op: op, Dir: dir, Prefix: "f", Files: 5, Size: size})
		require.NoError(t, err)
		w, err := ParseWork(string(spec))
		require.NoError(t, err)
		var out strings.Builder
		require.NoError(t, RunWorker(w, strings.NewReader("go\n"), &out))
		ready, rest, _ := strings.Cut(out.String(), "\n")
		require.JSONEq(t, `{"ready":true}`, ready)
		require.NoError(t, json.Unmarshal([]byte(rest), &r))
		return r
	}
	require.EqualValues(t, 5*64, work(opCreate, 64).Bytes)
	require.Contains(t, work(opCreate, 64).Error, "exists")
	require.Empty(t, work(opStat, 64).Error)
	require.EqualValues(t, 5*64, work(opRead, 64).Bytes)
	require.Contains(t, work(opStat, 63).Error, "64 bytes, not 63")
	require.Contains(t, work(opRead, 65).Error, "64 bytes were read, not the 65")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "f000003"), make([]byte, 64), 0o644))
	require.Contains(t, work(opRead, 64).Error, "f000003")
	require.EqualValues(t, 5, work(opUnlink, 64).Ops)
	require.Contains(t, work(opUnlink, 64).Error, "no such file")
	require.Error(t, RunWorker(Work{Op: opStat}, strings.NewReader(""), io.Discard), "no start signal")
}

// TestWhatCannotBeColdIsLeftOut: other rows of the target are measured.
func TestWhatCannotBeColdIsLeftOut(t *testing.T) {
	var said []string
	cfg := Config{Dir: t.TempDir(), Size: minSize, Files: 1, TreeFiles: 5, Processes: 1, Seconds: 1, Rounds: 2, Rows: []string{"untar", "ls-cold", "ls-warm"},
		Progress: func(format string, _ ...any) { said = append(said, format) }}
	dir := t.TempDir()
	rows, err := Run(t.Context(), cfg, []Target{{Name: "disk", Dir: dir, Cool: func(context.Context, bool) (string, error) { return "", ErrNotCold }}})
	require.NoError(t, err)
	require.Len(t, rows, 2)
	require.Equal(t, []string{"untar", "ls-warm"}, []string{rows[0].Row, rows[1].Row})
	require.Contains(t, said, "%s on %s is left out: %v")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}
