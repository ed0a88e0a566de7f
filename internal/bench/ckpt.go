package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/internal/llama"
)

const (
	// runName is the run of the measured saves.
	runName = "run"
	// ckptWorld is how many ranks save.
	ckptWorld = 4
	// slotsPerRank is for how many parts of a rank the arenas have room: the last good one, the
	// one that is being written, the next one, and one that a reader has.
	slotsPerRank = 4
	// slotBytes is what a slot has beside the part and its checksums, at most.
	slotBytes = 8 << 20
	// warmSaves go through all slots of the arenas.
	warmSaves = slotsPerRank
	// measuredSaves is how many saves a figure is the median of.
	measuredSaves = 3
)

// ckptRun is a training job with its agent, on a cluster of its own.
type ckptRun struct {
	*Env
	agent    *nodeAgent
	trainers *trainers
	model    llama.Model
	next     uint64          // step
	kept     []ckpt.StepInfo // committed and not yet removed
	limits   ckptLimits
}

// Ckpt measures checkpoints of four ranks of Llama 3 8B, by way of the agent of their node: the
// time that a save takes from training, the time to each level, restores from each level, the bytes
// that a restore by another number of ranks reads, and what all that does to a training loop. With
// e.Repeat it measures the memory of so many saves in a row instead. After an error it returns the lines that
// were measured before; without a second measurement of the limits their limits are the first.
func Ckpt(ctx context.Context, e *Env) (lines []Line, err error) {
	if e.Cluster == nil || e.Agent == nil {
		return nil, errors.New("bench: ckpt needs a cluster and an agent of its own: leave out --path and --endpoint")
	}
	r := &ckptRun{Env: e, model: llama.Sized(e.Bytes)}
	if err := r.open(ctx); err != nil {
		return nil, errors.Join(err, r.close(ctx))
	}
	defer func() { err = errors.Join(err, r.close(ctx)) }()
	if e.Repeat > 0 {
		return r.row(ctx)
	}
	if r.limits, err = r.measureLimits(ctx, "before"); err != nil {
		return nil, err
	}
	for range warmSaves {
		e.Progress("a save to warm the arenas")
		if _, err := r.settledSave(ctx, moraine.NVMe); err != nil {
			return nil, err
		}
	}
	f := figures{limits: r.limits, progress: e.Progress}
	err = f.measure(ctx, r.saves, r.restores, r.reshard, r.training)
	if err == nil {
		var after ckptLimits
		after, err = r.measureLimits(ctx, "after")
		f.limits = f.limits.better(after)
	}
	return f.lines(), err
}

// figures are what a run has measured so far.
type figures struct {
	all      []saveFigure
	limits   ckptLimits
	progress func(format string, args ...any)
}

// measure runs the parts of a benchmark in turn, until one fails. Figures from before stay.
func (f *figures) measure(ctx context.Context, parts ...func(context.Context, *figures) error) error {
	for _, part := range parts {
		if err := part(ctx, f); err != nil {
			return err
		}
	}
	return nil
}

// add takes a figure as soon as it is measured: a run takes long, and may fail later.
func (f *figures) add(figure saveFigure) {
	f.all = append(f.all, figure)
	if l := figure(&f.limits); l.LimitName != "" {
		f.progress("%s: %.4g %s, %.2f of %s so far", l.Name, l.Value, l.Unit, l.Ratio, l.LimitName)
	}
}

// lines returns the figures beside the limits as they are known now.
func (f *figures) lines() (lines []Line) {
	for _, figure := range f.all {
		lines = append(lines, figure(&f.limits))
	}
	return lines
}

// saveFigure is a line that waits for the limits: they are the better of before and after.
type saveFigure func(*ckptLimits) Line

// figure is a line without a limit.
func figure(l Line) saveFigure { return func(*ckptLimits) Line { return l } }

// open starts the agent and the job.
func (r *ckptRun) open(ctx context.Context) (err error) {
	r.Progress("an agent, and %d ranks", ckptWorld)
	if r.agent, err = startAgent(ctx, r.Env, arenaMemory(r.model)); err != nil {
		return err
	}
	if r.trainers, err = openTrainers(ctx, r.Env, runName, newShards(r.model, ckptWorld), r.agent.socket()); err != nil {
		return err
	}
	return r.trainers.fill(ctx)
}

// arenaMemory is what the node needs for its ranks, in bytes.
func arenaMemory(m llama.Model) int64 {
	sums := m.Bytes() / moraine.BlockSize * 4
	return slotsPerRank * (m.Bytes() + sums + ckptWorld*slotBytes)
}

func (r *ckptRun) close(ctx context.Context) error {
	var errs []error
	if r.trainers != nil {
		errs = append(errs, r.trainers.close(ctx))
	}
	if r.agent != nil {
		errs = append(errs, r.agent.end())
	}
	return errors.Join(errs...)
}

// saved is a save that has reached a level.
type saved struct {
	*saving
	info ckpt.StepInfo
	took time.Duration // from the last seal
	usage
}

// worst is the stall of the slowest rank.
func (s *saved) worst() time.Duration { return slices.Max(s.stalls) }

// saveTo saves the next step, and measures until it has a level.
func (r *ckptRun) saveTo(ctx context.Context, level moraine.Level) (*saved, error) {
	r.next++
	s := &saved{}
	var err error
	s.usage, err = r.measure(ctx, func(ctx context.Context) (err error) {
		if s.saving, err = r.trainers.save(ctx, r.next); err == nil {
			s.info, s.took, err = s.reach(ctx, level)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("bench: save of step %d to level %v: %w", r.next, level, err)
	}
	s.wall = s.took
	return s, nil
}

// settle waits until the step is durable, and removes all but it and the one before: the devices
// must have room for the next.
func (r *ckptRun) settle(ctx context.Context, s *saved) error {
	info, _, err := s.reach(ctx, moraine.NVMe)
	if err != nil {
		return err
	}
	r.kept = append(r.kept, info)
	for len(r.kept) > 2 {
		if err := removeStep(ctx, r.trainers.ranks[0].c, r.kept[0]); err != nil {
			return err
		}
		r.kept = r.kept[1:]
	}
	return nil
}

// settledSave is saveTo and settle.
func (r *ckptRun) settledSave(ctx context.Context, level moraine.Level) (*saved, error) {
	s, err := r.saveTo(ctx, level)
	if err == nil {
		err = r.settle(ctx, s)
	}
	return s, err
}
