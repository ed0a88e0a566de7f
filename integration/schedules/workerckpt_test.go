package schedules_test

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/safetensors"
)

const (
	ranks       = 2
	tensorsEach = 3
)

// tensorName and tensorBytes are what a rank saves; each tensor's bytes follow from
// its name, attempt and step.
func tensorName(rank, i int) string { return fmt.Sprintf("r%d.t%d", rank, i) }

func tensorBytes(i int) int64 { return int64(i*20+10)*blockBytes + headBytes*int64(i+1) }

// checkpointBytes is the size of a step.
func checkpointBytes() (n int64) {
	for i := range tensorsEach {
		n += ranks * tensorBytes(i)
	}
	return n
}

func (w *worker) tensorTag(run, name string, attempt uint32) uint64 {
	return tagOf(w.Seed, fmt.Sprintf("%s %s %d", run, name, attempt))
}

// openRun begins the next attempt, with all ranks, and returns the step to continue
// from; the zero step means that there is none.
func (w *worker) openRun(ctx context.Context, r request) (reply, error) {
	for _, old := range w.runs {
		old.Close(ctx) //nolint:errcheck // it was overtaken
	}
	w.runs = nil
	for rank := range ranks {
		run, err := ckpt.OpenRun(ctx, w.c, r.Path, ckpt.RunOptions{Launch: ckpt.Launch{Name: fmt.Sprint("start ", r.Version)}, Takeover: true,
			Rank: uint32(rank), World: ranks, StagingBytes: 32 << 20})
		if err != nil {
			return reply{}, err
		}
		w.runs = append(w.runs, run)
	}
	a := reply{Attempt: w.runs[0].Attempt()}
	for _, run := range w.runs {
		k, err := run.Resolve(ctx, ckpt.ResolveOptions{Fix: true})
		if errors.Is(err, moraine.NotFound) {
			continue
		}
		if err != nil {
			return reply{}, err
		}
		a.Size, a.Step = int64(k.Info.Attempt), k.Info.Step // Size is the parent's attempt
		k.Close()                                           //nolint:errcheck // nothing was written
	}
	return a, nil
}

// save makes all ranks save a step, and waits until it is safe.
func (w *worker) save(ctx context.Context, r request) error {
	if len(w.runs) != ranks {
		return errors.New("no run is open")
	}
	errs := make([]error, ranks)
	var wg sync.WaitGroup
	for rank, run := range w.runs {
		wg.Go(func() { errs[rank] = w.saveRank(ctx, r, rank, run) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (w *worker) saveRank(ctx context.Context, r request, rank int, run *ckpt.Run) error {
	part, err := run.Begin(ctx, r.Step, ckpt.BeginOptions{})
	if err != nil {
		return err
	}
	for i := range tensorsEach {
		name, p := tensorName(rank, i), make([]byte, tensorBytes(i))
		fill(p, w.tensorTag(r.Path, name, run.Attempt()), uint32(r.Step), 0)
		if err := part.AddTensor(ctx, ckpt.Tensor{Name: name, DType: ckpt.U8, Shape: []int64{int64(len(p))}, Data: p}); err != nil {
			part.Abort(err)
			return err
		}
	}
	if err := part.Seal(ctx); err != nil {
		part.Abort(err)
		return err
	}
	_, err = part.Wait(ctx, moraine.NVMe)
	return err
}

// restore reads the latest step; the zero step means that there is none.
func (w *worker) restore(ctx context.Context, r request) (reply, error) {
	run, err := ckpt.OpenRun(ctx, w.c, r.Path, ckpt.RunOptions{ReadOnly: true})
	if errors.Is(err, moraine.NotFound) {
		return reply{}, nil
	}
	if err != nil {
		return reply{}, err
	}
	defer run.Close(ctx) //nolint:errcheck // nothing was saved
	k, err := run.Resolve(ctx, ckpt.ResolveOptions{})
	if errors.Is(err, moraine.NotFound) {
		return reply{}, nil
	}
	if err != nil {
		return reply{}, err
	}
	defer k.Close() //nolint:errcheck // nothing was written
	a := reply{Attempt: k.Info.Attempt, Step: k.Info.Step}
	for rank := range ranks {
		for i := range tensorsEach {
			name := tensorName(rank, i)
			p, err := k.ReadTensor(ctx, name)
			if err != nil {
				return reply{}, err
			}
			if err := w.holdTensor(r.Path, name, i, a, p); err != nil {
				return a, err
			}
		}
	}
	return a, nil
}

// holdTensor compares a tensor's bytes with the saved ones.
func (w *worker) holdTensor(run, name string, i int, a reply, p []byte) error {
	what := fmt.Sprintf("%s of attempt %d, step %d", name, a.Attempt, a.Step)
	if int64(len(p)) != tensorBytes(i) {
		return wrongBytes{fmt.Errorf("%s has %d bytes, not %d", what, len(p), tensorBytes(i))}
	}
	versions, err := versionsOf(p, w.tensorTag(run, name, a.Attempt), 0)
	if err != nil {
		return wrongBytes{fmt.Errorf("%s: %w", what, err)}
	}
	for _, v := range versions {
		if uint64(v) != a.Step {
			return wrongBytes{fmt.Errorf("%s has bytes of step %d", what, v)}
		}
	}
	return nil
}

// stepFiles reads the files of a committed step, as any reader of files would.
func (w *worker) stepFiles(ctx context.Context, r request) (reply, error) {
	a := reply{Attempt: r.Attempt, Step: r.Step}
	for rank := range ranks {
		path := fmt.Sprintf("%s/attempt-%d/step-%d/rank-%05d-of-%05d.safetensors", r.Path, r.Attempt, r.Step, rank, ranks)
		f, err := w.c.OpenFile(ctx, path)
		if errors.Is(err, moraine.NotFound) {
			return reply{Missing: true}, nil
		}
		if err != nil {
			return reply{}, err
		}
		p := make([]byte, f.Size())
		err = f.ReadRange(ctx, p, 0)
		f.Close() //nolint:errcheck // nothing was written
		if err != nil {
			return reply{}, err
		}
		n, err := safetensors.HeaderLen(p)
		if err != nil || n > int64(len(p)) {
			return a, wrongBytes{fmt.Errorf("%s: its header: %d bytes, %w", path, n, err)}
		}
		h, err := safetensors.Parse(p[:n], int64(len(p)))
		if err != nil || len(h.Tensors) != tensorsEach {
			return a, wrongBytes{fmt.Errorf("%s: its header: %w", path, err)}
		}
		for i := range tensorsEach {
			for _, t := range h.Tensors {
				if t.Name != tensorName(rank, i) {
					continue
				}
				if err := w.holdTensor(r.Path, t.Name, i, a, p[n+t.Begin:n+t.End]); err != nil {
					return a, err
				}
			}
		}
	}
	return a, nil
}
