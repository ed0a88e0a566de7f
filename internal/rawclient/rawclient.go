// Package rawclient is the part of a client that speaks in messages of transport/wire. The other
// packages of this module use it: movers, the commands of operators, the mount, fsck, and tests. It is
// no part of the public API of package client, whose programs use the types of that package.
//
// One path through it: package client calls Provide when it is initialized. A mover calls Of with its
// client, leases a job with Meta, gets the bytes of a chunk with RebuildChunk, puts them with
// PutRepaired, and reports the result with Meta.
package rawclient

import (
	"context"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// Client makes requests and moves chunks under the session of a client. Its methods may be called
// concurrently, until the client is closed.
type Client interface {
	// Meta makes one request to the metadata service under the client's session. It repeats the
	// request across lost replies, failovers and redirects until the service answers, ctx ends, or
	// client.Config.Patience has passed. A mutation keeps its number through all attempts, so the
	// service applies it at most once. The caller sets only req.Op (and Partition), which must not
	// change until Meta returns. Meta fills in session and numbers.
	//
	// The error is a *moraine.Error with the service's answer. It is Timeout or
	// Canceled if ctx or the patience ended. It is so too if a reply was lost and a
	// server did not admit a further attempt. Then it is unknown whether a mutation
	// took effect.
	//
	// If the session has expired, Meta opens a new one and makes the request again under it. It
	// does not if an attempt under the old session may have taken effect, or if the request
	// concerns what the old session owned. Then the error is SessionExpired, and later requests run
	// under the new session.
	Meta(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error)

	// HasNoXattrs reports whether the client knows, without a request, that an inode has no extended
	// attributes.
	HasNoXattrs(inode moraine.InodeID) bool

	// OnLost names who keeps copies of content and attributes under the client's cache leases. drop
	// is called, in goroutines of its own, when the copies of some inodes are no longer valid. It
	// returns when none is left, or ctx has ended. The client acknowledges a recall only after that.
	OnLost(drop func(ctx context.Context, inodes []moraine.InodeID))

	// Leases reports whether the client gets cache leases. Without them Keep permits nothing.
	Leases() bool

	// Keep permits copies of an inode's committed content and attributes, from now until drop is
	// called for it. It returns false if no lease covers the inode now.
	Keep(inode moraine.InodeID) (Kept, bool)

	// AwaitDropped waits until no copies are left of what was lost before, for a second at most.
	AwaitDropped(ctx context.Context) bool

	// RebuildChunk returns the bytes of a chunk, from its device if that still has
	// them, or computed from k others. Either way it verifies them against the
	// checksum in the stripe record. doubtful has a bit for each chunk reported as
	// bad. RebuildChunk reads these after the others, and then those on devices
	// that are not in service. Lost: fewer than k chunks agree with the record. The
	// bytes are valid until the caller calls release, once.
	RebuildChunk(ctx context.Context, w *wire.Stripe, index int, doubtful uint32) (data []byte, sum uint32, release func(), err error)

	// RecodeParity computes a parity chunk from the data of its stripe, which must all have their
	// recorded checksums. It ignores the recorded checksum of the parity. sum is the checksum of
	// the returned bytes. They are valid until the caller calls release, once.
	RecodeParity(ctx context.Context, w *wire.Stripe, index int) (data []byte, sum uint32, release func(), err error)

	// PutRepaired puts a chunk under a recorded intent: on the intent's device, with its layout
	// version and its capability. data are the chunk's bytes. Their checksum is in the record, or
	// in the intent if it says that they were encoded again. When it returns nil the chunk is
	// durable there. It makes one attempt, which is safe to repeat.
	PutRepaired(ctx context.Context, w *wire.Stripe, intent *wire.Intent, capability, data []byte) error

	// CheckParity reads all chunks of a stripe and compares its parity with the parity computed
	// from its data. It reports the parity chunks that differ although they, and all data, have
	// their recorded checksums, and returns a bit for each. On error nothing is known: it could not
	// read all chunks.
	CheckParity(ctx context.Context, w *wire.Stripe) (wrong uint32, err error)

	// StageRange copies the evicted ranges of a file within [off, off+n) back into stripes, for the
	// holder of a STAGE job. attr describes the file, and object is the object to which it was
	// evicted, both as of the lease. Ranges in stripes stay. It reads and verifies the bytes as a
	// Reader does, and puts them under a grant of the client's session. It commits stripe by
	// stripe, and the caller may repeat it after an error. Before each stripe pace, unless it is
	// nil, waits until so many bytes may be read and written. Stale: the file has another
	// generation by now.
	StageRange(ctx context.Context, job moraine.JobID, epoch uint64, attr *wire.Attr, object *wire.Object, off, n int64,
		pace func(ctx context.Context, n int64) error) error

	// RewriteStripes copies the live bytes that a REWRITE job's file has in the
	// job's stripes into new stripes. It commits the new ones in their place. It is
	// for the holder of the job. It packs the live pieces in the order of the file,
	// so that what is left of many stripes makes few. It reads and verifies each
	// piece as a Reader does. Before each read pace waits until so many more bytes
	// may be moved. It leaves pieces that changed since it read them. For a job
	// that names files, it packs the pieces of all of them together. It returns
	// what was replaced, also on error, and the caller may repeat it after one.
	RewriteStripes(ctx context.Context, job *wire.Job, pace func(ctx context.Context, n int64) error) (Rewritten, error)
}

// Kept describes an inode of which the caller of Client.Keep may keep copies.
type Kept struct {
	Generation moraine.Generation // of its content
	// Trust is how long the client trusts its leases if no server renews them.
	Trust time.Duration
}

// Rewritten counts what RewriteStripes put into new stripes.
type Rewritten struct {
	Bytes int64
	Files int64 // packed together
}

// Opened is a *client.Client, or a struct that embeds one. Its methods are some of a client's.
type Opened interface {
	Session() moraine.SessionID
	MemoryInUse() int64
}

// of is what Provide was given.
var of func(Opened) Client

// Provide is for package client, which calls it once, when it is initialized.
func Provide(f func(Opened) Client) { of = f }

// Of returns the requests and the work on stripes of a client, under its session. It panics if c is
// no client.
func Of(c Opened) Client { return of(c) }
