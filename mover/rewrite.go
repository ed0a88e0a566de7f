package mover

import (
	"context"

	"github.com/morainefs/moraine"
)

// rewrittenTimes is how many bytes are counted as moved for one that is rewritten: it is got,
// and put with what protects it, as three copies at most.
const rewrittenTimes = 4

// rewrite puts what a file names of stripes that are mostly dead into new ones, or small files
// beside each other, at the
// bound on bytes a second that repairs have. If we stop half way, what was swapped in is;
// the rest is found again by the leader's next look. The commits are under the job's
// lease, and each holds what was read against what the file has then.
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
