// Package fusebench measures mounted file systems side by side: large files with fio,
// small files with processes of our own, trees with tar, ls and rm. Each figure has the
// CPU of the programs, of the mount and of the servers, and the limit of the same run.
//
// One path through it: Run measures the limits (limits.go) -> each round runs each row
// (rows.go) on each target in turn -> a row runs fio (fio.go), worker processes (crew.go,
// worker.go) or a command (tree.go), between two looks at the CPU of all processes
// (cpu.go) -> Run returns the median of each row on each target.
package fusebench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Config is what a run measures.
type Config struct {
	// Dir is on the disk whose limits are measured. The archive of untar lies there too.
	Dir string
	// Size is the length of the large file. Files is how many small files there are,
	// and TreeFiles how many files the tree of untar has.
	Size             int64
	Files, TreeFiles int
	// Processes work on small files at once, and as many jobs of fio at random.
	Processes int
	// Seconds is how long each row of random reads or writes runs.
	Seconds float64
	Rounds  int
	// Rows are the names of the rows to measure; empty: all.
	Rows []string
	// Keep leaves the files of the last round.
	Keep bool
	// Worker is the command line of a worker process; --work is appended.
	Worker []string
	// Disk measures the disk of a directory over so many files and bytes, in bytes a second.
	Disk func(ctx context.Context, dir string, files int, total int64) (write, read float64, err error)
	// Progress reports what is running; never nil.
	Progress func(format string, args ...any)
}

// Target is one mounted file system.
type Target struct {
	Name string
	// Dir is a directory of it. Run makes a directory of its own there.
	Dir string
	// Cool empties the caches before a cold row, and says how; data: also those with
	// content of files on the servers. ErrNotCold: nothing here can do that.
	Cool func(ctx context.Context, data bool) (how string, err error)
	// Mount and Servers return the processes that serve the mount and those behind it.
	// Nil: they are unknown.
	Mount, Servers func() []int
	// Redundancy is how many bytes of the disk each byte of a file takes; 0: 1.
	Redundancy float64
}

// ErrNotCold is the answer of Target.Cool that cannot empty the caches. Run leaves the row out.
var ErrNotCold = errors.New("nothing here can empty the caches")

// Row is one figure: a row of the table on one target.
type Row struct {
	Row  string `json:"row"`
	Path string `json:"path"`
	// Value is the median of the rounds, in Unit: MB/s (1e6 bytes) or ops/s.
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	// Seconds, Ops and Bytes are what the round of the median did.
	Seconds float64 `json:"seconds"`
	Ops     int64   `json:"ops"`
	Bytes   int64   `json:"bytes"`
	// CPU of the programs, of the process of the mount and of the servers, in CPUUnit:
	// s/GB or ms/op. Null: the processes are unknown.
	CPUBench   float64  `json:"cpu_bench"`
	CPUMount   *float64 `json:"cpu_mount"`
	CPUServers *float64 `json:"cpu_servers"`
	CPUUnit    string   `json:"cpu_unit"`
	// Limit is the physical limit of the same run, in Unit; 0: there is none.
	Limit     float64 `json:"limit"`
	LimitName string  `json:"limit_name"`
	Ratio     float64 `json:"ratio"`
	// Cold says how the caches were emptied before a cold row.
	Cold   string `json:"cold,omitempty"`
	Rounds int    `json:"rounds"`
}

// done is what one run of a row did.
type done struct {
	ops, bytes int64
	wall       time.Duration
	cpu        float64  // seconds, of the programs
	mount      *float64 // of the mount's process
	servers    *float64
	cold       string
}

func (d done) rate(bytes bool) float64 {
	if d.wall <= 0 {
		return 0
	}
	if bytes {
		return float64(d.bytes) / 1e6 / d.wall.Seconds()
	}
	return float64(d.ops) / d.wall.Seconds()
}

// key is a row on a target.
type key struct{ row, target int }

// run is one Run.
type run struct {
	Config
	targets []Target
	archive string // of untar
	limits  limits
	got     map[key][]done
}

// Run measures the rows on each target, in turn. After an error it returns the rows that were
// measured before it too.
func Run(ctx context.Context, cfg Config, targets []Target) (rows []Row, err error) {
	if err := Check(cfg); err != nil {
		return nil, err
	}
	chosen, err := choose(cfg.Rows)
	if err != nil {
		return nil, err
	}
	r := &run{Config: cfg, targets: targets, got: map[key][]done{}}
	if err := r.pack(chosen); err != nil {
		return nil, err
	}
	defer os.Remove(r.archive)
	if err := r.measureLimits(ctx, chosen, "before"); err != nil {
		return nil, err
	}
	for round := range r.Rounds {
		if err := r.round(ctx, chosen, round); err != nil {
			return r.rows(chosen), err
		}
	}
	if err := r.measureLimits(ctx, chosen, "after"); err != nil {
		return r.rows(chosen), err
	}
	return r.rows(chosen), nil
}

// Check fails where a run cannot begin: a row is unknown, a program is missing, a number is too small.
func Check(cfg Config) error {
	chosen, err := choose(cfg.Rows)
	if err != nil {
		return err
	}
	if cfg.Rounds < 1 || cfg.Processes < 1 || cfg.Files < cfg.Processes || cfg.TreeFiles < 1 || cfg.Seconds <= 0 || cfg.Size < minSize {
		return fmt.Errorf("bench: fuse needs a round, a process, a small file for each process, a file in the tree, some time, and a large file of %d MiB at least", minSize>>20)
	}
	return checkTools(chosen)
}

// minSize is enough for a block of each stream of the disk's limit.
const minSize = 16 << 20

// round runs all rows once, in directories of its own. The targets take turns in each row, and
// each round begins with another one.
func (r *run) round(ctx context.Context, chosen []choice, round int) (err error) {
	sites := make([]*site, len(r.targets))
	for i, t := range r.targets {
		sites[i] = &site{run: r, target: t, dir: filepath.Join(t.Dir, fmt.Sprintf("moraine-bench-fuse-%d", os.Getpid()))}
		if err := os.Mkdir(sites[i].dir, 0o755); err != nil {
			return fmt.Errorf("%s: %w", t.Name, err)
		}
		if r.Keep && round == r.Rounds-1 {
			continue
		}
		defer func() { err = errors.Join(err, os.RemoveAll(sites[i].dir)) }()
	}
	for _, c := range chosen {
		for i := range sites {
			at := (i + round) % len(sites)
			r.Progress("round %d of %d: %s on %s", round+1, r.Rounds, c.name, r.targets[at].Name)
			d, err := sites[at].measure(ctx, c)
			if errors.Is(err, ErrNotCold) {
				r.Progress("%s on %s is left out: %v", c.name, r.targets[at].Name, err)
				continue
			}
			if err != nil {
				return fmt.Errorf("bench: %s on %s: %w", c.name, r.targets[at].Name, err)
			}
			if k := (key{c.index, at}); c.reported {
				r.got[k] = append(r.got[k], d)
			}
		}
	}
	return nil
}

// rows returns the medians, row by row.
func (r *run) rows(chosen []choice) (rows []Row) {
	for _, c := range chosen {
		for i, t := range r.targets {
			all := r.got[key{c.index, i}]
			if len(all) == 0 {
				continue
			}
			slices.SortFunc(all, func(a, b done) int { return cmp.Compare(a.rate(c.bytes), b.rate(c.bytes)) })
			rows = append(rows, r.row(c, t, all[len(all)/2], len(all)))
		}
	}
	return rows
}

// row returns the figure of one run.
func (r *run) row(c choice, t Target, d done, rounds int) Row {
	row := Row{Row: c.name, Path: t.Name, Value: d.rate(c.bytes), Unit: "ops/s", Seconds: d.wall.Seconds(), Ops: d.ops, Bytes: d.bytes,
		CPUUnit: "ms/op", Cold: d.cold, Rounds: rounds}
	per := 1e3 / float64(max(1, d.ops))
	if c.bytes {
		row.Unit, row.CPUUnit = "MB/s", "s/GB"
		per = 1e9 / float64(max(1, d.bytes))
	}
	row.CPUBench, row.CPUMount, row.CPUServers = d.cpu*per, times(d.mount, per), times(d.servers, per)
	row.Limit, row.LimitName = r.limits.of(c.limit, t)
	if row.Limit > 0 {
		row.Ratio = row.Value / row.Limit
	}
	return row
}

func times(v *float64, by float64) *float64 {
	if v == nil {
		return nil
	}
	product := *v * by
	return &product
}
