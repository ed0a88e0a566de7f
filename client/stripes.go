package client

import (
	"context"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/stripeio"
	"github.com/morainefs/moraine/transport/wire"
)

// Stripes is the work of movers and scrubs: what is done to stripes whatever file they are
// of. Its methods may be called concurrently.
type Stripes struct{ io *stripeio.Engine }

// Stripes returns the work of movers and scrubs, under the client's session.
func (c *Client) Stripes() Stripes { return Stripes{c.io} }

// RebuildChunk returns the bytes of a chunk: read from its device, where that
// still has them, or computed from k others. Either way they are verified against
// the sum in the stripe record: what it returns is what the record promises, or
// an error. doubtful has a bit for each chunk that is said to be bad, which is
// asked for after the others, and then those on devices that are not in service.
// Lost: fewer than k chunks are left that agree with the record. The
// bytes are good until release is called, once.
func (s Stripes) RebuildChunk(ctx context.Context, w *wire.Stripe, index int, doubtful uint32) (data []byte, sum uint32, release func(), err error) {
	return s.io.RebuildChunk(ctx, w, index, doubtful)
}

// RecodeParity computes a parity chunk from the data of its stripe, which must all have
// their recorded sums; the sum that is recorded of the parity is not looked at. sum is that of
// the bytes. They are good until release is called, once.
func (s Stripes) RecodeParity(ctx context.Context, w *wire.Stripe, index int) (data []byte, sum uint32, release func(), err error) {
	return s.io.RecodeParity(ctx, w, index)
}

// PutRepaired puts a chunk under a recorded intent: on the intent's device, with
// its layout version, and the capability that came with it. data are the chunk's bytes, whose
// sum is in the record, or in the intent where it says that they were encoded again.
// When it returns nil the chunk is durable there. One attempt, safe to repeat.
func (s Stripes) PutRepaired(ctx context.Context, w *wire.Stripe, intent *wire.Intent, capability, data []byte) error {
	return s.io.PutRepaired(ctx, w, intent, capability, data)
}

// CheckParity reads all chunks of a stripe and compares its parity with what its data give. It
// reports the parity chunks that differ though they, and all data, have their recorded sums,
// and returns a bit for each. On error nothing is known: not all chunks could be read.
func (s Stripes) CheckParity(ctx context.Context, w *wire.Stripe) (wrong uint32, err error) {
	return s.io.CheckParity(ctx, w)
}

// StageRange brings the ranges of a file within [off, off+n) that are in an
// object only back to stripes, for the holder of a STAGE job: attr is the file
// and object what it was evicted to, as of the lease. What is in stripes stays.
// The bytes are read and verified as by a Reader, put under a grant of the
// client's session, and swapped in stripe by stripe; it may be called again
// after an error. Before each stripe pace, unless it is nil, waits until so many bytes may
// be got and put. Stale: the file has another generation by now.
func (s Stripes) StageRange(ctx context.Context, job moraine.JobID, epoch uint64, attr *wire.Attr, object *wire.Object, off, n int64,
	pace func(ctx context.Context, n int64) error) error {
	return s.io.StageRange(ctx, job, epoch, attr, object, off, n, pace)
}

// Rewritten is what lies in new stripes.
type Rewritten = stripeio.Rewritten

// RewriteStripes puts what the file of a REWRITE job names of the job's stripes into new
// ones, and has these swapped in, for the holder of the job. The pieces are put side by
// side, in the order of the file, so that what is left of many stripes makes few. Each is
// read and verified as by a Reader, through pace, which waits until so many more bytes may
// be moved. What somebody changed since it was read is left as it is. A job that names files
// has all that each of them has put beside that of the others. It returns what was swapped in,
// also on error, and may be called again after one.
func (s Stripes) RewriteStripes(ctx context.Context, job *wire.Job, pace func(ctx context.Context, n int64) error) (Rewritten, error) {
	return s.io.RewriteStripes(ctx, job, pace)
}

// WithLowPriority marks what is asked of chunkservers under a context as work that nobody
// waits for. It is for movers: a chunkserver has their repairs, and the commits of
// checkpoints, go before their other work. Of other callers it means nothing.
func WithLowPriority(ctx context.Context) context.Context { return stripeio.WithLowPriority(ctx) }

// WithUrgent marks what is asked of chunkservers under a context as the repair of a stripe
// that has no redundancy left: a chunkserver does not bound it beside clients. It is for
// movers. Of other callers it means nothing.
func WithUrgent(ctx context.Context) context.Context { return stripeio.WithUrgent(ctx) }

// ForJob marks files that are opened under a context as those of a leased job. It is for
// movers: a chunkserver reads the files of the jobs that it holds, and no others.
func ForJob(ctx context.Context, job moraine.JobID) context.Context { return stripeio.ForJob(ctx, job) }
