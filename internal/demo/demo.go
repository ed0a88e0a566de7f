// Package demo shows the main job of Moraine on this machine with real processes. A
// model's checkpoint is saved while training continues, and saved again while
// servers die. Another number of ranks restores it while they are still dead. It is
// not committed when a rank dies, and it is repaired. Then it is read through a
// mount and through S3, flushed to a bucket while a mover dies, evicted, and
// restored from the bucket. An agent commits a step whose trainers were killed. A
// step that was only in memory is lost with its hosts, and a restore finds the one
// before. `make demo` runs it, and checks everything it claims.
//
// One path through it: Run starts the cluster and the rank processes (rank.go), to
// which this process sends orders (team.go). The steps of the story are in
// steps.go, doors.go, tier.go, local.go and lost.go; claim adds a Row for each.
package demo

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/bench"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/internal/llama"
)

// runPath is the run to which the demo saves.
const runPath = "/runs/llama-3-8b"

const (
	saveRanks    = 4
	restoreRanks = 3
	// killFrom and killTo are the share of the second save that is durable when
	// servers are killed.
	killFrom, killTo = 0.3, 0.7
	// sealTimeout aborts the third save, whose rank dies.
	sealTimeout = 8 * time.Second
)

// Config says where and how the demo runs.
type Config struct {
	// Binary is the moraine executable.
	Binary string
	// Dir holds the cluster; it is made, and removed at the end.
	Dir string
	// Venv is where the virtual environment of Python is, or is made (default: in
	// Dir).
	Venv string
	// Mode is secure or crc.
	Mode string
	// Connect opens a client of the demo's own.
	Connect func(ctx context.Context, c *devcluster.Cluster) (*client.Client, func(), error)
	// Say reports the story, for people; never nil.
	Say func(format string, args ...any)
	// Progress shows how far an operation is, 0 to 1; never nil.
	Progress func(what string, part float64)
}

// Row is one line of the final table: the claim, whether it held, and the
// observation.
type Row struct {
	Step  string `json:"step"`
	Claim string `json:"claim"`
	Held  bool   `json:"held"`
	Seen  string `json:"seen"`
}

// demo is one run.
type demo struct {
	cfg     Config
	cluster *devcluster.Cluster
	client  *client.Client
	python  *python
	rows    []Row

	ceiling float64 // bytes/s that a durable 4+2 write could reach: disk / 1.5
	killed  []string
	digests map[uint64]string // of the saved checkpoints, by step
}

// Run shows the main job and returns a row for each claim. An error means that it
// did not reach the end; it comes with the rows so far.
func Run(ctx context.Context, cfg Config) (rows []Row, err error) {
	d := &demo{cfg: cfg, digests: map[uint64]string{}}
	if err := os.MkdirAll(cfg.Dir, 0o755); err != nil {
		return nil, err
	}
	defer os.RemoveAll(cfg.Dir)
	if err := d.prepare(ctx); err != nil {
		return nil, err
	}
	model := llama.Demo()
	cfg.Say("The checkpoint: Llama 3 8B, every tensor by its published name and shape, 1 of %d layers, bf16 weights\n"+
		"and fp32 optimizer state of the trained ones: %d tensors, %.2f GiB.", llama.PublishedLayers, len(model.Tensors()), gib(model.Bytes()))
	cfg.Say("\nMeasuring the disk ...")
	disk, _, err := bench.Disk(ctx, cfg.Dir, 6, 2<<30)
	if err != nil {
		return nil, err
	}
	d.ceiling = disk / 1.5
	cfg.Say("  it writes %.2f GB/s, so a durable 4+2 write can reach %.2f GB/s at most.", disk/1e9, d.ceiling/1e9)
	cfg.Say("\nStarting 3 metadata servers, 6 chunkservers, an S3 endpoint and a bucket, each its own process ...")
	d.cluster, err = devcluster.Start(ctx, devcluster.Config{Binary: cfg.Binary, Dir: filepath.Join(cfg.Dir, "cluster"), Mode: cfg.Mode,
		ObjectServer: true, S3: true, MetadataArgs: []string{"--grace", grace.String(), "--backup-horizon", "-1s"}})
	if err != nil {
		return nil, err
	}
	defer d.cluster.Close() //nolint:errcheck // some were killed on purpose
	c, closeClient, err := cfg.Connect(ctx, d.cluster)
	if err != nil {
		return nil, err
	}
	defer closeClient()
	d.client = c
	err = d.story(ctx)
	return d.rows, err
}

// prepare checks that everything later steps need besides Moraine is there.
func (d *demo) prepare(ctx context.Context) (err error) {
	if err := checkMounts(); err != nil {
		return err
	}
	dir := d.cfg.Venv
	if dir == "" {
		dir = filepath.Join(d.cfg.Dir, "python")
	}
	d.python, err = makePython(ctx, dir)
	return err
}

func (d *demo) story(ctx context.Context) error {
	if err := d.savesAndRestores(ctx); err != nil {
		return err
	}
	want := wantedDigests()
	if err := d.throughTheMount(ctx, want); err != nil {
		return err
	}
	if err := d.throughS3(ctx, want); err != nil {
		return err
	}
	if err := d.flushWhileTheMoverDies(ctx); err != nil {
		return err
	}
	if err := d.backFromTheBucket(ctx); err != nil {
		return err
	}
	if err := d.trainersDieAtLocal(ctx); err != nil {
		return err
	}
	return d.stepLostInMemory(ctx)
}

// savesAndRestores is steps 1 to 5.
func (d *demo) savesAndRestores(ctx context.Context) error {
	trainers, err := d.startTeam(ctx, job{cluster: d.cluster, run: runPath, launch: "launch-1", world: saveRanks})
	if err != nil {
		return err
	}
	defer func() { trainers.kill() }()
	if err := d.firstSave(ctx, trainers); err != nil {
		return err
	}
	if err := d.saveWhileServersDie(ctx, trainers); err != nil {
		return err
	}
	if err := d.restoreDegraded(ctx); err != nil {
		return err
	}
	if err := d.saveWithDeadRank(ctx, trainers); err != nil {
		return err
	}
	return d.healed(ctx)
}

// claim records whether something held.
func (d *demo) claim(step, claim string, held bool, seen string, args ...any) {
	d.rows = append(d.rows, Row{Step: step, Claim: claim, Held: held, Seen: fmt.Sprintf(seen, args...)})
}

func gib(n int64) float64 { return float64(n) / (1 << 30) }
