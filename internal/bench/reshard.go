package bench

import (
	"context"
	"errors"
	"fmt"
	"path"
	"runtime/debug"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/internal/llama"
)

// worlds are the numbers of ranks that restore in turn what the one before saved.
var worlds = []uint32{2, 3, 8}

// reshard measures how many bytes a restore by another number of ranks reads, for each byte that
// it needs. Each job saves what it restored, for the next one.
func (r *ckptRun) reshard(ctx context.Context, to *figures) error {
	from, world, step := runName, uint32(ckptWorld), r.next
	for i, next := range worlds {
		r.Progress("restore by %d ranks of what %d saved", next, world)
		saved := ""
		if i < len(worlds)-1 {
			saved = fmt.Sprintf("world-%d", next)
		}
		read, err := r.reshardTo(ctx, from, step, saved, next)
		if err != nil {
			return fmt.Errorf("bench: restore by %d ranks of what %d saved: %w", next, world, err)
		}
		to.add(figure(Line{Name: r.name(fmt.Sprintf("ckpt-reshard-%d-%d", world, next)),
			Value: float64(read) / gb, Unit: "GB read"}.against(float64(r.model.Bytes())/gb, "GB needed")))
		from, world, step = saved, next, 1
	}
	return nil
}

// reshardTo restores a step by so many ranks, and saves it again as step 1 of another run, if that
// has a name. There is memory for one rank only: they come one after the other.
func (r *ckptRun) reshardTo(ctx context.Context, from string, step uint64, to string, world uint32) (read int64, err error) {
	for rank := range world {
		n, err := r.reshardRank(ctx, from, step, to, llama.NewShard(r.model, rank, world))
		if err != nil {
			return 0, fmt.Errorf("rank %d: %w", rank, err)
		}
		read += n
		debug.FreeOSMemory() // the shard may have half of the model
	}
	if to == "" {
		return read, nil
	}
	run, err := ckpt.OpenRun(ctx, r.trainers.ranks[0].c, path.Join(runsDir, to), ckpt.RunOptions{ReadOnly: true})
	if err != nil {
		return 0, err
	}
	_, err = run.WaitStep(ctx, 1, moraine.NVMe)
	return read, errors.Join(err, run.Close(ctx))
}

// reshardRank restores one rank without an agent, which counts the bytes, and saves it with one.
func (r *ckptRun) reshardRank(ctx context.Context, from string, step uint64, to string, shard *llama.Shard) (read int64, err error) {
	one := []*llama.Shard{shard}
	reader, err := openTrainers(ctx, r.Env, from, one, "")
	if err != nil {
		return 0, err
	}
	got, err := reader.ranks[0].restore(ctx, step, moraine.NVMe)
	if err = errors.Join(err, reader.close(ctx)); err != nil {
		return 0, err
	}
	if err := shard.Check(modelSeed); err != nil || to == "" {
		return got.cluster, err
	}
	writer, err := openTrainers(ctx, r.Env, to, one, r.agent.socket())
	if err != nil {
		return 0, err
	}
	_, err = writer.ranks[0].seal(ctx, 1)
	return got.cluster, errors.Join(err, writer.close(ctx))
}
