package bench

import (
	"context"
	"errors"
	"fmt"
	"path"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
)

// restores measures a restore of all ranks at once from each level. What was restored is compared
// with what was saved, after the clock.
func (r *ckptRun) restores(ctx context.Context, to *figures) (err error) {
	readers, err := openTrainers(ctx, r.Env, runName, r.trainers.shards(), "") // no agent: from the cluster
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, readers.close(ctx)) }()
	arena, err := r.restoreFromArena(ctx)
	if err != nil {
		return err
	}
	to.add(func(l *ckptLimits) Line { return arena.against(l.memcpy, "memcpy") })
	memory, hits, err := r.restoreFromMemory(ctx, readers)
	if err != nil {
		return err
	}
	to.add(func(l *ckptLimits) Line { return memory.against(l.loopbackGet, "loopback") })
	to.add(figure(Line{Name: r.name("ckpt-restore-memory-hits"), Value: hits, Unit: "of chunk reads from memory"}))
	if err := r.servers().cool(ctx); err != nil {
		return err
	}
	nvme, err := r.restore(ctx, "ckpt-restore-nvme", readers, moraine.NVMe)
	if err != nil {
		return err
	}
	to.add(func(l *ckptLimits) Line { return nvme.against(l.diskRead, "disk") })
	bucket, err := r.restoreFromBucket(ctx, readers)
	if err != nil {
		return err
	}
	to.add(func(l *ckptLimits) Line { return bucket.against(l.bucketGet, "plain GET from the bucket") })
	return nil
}

// restoreFromArena restores the newest step from the memory of the node, as a job that was started
// again on it does. A byte from elsewhere is an error.
func (r *ckptRun) restoreFromArena(ctx context.Context) (Line, error) {
	if _, err := r.settledSave(ctx, moraine.NVMe); err != nil {
		return Line{}, err
	}
	return r.restoreCounted(ctx, "ckpt-restore-arena", r.trainers, moraine.NVMe, func(got restored) error {
		if got.cluster > 0 || float64(got.node) < r.trainers.bytes {
			return fmt.Errorf("bench: a restore from the arena read %d bytes from the memory of the node and %d from the cluster", got.node, got.cluster)
		}
		return nil
	})
}

// restoreFromMemory restores a step that has just reached level memory. hits is the part of the
// reads of chunks that memory served.
func (r *ckptRun) restoreFromMemory(ctx context.Context, readers *trainers) (line Line, hits float64, err error) {
	s, err := r.saveTo(ctx, moraine.Memory)
	if err != nil {
		return line, 0, err
	}
	before, err := r.servers().tier(ctx)
	if err != nil {
		return line, 0, err
	}
	if line, err = r.restore(ctx, "ckpt-restore-memory", readers, moraine.Memory); err != nil {
		return line, 0, err
	}
	after, err := r.servers().tier(ctx)
	if err != nil {
		return line, 0, err
	}
	d := after.since(before)
	if d.served < r.trainers.bytes {
		return line, 0, fmt.Errorf("bench: chunkservers served %.0f bytes of a restore of %.0f", d.served, r.trainers.bytes)
	}
	return line, d.hits / max(1, d.hits+d.misses), r.settle(ctx, s)
}

// restoreFromBucket restores a step whose files were flushed and evicted. One of a step before it warms
// the memory of the chunkservers, as it is in servers that have run for a while: the machine clears each
// page at its first use.
func (r *ckptRun) restoreFromBucket(ctx context.Context, readers *trainers) (Line, error) {
	first, err := r.evictedStep(ctx)
	if err != nil {
		return Line{}, err
	}
	if _, err = r.evictedStep(ctx); err != nil {
		return Line{}, err
	}
	if err := r.servers().cool(ctx); err != nil {
		return Line{}, err
	}
	r.Progress("a restore from the bucket to warm the chunkservers")
	if _, err := readers.restore(ctx, first.step, moraine.Object); err != nil {
		return Line{}, err
	}
	if err := first.files.move(ctx, client.JobStage); err != nil { // the restore has asked for it
		return Line{}, err
	}
	if err := dropPageCache(); err != nil {
		return Line{}, err
	}
	return r.restore(ctx, "ckpt-restore-object", readers, moraine.Object)
}

// evicted is a step that only the bucket has.
type evicted struct {
	step  uint64
	files *mover
}

// evictedStep saves a step, flushes it and evicts it.
func (r *ckptRun) evictedStep(ctx context.Context) (evicted, error) {
	r.Progress("flushing and evicting a step")
	s, err := r.settledSave(ctx, moraine.Object)
	if err != nil {
		return evicted{}, err
	}
	e := evicted{s.step, &mover{Env: r.Env, c: r.trainers.ranks[0].c}}
	for f, err := range e.files.c.ReadDir(ctx, path.Join(r.trainers.path, s.info.Path)) {
		if err != nil {
			return e, err
		}
		e.files.files = append(e.files.files, f.Attr.Inode())
	}
	return e, e.files.move(ctx, client.JobEvict)
}

// restore restores the newest step without the memory of the node.
func (r *ckptRun) restore(ctx context.Context, name string, ts *trainers, level moraine.Level) (Line, error) {
	return r.restoreCounted(ctx, name, ts, level, func(got restored) error {
		if float64(got.cluster) < ts.bytes {
			return fmt.Errorf("bench: a restore of %.0f bytes read only %d from the cluster", ts.bytes, got.cluster)
		}
		return nil
	})
}

// restoreCounted restores the newest step, and refuses a figure of which counts does not hold.
func (r *ckptRun) restoreCounted(ctx context.Context, name string, ts *trainers, level moraine.Level, holds func(restored) error) (Line, error) {
	r.Progress("%s", name)
	if err := ts.clear(ctx); err != nil {
		return Line{}, err
	}
	var got restored
	u, err := r.measure(ctx, func(ctx context.Context) (err error) {
		got, err = ts.restore(ctx, r.next, level)
		return err
	})
	if err == nil {
		err = holds(got)
	}
	if err == nil {
		err = ts.check(ctx)
	}
	if err != nil {
		return Line{}, fmt.Errorf("%s: %w", name, err)
	}
	return r.rate(name, ts.bytes, u, u.read), nil
}
