package mover

import (
	"context"

	"github.com/morainefs/moraine"
)

// rewrittenTimes is how many bytes count as moved for each rewritten byte: it is read, and
// written with its protection, at most as three copies.
const rewrittenTimes = 4

// rewrite copies the live bytes of mostly dead stripes into new ones, or packs
// small files together. It keeps to the bound on bytes a second for repairs. If
// the mover stops in the middle, committed stripes stay, and the leader's next
// look finds the rest. The commits are under the job's lease, and the service
// compares what was read with the file at that moment.
func (w *work) rewrite(ctx context.Context) error {
	switch {
	case w.deps.Rewrite == nil:
		return w.fault(moraine.Unimplemented, "this mover cannot rewrite stripes")
	case len(w.job.GetRewrite().GetStripes())+len(w.job.GetRewrite().GetFiles()) == 0:
		return w.fault(moraine.Internal, "the job names no stripes and no files")
	}
	done, err := w.deps.Rewrite(ctx, w.job, func(ctx context.Context, n int64) error {
		err := w.throttle(ctx, n)
		if err == nil {
			err = w.pace(ctx, rewrittenTimes*n)
		}
		if err == nil {
			w.done.Add(uint64(n))
		}
		return err
	})
	w.deps.Metrics.BytesRewritten.Add(float64(done.Bytes))
	w.deps.Metrics.FilesPacked.Add(float64(done.Files))
	return err
}
