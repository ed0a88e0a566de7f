package stripeio

import (
	"context"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/morainefs/moraine/client/internal/retry"
)

// MaxParallelStripes bounds the stripes that one call reads in parallel.
const MaxParallelStripes = 8

// stripeTries bounds how often a stripe of a range is read again before the whole range is,
// with new extents.
const stripeTries = 3

// ReadLocated fills dst, which begins at offset off of a file, from the extents that overlap
// it, in order. Bytes without an extent are a hole. bad says that a chunk was lost, wrong, or
// not the record's.
func (e *Engine) ReadLocated(ctx context.Context, found []Located, dst []byte, off int64, trust bool) (bad bool, err error) {
	var wrong atomic.Bool
	once := func(ctx context.Context, x Located, lo int64, part []byte) error {
		at := x.StripeOffset + lo - x.Offset
		if x.Bytes != nil {
			copy(part, x.Bytes[at-x.origin:])
			return nil
		}
		if x.Object != nil {
			return e.readObject(ctx, x.Object, at, part)
		}
		sr := newStripeRead(e, x.Record, at, part, trust)
		err := sr.run(ctx)
		if sr.foundBad() {
			wrong.Store(true)
		}
		return err
	}
	run := func(ctx context.Context, x Located, lo int64, part []byte) error {
		for try := 0; ; try++ {
			err := once(ctx, x, lo, part)
			// A range of many stripes would never complete if one failure restarted all of it.
			if err == nil || !retry.IsTransient(err) || try == stripeTries || !retry.Pause(ctx, e.clock, try+2*boolInt(x.Object != nil)) {
				return err
			}
		}
	}
	at := off
	end := off + int64(len(dst))
	// covered returns the part of dst for the next extent.
	covered := func(x *Located) (lo int64, part []byte) {
		lo, hi := max(x.Offset, at), min(x.End(), end)
		clear(dst[at-off : lo-off]) // a hole
		at = hi
		return lo, dst[lo-off : hi-off]
	}
	if len(found) == 1 { // a small read, which need not pay for more
		lo, part := covered(&found[0])
		clear(dst[at-off:])
		err := run(ctx, found[0], lo, part)
		return wrong.Load(), err
	}
	var group errgroup.Group
	group.SetLimit(MaxParallelStripes)
	all, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, x := range found {
		lo, part := covered(&x)
		group.Go(func() error {
			err := run(all, x, lo, part)
			if err != nil {
				cancel()
			}
			return err
		})
	}
	clear(dst[at-off:])
	err = group.Wait()
	return wrong.Load(), err
}
