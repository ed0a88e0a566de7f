package bench

import (
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/internal/llama"
	"golang.org/x/sys/unix"
)

const (
	// torchDir is the directory of checkpoints as files, below a mount and below --dir, and of the
	// run in the cluster.
	torchDir = "bench-torch"
	// fetchBytes is how much memory of an agent a rank's restore takes, at most.
	fetchBytes = 128 << 20
	// sharedOnNode is the part of a restore that ranks of one node may read for each other: the
	// metadata of all ranks.
	sharedOnNode = 0.01
)

// torchWay is one way to save the state.
type torchWay struct {
	name       string // in lines
	save, load string // what a rank does
	place      place
}

// place is where a way writes.
type place int

const (
	onDisk  place = iota // files below --dir
	onMount              // files in a mount of the cluster
	byAgent              // through the agent of the node
)

// torchWays in the order of the first round. The first is the reference of the others' stall.
var torchWays = []torchWay{
	{"save-disk", "torch", "torch", onDisk},
	{"dcp-disk", "dcp", "dcp", onDisk},
	{"dcp-async-disk", "dcp-async", "dcp", onDisk},
	{"dcp-mount", "dcp", "dcp", onMount},
	{"dcp-async-mount", "dcp-async", "dcp", onMount},
	{"moraine", "moraine", "moraine", byAgent},
}

// torchRun is a job of Python ranks that saves in each way.
type torchRun struct {
	*Env
	agent  *nodeAgent // of the node that saves
	other  *nodeAgent // of a node without the arenas: its restores come from the cluster
	mount  string
	ranks  *torchRanks
	client *client.Client
	ends   []func() error
	bytes  float64
	step   uint64
	want   []string       // digest of what the ranks save, by rank
	before *ckpt.StepInfo // the step before: the last good step of a run stays
	got    torchTimes
}

// Torch measures a save and a restore of the same state with stock PyTorch in several ways, in turn:
// torch.save and DCP's FileSystemWriter on the disk, FileSystemWriter on a mount, and our writer. It
// compares the bytes of each restore with the saved ones. After an error it returns the lines of the rounds before.
func Torch(ctx context.Context, e *Env) (lines []Line, err error) {
	if e.Cluster == nil || e.Agent == nil || e.Mount == nil {
		return nil, errors.New("bench: torch needs a cluster, a mount and an agent of its own: leave out --path and --endpoint")
	}
	if e.Rounds < 1 {
		return nil, errors.New("bench: torch measures one round at least: raise --rounds")
	}
	r := &torchRun{Env: e, got: torchTimes{}}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.open(ctx); err != nil {
		return nil, err
	}
	e.Progress("the disk, before")
	w0, r0, err := r.disk(ctx)
	if err != nil {
		return nil, err
	}
	if err := r.warm(ctx); err != nil {
		return nil, err
	}
	measured := func(w, r1 float64) []Line {
		if len(r.got) == 0 {
			return nil
		}
		return r.got.lines(e, r.bytes, max(w0, w)/gb, max(r0, r1)/gb)
	}
	for round := range e.Rounds + 1 { // the first warms allocators, caches and imports
		e.Progress("round %d of %d", round, e.Rounds)
		got, err := r.round(ctx, round)
		if err != nil {
			return measured(0, 0), err
		}
		if round > 0 {
			r.got.add(got)
		}
	}
	e.Progress("the disk, after")
	w1, r1, err := r.disk(ctx)
	return measured(w1, r1), err
}

// open starts the agents, the mount and the ranks.
func (r *torchRun) open(ctx context.Context) (err error) {
	r.Progress("two agents, a mount, and %d ranks of PyTorch", ckptWorld)
	model := llama.Sized(r.Bytes)
	r.bytes = float64(model.Bytes())
	fetches := int64(ckptWorld) * fetchBytes
	if r.agent, err = r.startAgent(ctx, arenaMemory(model)+fetches); err != nil {
		return err
	}
	if r.other, err = r.startAgent(ctx, fetches); err != nil {
		return err
	}
	var end func() error
	mount, err := r.Mount(ctx)
	if err != nil {
		return err
	}
	r.mount, r.ends = mount.Dir, append(r.ends, mount.End)
	if r.client, end, err = r.Connect(ctx); err != nil {
		return err
	}
	r.ends = append(r.ends, end)
	if r.ranks, err = startTorchRanks(ctx, r.Env, model, r.run(), r.agent.socket()); err != nil {
		return err
	}
	r.ends = append(r.ends, r.ranks.end)
	return nil
}

func (r *torchRun) startAgent(ctx context.Context, memory int64) (*nodeAgent, error) {
	a, err := startAgent(ctx, r.Env, memory)
	if err == nil {
		r.ends = append(r.ends, a.end)
	}
	return a, err
}

func (r *torchRun) close() error {
	var errs []error
	for i := len(r.ends) - 1; i >= 0; i-- {
		errs = append(errs, r.ends[i]())
	}
	return errors.Join(errs...)
}

// run is the path of the run in the cluster.
func (r *torchRun) run() string { return path.Join("/", torchDir, runName) }

// path returns where a way saves files; empty if it saves none.
func (r *torchRun) path(w torchWay) string {
	root := map[place]string{onDisk: r.Dir, onMount: r.mount}[w.place]
	if root == "" {
		return ""
	}
	return filepath.Join(root, torchDir, fmt.Sprintf("%s-%d", w.name, r.step))
}

// round saves new values in each way, restores them cold, and removes what the next round does
// not need. Each round begins with another way.
func (r *torchRun) round(ctx context.Context, round int) (torchTimes, error) {
	r.step++
	var err error
	if r.want, err = r.ranks.digests("fill", torchCommand{Seed: uint64(round)}); err != nil {
		return nil, err
	}
	times := torchTimes{}
	inTurn := append(torchWays[round%len(torchWays):len(torchWays):len(torchWays)], torchWays[:round%len(torchWays)]...)
	for _, w := range inTurn {
		unix.Sync()
		if err := r.save(ctx, w, times); err != nil {
			return nil, fmt.Errorf("bench: %s: save: %w", w.name, err)
		}
	}
	// From the memory of the node first: that of the chunkservers ends with the next line.
	if err := r.restore(ctx, torchWays[len(torchWays)-1], "-arena", r.agent, times); err != nil {
		return nil, err
	}
	if err := r.servers().cool(ctx); err != nil {
		return nil, err
	}
	for _, w := range inTurn {
		if err := r.restore(ctx, w, "", r.other, times); err != nil {
			return nil, err
		}
	}
	return times, r.remove(ctx)
}

// warm goes through all slots of the arenas.
func (r *torchRun) warm(ctx context.Context) error {
	r.Progress("%d saves to warm the arenas", warmSaves)
	for range warmSaves {
		r.step++
		if err := r.save(ctx, torchWays[len(torchWays)-1], torchTimes{}); err != nil {
			return fmt.Errorf("bench: a save to warm the arenas: %w", err)
		}
		if err := r.removeBefore(ctx); err != nil {
			return err
		}
	}
	return nil
}

// save saves in one way until it is durable.
func (r *torchRun) save(ctx context.Context, w torchWay, times torchTimes) error {
	var answers []torchAnswer
	u, err := r.measure(ctx, func(context.Context) (err error) {
		answers, err = r.ranks.ask("save", torchCommand{Way: w.save, Step: r.step, Path: r.path(w)})
		return err
	})
	if err != nil {
		return err
	}
	u.wall = span(answers, func(a torchAnswer) float64 { return a.Durable })
	var stall float64 // of the slowest rank
	for _, a := range answers {
		stall = max(stall, a.Stalled-a.Begin)
	}
	times[w.name] = append(times[w.name], torchTime{stall: time.Duration(stall * float64(time.Second)), durable: u})
	return nil
}

// restore restores what one way saved, and compares it with what was saved. Bytes from the memory of
// the node are an error if the line is not about it, and the reverse.
func (r *torchRun) restore(ctx context.Context, w torchWay, suffix string, agent *nodeAgent, times torchTimes) error {
	wrap := func(err error) error { return fmt.Errorf("bench: %s: restore: %w", w.name, err) }
	if _, err := r.ranks.ask("clear", torchCommand{}); err != nil {
		return wrap(err)
	}
	var answers []torchAnswer
	u, err := r.measure(ctx, func(context.Context) (err error) {
		answers, err = r.ranks.ask("restore", torchCommand{Way: w.load, Step: r.step, Path: r.path(w), Agent: agent.socket()})
		return err
	})
	if err != nil {
		return wrap(err)
	}
	var fromNode float64
	for rank, a := range answers {
		if a.Digest != r.want[rank] {
			return wrap(fmt.Errorf("rank %d restored other bytes than it saved", rank))
		}
		fromNode += a.FromNode
	}
	if arena := suffix != ""; arena && fromNode < r.bytes || !arena && fromNode > r.bytes*sharedOnNode {
		return wrap(fmt.Errorf("%.0f of %.0f bytes came from the memory of the node", fromNode, r.bytes))
	}
	u.wall = span(answers, func(a torchAnswer) float64 { return a.Durable })
	u.cpu = 0 // the digests are in it
	times[w.name+suffix] = append(times[w.name+suffix], torchTime{restore: u})
	return nil
}

// remove removes the files of a round, so that the disk has room for the next.
func (r *torchRun) remove(ctx context.Context) error {
	for _, w := range torchWays {
		if w.place == byAgent {
			continue
		}
		if _, err := r.ranks.ask("remove", torchCommand{Path: r.path(w)}); err != nil {
			return err
		}
	}
	return r.removeBefore(ctx)
}

// removeBefore removes the step before this one.
func (r *torchRun) removeBefore(ctx context.Context) error {
	run, err := ckpt.OpenRun(ctx, r.client, r.run(), ckpt.RunOptions{ReadOnly: true})
	if err != nil {
		return err
	}
	info, err := run.WaitStep(ctx, r.step, moraine.NVMe)
	if err = errors.Join(err, run.Close(ctx)); err != nil {
		return err
	}
	if r.before != nil {
		err = removeStep(ctx, r.client, *r.before)
	}
	r.before = &info
	return err
}

// span returns the time from the first begin of a rank to the last of what happened.
func span(answers []torchAnswer, happened func(torchAnswer) float64) time.Duration {
	begin, end := answers[0].Begin, happened(answers[0])
	for _, a := range answers {
		begin, end = min(begin, a.Begin), max(end, happened(a))
	}
	return time.Duration((end - begin) * float64(time.Second))
}
