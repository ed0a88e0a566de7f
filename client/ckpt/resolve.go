package ckpt

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/transport/wire"
)

// ResolveOptions selects a checkpoint.
type ResolveOptions struct {
	// Level is the level that it must have reached at least. Default nvme.
	Level moraine.Level
	// With Exact, Resolve finds exactly Step of the branch; otherwise the latest one.
	Step  uint64
	Exact bool
	// Tag, if not empty, is a tag that the checkpoint must have. With Healthy it must be marked healthy.
	Tag     string
	Healthy bool
	// Before, if not zero, is a step of the branch, and Resolve finds the latest one before it.
	// It is for a step that turned out to be damaged. Not with Exact or Fix.
	Before StepRef
	// Fix makes the answer the parent of this attempt, if it has none yet. From then on the
	// answer is the parent: all ranks continue from the same step. Once ranks of the attempt have
	// committed a step, Resolve fails with Conflict: another start has used the name of the launch.
	Fix bool
	// Read bounds what reads of the Checkpoint take.
	Read ReadOptions
}

// StepRef names a step of a run.
type StepRef struct {
	Attempt uint32
	Step    uint64
}

// Resolve finds a committed checkpoint on the branch of this run's attempt (of the current one,
// for a reader) and opens it. It fails with NotFound if there is none. Until the Checkpoint is
// closed, or the client's session ends, no client can remove it. The caller closes the
// Checkpoint.
func (r *Run) Resolve(ctx context.Context, opts ResolveOptions) (*Checkpoint, error) {
	opts.Level = cmp.Or(opts.Level, moraine.NVMe)
	opts.Read.setDefaults()
	if err := opts.Read.validate(); err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		k, removed, err := r.resolve(ctx, opts)
		if removed && !opts.Exact && try < resolveTries {
			continue // another one is the latest now
		}
		return k, err
	}
}

// resolveTries bounds the tries if each found step is removed at once.
const resolveTries = 5

// resolve is one try of Resolve. removed says that the step was found, and removed before it
// was leased.
func (r *Run) resolve(ctx context.Context, opts ResolveOptions) (k *Checkpoint, removed bool, err error) {
	resp, err := r.c.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ResolveStep{ResolveStep: &wire.ResolveStep{
		Run: uint64(r.id), Attempt: r.attempt, Level: uint32(opts.Level), Fix: opts.Fix, Step: opts.Step, Exact: opts.Exact,
		Before: opts.Before.key(r.id), Tag: opts.Tag, Healthy: opts.Healthy,
	}}})
	if err != nil {
		return nil, false, err
	}
	info := stepInfo(resp.GetStep().GetStep())
	if err := stepEnded(&info); err != nil {
		return nil, false, err
	}
	release, err := r.c.leaseStep(ctx, stepKeyOf(info.Run, info.Attempt, info.Step))
	if err != nil {
		return nil, moraine.KindOf(err) == moraine.NotFound, err
	}
	k, err = openCheckpoint(ctx, r.c, r.opts.Clock, info, opts.Read)
	if err != nil {
		releaseStep(ctx, release)
		return nil, false, err
	}
	k.release, k.prefer = release, r.opts.Rank
	if r.agent != nil && opts.Read.From == 0 {
		k.node = r.agent.nodeParts(ctx, r.path, info, k.top.world)
	}
	return k, false, nil
}

// key returns the step in its wire form; nil if there is none.
func (s StepRef) key(run moraine.InodeID) *wire.StepKey {
	if s == (StepRef{}) {
		return nil
	}
	return stepKeyOf(run, s.Attempt, s.Step)
}

// releaseTimeout bounds the release of a lease, which otherwise ends with the session.
const releaseTimeout = 5 * time.Second

// releaseStep ends a read lease, even if ctx has ended.
func releaseStep(ctx context.Context, release func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	_ = release(ctx) // a lease that stays ends with its session
}

// Restorable calls try with the checkpoints of the branch that opts select, latest first, until
// one succeeds. It returns that one, open. If try finds a checkpoint damaged (Corrupt or Lost),
// Restorable continues with the one before. Any other error ends it. It calls skipped, if not
// nil, for each checkpoint that it skips. Ranks that must continue from the same step agree on
// it among themselves, and fix it with Exact and Fix.
func (r *Run) Restorable(ctx context.Context, opts ResolveOptions, try func(*Checkpoint) error, skipped func(StepInfo, error)) (*Checkpoint, error) {
	if opts.Exact || opts.Fix {
		return nil, invalid("ckpt.Restorable", r.path, errors.New("the options Exact and Fix select one step: use Resolve"))
	}
	for {
		info, err := r.find(ctx, opts)
		if err != nil {
			return nil, err
		}
		one := ResolveOptions{Level: opts.Level, Step: info.Step, Exact: true, Read: opts.Read}
		k, err := r.Resolve(ctx, one)
		if err == nil {
			if k.Info.Attempt != info.Attempt {
				err = &moraine.Error{Op: "ckpt.Restorable", Ref: info.ref(), Kind: moraine.NotFound}
			} else if err = try(k); err == nil {
				return k, nil
			}
			_ = k.Close() // nothing was written
		}
		switch moraine.KindOf(err) {
		case moraine.Corrupt, moraine.Lost, moraine.NotFound:
		default:
			return nil, err
		}
		if skipped != nil {
			skipped(info, err)
		}
		opts.Before = StepRef{info.Attempt, info.Step}
	}
}

// find returns the step that opts select, without opening it.
func (r *Run) find(ctx context.Context, opts ResolveOptions) (StepInfo, error) {
	opts.Level = cmp.Or(opts.Level, moraine.NVMe)
	resp, err := r.c.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ResolveStep{ResolveStep: &wire.ResolveStep{
		Run: uint64(r.id), Attempt: r.attempt, Level: uint32(opts.Level), Step: opts.Step, Exact: opts.Exact,
		Before: opts.Before.key(r.id), Tag: opts.Tag, Healthy: opts.Healthy}}})
	if err != nil {
		return StepInfo{}, err
	}
	return stepInfo(resp.GetStep().GetStep()), nil
}

// openCheckpoint reads the top of a committed step's index.
func openCheckpoint(ctx context.Context, c cluster, clock clock.Clock, info StepInfo, opts ReadOptions) (*Checkpoint, error) {
	attr, err := lookup(ctx, c, info.Dir, IndexName)
	if err != nil {
		return nil, err
	}
	file, err := openFrom(ctx, c, moraine.InodeID(attr.GetInode()), opts.From)
	if err != nil {
		return nil, err
	}
	k := &Checkpoint{Info: info, c: c, index: &indexReader{file: file}, opts: opts, memory: opts.readMemory()}
	if err = k.index.readTop(ctx); err != nil {
		file.Close()
		return nil, err
	}
	k.top = k.index.top
	k.files = newStepFiles(c, clock, info.Dir, k.top.files, opts.From)
	t := &k.top.key
	if t.Run != uint64(info.Run) || t.Attempt != info.Attempt || t.Step != info.Step {
		file.Close()
		return nil, corrupt("the index in %s is that of run %x, attempt %d, step %d", info.ref(), t.Run, t.Attempt, t.Step)
	}
	return k, nil
}

// tailGuess is how much of an index is read first: the footer, and usually the top.
const tailGuess = 64 << 10

func (r *indexReader) readTop(ctx context.Context) error {
	size := r.file.Size()
	if size < footerSize {
		return corrupt("an index of %d bytes", size)
	}
	tail := make([]byte, min(size, tailGuess))
	if err := r.read(ctx, tail, size-int64(len(tail))); err != nil {
		return err
	}
	off, length, sum, err := parseFooter(tail[len(tail)-footerSize:], size)
	if err != nil {
		return err
	}
	top := make([]byte, length)
	have := min(int64(len(tail))-footerSize, length)
	copy(top[length-have:], tail[int64(len(tail))-footerSize-have:])
	if have < length {
		if err := r.read(ctx, top[:length-have], off); err != nil {
			return err
		}
	}
	if !sumIs(top, sum) {
		return corrupt("the top does not match its CRC")
	}
	r.top, err = parseTop(top, off)
	return err
}
