package llama

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync/atomic"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"golang.org/x/sync/errgroup"
)

// Wide is a training job of very many ranks, each of which saves a row of each tensor: it has many
// slices and few bytes. All its ranks are simulated by one process.
type Wide struct {
	Path    string // of the run
	World   uint32
	Tensors int
}

// wideRow is how many bytes a slice has.
const wideRow = 4

// wideStaging is the staging memory of one rank.
const wideStaging = 32 << 20

func (w Wide) tensor(n int) string { return fmt.Sprintf("model.layers.%06d.mlp.weight", n) }

// row fills the row of a tensor.
func (w Wide) row(b []byte, n int, row int64) {
	v := bits.RotateLeft32(uint32(n)*2654435761^uint32(row)*40503, 13)
	for i := range b {
		b[i] = byte(v >> (8 * i))
	}
}

// Save saves the parts of the ranks [from, to) of a step, so many at once. It returns when the last
// of them was sealed in the cluster.
func (w Wide) Save(ctx context.Context, c *client.Client, step uint64, from, to uint32, atOnce int) (sealed time.Time, err error) {
	g, ctx := errgroup.WithContext(ctx)
	times := make([]time.Time, atOnce)
	var next atomic.Uint32
	next.Store(from)
	for i := range atOnce {
		g.Go(func() (err error) {
			for {
				rank := next.Add(1) - 1
				if rank >= to || ctx.Err() != nil {
					return ctx.Err()
				}
				if times[i], err = w.saveRank(ctx, c, step, rank); err != nil {
					return fmt.Errorf("rank %d: %w", rank, err)
				}
			}
		})
	}
	err = g.Wait()
	return slices.MaxFunc(times, time.Time.Compare), err
}

func (w Wide) saveRank(ctx context.Context, c *client.Client, step uint64, rank uint32) (sealed time.Time, err error) {
	run, err := ckpt.OpenRun(ctx, c, w.Path, ckpt.RunOptions{Launch: ckpt.Launch{Name: "wide"}, Rank: rank, World: w.World, StagingBytes: wideStaging})
	if err != nil {
		return sealed, err
	}
	defer func() { err = errors.Join(err, run.Close(ctx)) }()
	part, err := run.Begin(ctx, step, ckpt.BeginOptions{})
	if err != nil {
		return sealed, err
	}
	data := make([]byte, wideRow)
	for n := range w.Tensors {
		w.row(data, n, int64(rank))
		err := part.AddTensor(ctx, ckpt.Tensor{Name: w.tensor(n), DType: ckpt.U8, Global: []int64{int64(w.World), wideRow},
			Offset: []int64{int64(rank), 0}, Shape: []int64{1, wideRow}, Data: data})
		if err != nil {
			return sealed, err
		}
	}
	if err := part.Seal(ctx); err != nil {
		return sealed, err
	}
	<-part.Done()
	sealed = time.Now()
	if _, err := run.LastFailure(); err != nil {
		return sealed, err
	}
	return sealed, nil
}

// Wait waits until a step is committed at level nvme.
func (w Wide) Wait(ctx context.Context, c *client.Client, step uint64) (err error) {
	run, err := ckpt.OpenRun(ctx, c, w.Path, ckpt.RunOptions{ReadOnly: true})
	if err != nil {
		return err
	}
	_, err = run.WaitStep(ctx, step, moraine.NVMe)
	return errors.Join(err, run.Close(ctx))
}

// Restore restores the rows of rank of world, which may be fewer ranks than saved them, and compares
// each byte. It returns how many bytes of the index it read, and how many the index has.
func (w Wide) Restore(ctx context.Context, c *client.Client, step uint64, rank, world uint32) (read, size int64, err error) {
	run, err := ckpt.OpenRun(ctx, c, w.Path, ckpt.RunOptions{ReadOnly: true})
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, run.Close(ctx)) }()
	k, err := run.Resolve(ctx, ckpt.ResolveOptions{Step: step, Exact: true})
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, k.Close()) }()
	first, last := int64(w.World)*int64(rank)/int64(world), int64(w.World)*int64(rank+1)/int64(world)
	reqs := make([]ckpt.SliceRequest, w.Tensors)
	for n := range reqs {
		reqs[n] = ckpt.SliceRequest{Name: w.tensor(n), Offset: []int64{first, 0}, Shape: []int64{last - first, wideRow}, Dst: make([]byte, (last-first)*wideRow)}
	}
	if err := k.Restore(ctx, reqs); err != nil {
		return 0, 0, err
	}
	want := make([]byte, wideRow)
	for n := range reqs {
		for row := first; row < last; row++ {
			w.row(want, n, row)
			if got := reqs[n].Dst[(row-first)*wideRow:][:wideRow]; !bytes.Equal(got, want) {
				return 0, 0, fmt.Errorf("tensor %s, row %d: got %x, want %x", w.tensor(n), row, got, want)
			}
		}
	}
	read, size = k.IndexBytes()
	return read, size, nil
}
