package client

import (
	"context"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/stripeio"
	"github.com/morainefs/moraine/transport/wire"
)

// Stripes are operations of movers and scrubs on stripes, whatever file these belong to. Its
// methods may be called concurrently.
type Stripes struct{ io *stripeio.Engine }

// Stripes returns the operations of movers and scrubs, under the client's session.
func (c *Client) Stripes() Stripes { return Stripes{c.io} }

// RebuildChunk returns the bytes of a chunk, from its device if that still has
// them, or computed from k others. Either way it verifies them against the
// checksum in the stripe record. doubtful has a bit for each chunk reported as
// bad. RebuildChunk reads these after the others, and then those on devices
// that are not in service. Lost: fewer than k chunks agree with the record. The
// bytes are valid until the caller calls release, once.
func (s Stripes) RebuildChunk(ctx context.Context, w *wire.Stripe, index int, doubtful uint32) (data []byte, sum uint32, release func(), err error) {
	return s.io.RebuildChunk(ctx, w, index, doubtful)
}

// RecodeParity computes a parity chunk from the data of its stripe, which must all have their
// recorded checksums. It ignores the recorded checksum of the parity. sum is the checksum of
// the returned bytes. They are valid until the caller calls release, once.
func (s Stripes) RecodeParity(ctx context.Context, w *wire.Stripe, index int) (data []byte, sum uint32, release func(), err error) {
	return s.io.RecodeParity(ctx, w, index)
}

// PutRepaired puts a chunk under a recorded intent: on the intent's device, with its layout
// version and its capability. data are the chunk's bytes. Their checksum is in the record, or
// in the intent if it says that they were encoded again. When it returns nil the chunk is
// durable there. It makes one attempt, which is safe to repeat.
func (s Stripes) PutRepaired(ctx context.Context, w *wire.Stripe, intent *wire.Intent, capability, data []byte) error {
	return s.io.PutRepaired(ctx, w, intent, capability, data)
}

// CheckParity reads all chunks of a stripe and compares its parity with the parity computed
// from its data. It reports the parity chunks that differ although they, and all data, have
// their recorded checksums, and returns a bit for each. On error nothing is known: it could not
// read all chunks.
func (s Stripes) CheckParity(ctx context.Context, w *wire.Stripe) (wrong uint32, err error) {
	return s.io.CheckParity(ctx, w)
}

// StageRange copies the evicted ranges of a file within [off, off+n) back into stripes, for the
// holder of a STAGE job. attr describes the file, and object is the object to which it was
// evicted, both as of the lease. Ranges in stripes stay. It reads and verifies the bytes as a
// Reader does, and puts them under a grant of the client's session. It commits stripe by
// stripe, and the caller may repeat it after an error. Before each stripe pace, unless it is
// nil, waits until so many bytes may be read and written. Stale: the file has another
// generation by now.
func (s Stripes) StageRange(ctx context.Context, job moraine.JobID, epoch uint64, attr *wire.Attr, object *wire.Object, off, n int64,
	pace func(ctx context.Context, n int64) error) error {
	return s.io.StageRange(ctx, job, epoch, attr, object, off, n, pace)
}

// Rewritten counts what RewriteStripes put into new stripes.
type Rewritten = stripeio.Rewritten

// RewriteStripes copies the live bytes that a REWRITE job's file has in the
// job's stripes into new stripes. It commits the new ones in their place. It is
// for the holder of the job. It packs the live pieces in the order of the file,
// so that what is left of many stripes makes few. It reads and verifies each
// piece as a Reader does. Before each read pace waits until so many more bytes
// may be moved. It leaves pieces that changed since it read them. For a job
// that names files, it packs the pieces of all of them together. It returns
// what was replaced, also on error, and the caller may repeat it after one.
func (s Stripes) RewriteStripes(ctx context.Context, job *wire.Job, pace func(ctx context.Context, n int64) error) (Rewritten, error) {
	return s.io.RewriteStripes(ctx, job, pace)
}

// WithLowPriority marks requests to chunkservers under a context as work that no program waits
// for. It is for movers: a chunkserver serves their repairs, and the commits of checkpoints,
// before their other work. It has no effect for other callers.
func WithLowPriority(ctx context.Context) context.Context { return stripeio.WithLowPriority(ctx) }

// WithUrgent marks requests to chunkservers under a context as the repair of a stripe that has
// no redundancy left. A chunkserver then does not throttle them in favour of clients. It is for
// movers and has no effect for other callers.
func WithUrgent(ctx context.Context) context.Context { return stripeio.WithUrgent(ctx) }

// ForJob marks files opened under a context as those of a leased job. It is for movers: a
// chunkserver may read only the files of the jobs that it holds.
func ForJob(ctx context.Context, job moraine.JobID) context.Context { return stripeio.ForJob(ctx, job) }
