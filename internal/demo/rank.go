package demo

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/internal/llama"
)

// order is the demo's order to a rank, one JSON object a line.
type order struct {
	Do   string `json:"do"` // save, or restore
	Step uint64 `json:"step,omitempty"`
	Seed uint64 `json:"seed,omitempty"`
	// Level is the one that a save waits for, and that a restored step has at least; 0: nvme.
	Level moraine.Level `json:"level,omitempty"`
	// Hold prevents the rank from sealing, so that it can be killed before.
	Hold        bool          `json:"hold,omitempty"`
	SealTimeout time.Duration `json:"seal_timeout,omitempty"`
}

// event is a rank's report to the demo, one JSON object a line.
type event struct {
	Event string `json:"event"` // ready, staged, holding, progress, local, committed, restored, failed
	Rank  uint32 `json:"rank"`
	// Stall is how long the trainer stopped, Trained how many steps of training it
	// did between that and the commit.
	Stall   time.Duration `json:"stall,omitempty"`
	Trained int           `json:"trained,omitempty"`
	// Acked is how many bytes of the save are durable so far; Bytes is the size of
	// the rank's part.
	Acked    uint64        `json:"acked,omitempty"`
	Bytes    int64         `json:"bytes,omitempty"`
	Wall     time.Duration `json:"wall,omitempty"`
	Path     string        `json:"path,omitempty"`
	Step     uint64        `json:"step,omitempty"`
	Protects uint32        `json:"protects,omitempty"`
	Degraded uint64        `json:"degraded,omitempty"`
	Rebuilt  uint64        `json:"rebuilt,omitempty"`
	Read     int64         `json:"read,omitempty"`
	Sums     []llama.Sum   `json:"sums,omitempty"`
	Missing  []uint32      `json:"missing,omitempty"`
	Error    string        `json:"error,omitempty"`
}

// RankConfig describes one rank process.
type RankConfig struct {
	Run         string
	Launch      string
	Rank, World uint32
	// ReadOnly ranks restore; they join no attempt.
	ReadOnly bool
	// Agent is the socket of the agent that keeps the saves. Empty: the rank writes them.
	Agent string
	// Bytes bounds the model; 0: llama.Demo.
	Bytes int64
}

// rank is one trainer: it holds a shard, trains, and saves and restores on order.
type rank struct {
	cfg   RankConfig
	c     *client.Client
	run   *ckpt.Run
	shard *llama.Shard

	mu  sync.Mutex
	out *json.Encoder
}

// RunRank is the whole life of a rank process: it reads orders from in until that
// ends, and writes events to out.
func RunRank(ctx context.Context, c *client.Client, cfg RankConfig, in io.Reader, out io.Writer) error {
	r := &rank{cfg: cfg, c: c, out: json.NewEncoder(out), shard: llama.NewShard(modelOf(cfg.Bytes), cfg.Rank, cfg.World)}
	opts := ckpt.RunOptions{ReadOnly: cfg.ReadOnly, Rank: cfg.Rank, World: cfg.World}
	if !cfg.ReadOnly {
		opts.Launch = ckpt.Launch{Name: cfg.Launch}
		// Two saves may run concurrently, and the memory is there before the first
		// of them.
		opts.StagingBytes = 2*r.shard.Bytes() + 64<<20
		opts.Prefault = opts.StagingBytes
	}
	if cfg.Agent != "" {
		// Prefault is the size of one part then.
		opts.Agent, opts.Prefault = cfg.Agent, r.shard.Bytes()
	}
	var err error
	if r.run, err = ckpt.OpenRun(ctx, c, cfg.Run, opts); err != nil {
		return err
	}
	defer r.run.Close(ctx) //nolint:errcheck // every save was waited for
	r.tell(event{Event: "ready", Bytes: r.shard.Bytes()})
	for sc := bufio.NewScanner(in); sc.Scan(); {
		var o order
		if err := json.Unmarshal(sc.Bytes(), &o); err != nil {
			return fmt.Errorf("order %q: %w", sc.Text(), err)
		}
		if err := r.obey(ctx, o); err != nil {
			e := event{Event: "failed", Step: o.Step, Error: err.Error()}
			var missing *ckpt.MissingError
			if errors.As(err, &missing) {
				e.Missing = missing.Ranks
			}
			r.tell(e)
		}
	}
	return nil
}

func (r *rank) tell(e event) {
	e.Rank = r.cfg.Rank
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = r.out.Encode(e) // it fails when the demo has ended; then this process ends too
}

func (r *rank) obey(ctx context.Context, o order) error {
	switch o.Do {
	case "save":
		return r.save(ctx, o)
	case "restore":
		return r.restore(ctx, o)
	default:
		return fmt.Errorf("unknown order %q", o.Do)
	}
}

// blobRoom is more than the blobs of a part have.
const blobRoom = 4 << 10

// modelOf returns the model of a RankConfig.
func modelOf(bytes int64) llama.Model {
	if bytes == 0 {
		return llama.Demo()
	}
	return llama.Sized(bytes)
}

// save copies the shard, trains on while it is written, and waits for its level.
func (r *rank) save(ctx context.Context, o order) error {
	r.shard.Fill(o.Seed)
	acked := r.c.Stats().WrittenBytes
	start := time.Now()
	opts := ckpt.BeginOptions{SealTimeout: o.SealTimeout}
	if o.Level == moraine.Memory {
		opts.Level = moraine.Memory
	}
	if r.cfg.Agent != "" {
		opts.Bytes = r.shard.Bytes() + blobRoom
	}
	save, err := r.run.Begin(ctx, o.Step, opts)
	if err != nil {
		return err
	}
	if err := r.shard.AddTo(ctx, save); err != nil {
		return err
	}
	if o.Hold {
		r.tell(event{Event: "holding", Step: o.Step})
		<-ctx.Done()
		return ctx.Err()
	}
	if err := save.Seal(ctx); err != nil {
		return err
	}
	r.tell(event{Event: "staged", Step: o.Step, Stall: save.Stall(), Bytes: r.shard.Bytes()})
	done := make(chan struct{})
	trained := r.train(done, func() {
		r.tell(event{Event: "progress", Step: o.Step, Acked: r.c.Stats().WrittenBytes - acked, Bytes: r.shard.Bytes()})
	})
	level := cmp.Or(o.Level, moraine.NVMe)
	info, err := save.Wait(ctx, level)
	close(done)
	steps := <-trained
	if err != nil {
		return err
	}
	reached := "committed"
	if level == moraine.Local {
		reached = "local"
	}
	r.tell(event{Event: reached, Step: o.Step, Wall: time.Since(start), Trained: steps, Path: info.Path,
		Protects: info.Protects, Degraded: info.Degraded, Bytes: r.shard.Bytes(), Sums: r.shard.Sums()})
	return nil
}

// train takes small steps of arithmetic until done is closed, one every few
// milliseconds as if an accelerator did most of the work. It regularly reports the
// progress of the save. At the end it sends the number of steps on the channel.
func (r *rank) train(done <-chan struct{}, report func()) <-chan int {
	steps := make(chan int, 1)
	go func() {
		weights := make([]float64, 1<<10)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-done:
				steps <- n
				return
			case <-tick.C:
			}
			for i := range weights {
				weights[i] = weights[i]*0.99 + float64(i^n)
			}
			if n%5 == 0 {
				report()
			}
		}
	}()
	return steps
}

// restore reads the latest checkpoint and compares every byte with that of the
// seed.
func (r *rank) restore(ctx context.Context, o order) error {
	r.shard.Clear()
	start := time.Now()
	k, err := r.run.Resolve(ctx, ckpt.ResolveOptions{Level: o.Level})
	if err != nil {
		return err
	}
	defer k.Close()
	if err := r.shard.Restore(ctx, k); err != nil {
		return err
	}
	wall := time.Since(start)
	if err := r.shard.Check(o.Seed); err != nil {
		return err
	}
	r.tell(event{Event: "restored", Step: k.Info.Step, Wall: wall, Path: k.Info.Path, Read: k.BytesRead(),
		Bytes: r.shard.Bytes(), Rebuilt: r.c.Stats().StripesRebuilt, Sums: r.shard.Sums()})
	return nil
}
