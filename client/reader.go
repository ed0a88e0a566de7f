package client

import (
	"context"
	"io"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/transport/wire"
)

// Reader reads one generation of a file: the one that was there when it was
// opened. Once the file has another one, reads return the old bytes as long as
// the cluster still has them, and Stale after that: never a mixture. Methods may
// be called concurrently.
type Reader struct {
	c       *Client
	ref     string
	attr    *wire.Attr
	extents *extentMap
	ahead   *readahead
}

// maxParallelStripes bounds the stripes that one call reads side by side.
const maxParallelStripes = 8

// stripeTries bounds how often a stripe of a range is read again before the
// whole range is, from extents that are looked up anew.
const stripeTries = 3

// OpenFile opens a regular file for reading, through symbolic links.
func (c *Client) OpenFile(ctx context.Context, path string) (*Reader, error) {
	a, err := c.find(ctx, path, true)
	if err != nil {
		return nil, retry.Wrap("client.Open", path, err)
	}
	return c.open(path, a)
}

// OpenInode opens a regular file, linked or not, by its number.
func (c *Client) OpenInode(ctx context.Context, inode moraine.InodeID) (*Reader, error) {
	a, err := c.StatInode(ctx, inode)
	if err != nil {
		return nil, retry.Wrap("client.Open", inode.String(), err)
	}
	r, err := c.open(inode.String(), a)
	if err == nil {
		r.extents.job = jobOf(ctx)
	}
	return r, err
}

func (c *Client) open(ref string, a *wire.Attr) (*Reader, error) {
	switch a.Type {
	case wire.FileType_FILE_TYPE_REGULAR:
	case wire.FileType_FILE_TYPE_DIRECTORY:
		return nil, &moraine.Error{Op: "client.Open", Ref: ref, Kind: moraine.IsDirectory}
	default:
		return nil, &moraine.Error{Op: "client.Open", Ref: ref, Kind: moraine.InvalidArgument}
	}
	return c.newReader(ref, a, newExtentMap(c, a.Inode, a.Generation)), nil
}

// newReader returns a reader of the generation that extents is of.
func (c *Client) newReader(ref string, a *wire.Attr, extents *extentMap) *Reader {
	r := &Reader{c: c, ref: ref, attr: a, extents: extents}
	r.ahead = newReadahead(r)
	return r
}

// Size returns the file's length in bytes.
func (r *Reader) Size() int64 { return int64(r.attr.Size) }

// Generation returns the content version that is read.
func (r *Reader) Generation() moraine.Generation { return moraine.Generation(r.attr.Generation) }

// Attr returns the file's attributes as of the opening. They are not to be changed.
func (r *Reader) Attr() *wire.Attr { return r.attr }

// Close gives back what was fetched ahead, and returns when nothing is being
// fetched any more. No other call may be under way or follow.
func (r *Reader) Close() error {
	r.ahead.close()
	return nil
}

// ReadAt reads into p from off on and returns how many bytes it read: fewer than
// len(p) only at the end of the file, with io.EOF, or with another error, after
// which the content of p is undefined.
func (r *Reader) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, &moraine.Error{Op: "client.Read", Ref: r.ref, Kind: moraine.InvalidArgument}
	}
	n := min(int64(len(p)), max(0, r.Size()-off))
	if n > 0 {
		if err := r.ahead.read(ctx, p[:n], off); err != nil {
			return 0, retry.Wrap("client.Read", r.ref, err)
		}
	}
	if n < int64(len(p)) {
		return int(n), io.EOF
	}
	return int(n), nil
}

// ReadRange fills dst from off on. A range that reaches past the end of the file
// is an error. What is read is not taken from, or added to, what a sequential
// reader fetched ahead.
func (r *Reader) ReadRange(ctx context.Context, dst []byte, off int64) error {
	if off < 0 || off > r.Size()-int64(len(dst)) {
		return &moraine.Error{Op: "client.Read", Ref: r.ref, Kind: moraine.InvalidArgument, Err: io.ErrUnexpectedEOF}
	}
	return retry.Wrap("client.Read", r.ref, r.read(ctx, dst, off))
}

// read fills dst, which lies within the file. A chunk that is not where the
// record says makes it look again where it is, once; servers that do not answer
// are asked again until Config.Patience has passed.
func (r *Reader) read(ctx context.Context, dst []byte, off int64) error {
	ctx, cancel := context.WithTimeout(ctx, r.c.cfg.Patience)
	defer cancel()
	refreshed := false
	for try := 0; ; try++ {
		err := r.readOnce(ctx, dst, off, try > 0)
		if err == nil {
			r.c.metrics.ReadBytes.Add(float64(len(dst)))
			return nil
		}
		if ctx.Err() != nil {
			return retry.ContextErrorAfter(ctx, "read", err)
		}
		switch {
		case (retry.IsKind(err, moraine.Lost) || retry.IsKind(err, moraine.PermissionDenied)) && !refreshed:
			// Not where the record says, or the capability ended before its renewal.
			refreshed = true
			r.extents.forget()
		case retry.IsTransient(err):
			// A layout that changed shows as servers that do not have it.
			r.extents.forget()
			if !retry.Pause(ctx, r.c.clock, try) {
				return retry.ContextErrorAfter(ctx, "read", err)
			}
		default:
			return err
		}
	}
}

// readOnce reads each extent's range, several side by side.
func (r *Reader) readOnce(ctx context.Context, dst []byte, off int64, trust bool) error {
	found, err := r.extents.find(ctx, off, off+int64(len(dst)))
	if err != nil {
		return err
	}
	bad, err := r.c.readLocated(ctx, found, dst, off, trust)
	if bad {
		r.extents.doubt()
	}
	return err
}

// readLocated fills dst, which begins at offset off of a file, from extents that
// overlap it, in order: what none covers is a hole. bad says that a chunk was
// lost, wrong, or not the one that its record means.
func (c *Client) readLocated(ctx context.Context, found []located, dst []byte, off int64, trust bool) (bad bool, err error) {
	var wrong atomic.Bool
	once := func(ctx context.Context, e located, lo int64, part []byte) error {
		at := e.StripeOffset + lo - e.Offset
		if e.object != nil {
			return c.readObject(ctx, e.object, at, part)
		}
		sr := newStripeRead(c, e.stripe, at, part, trust)
		err := sr.run(ctx)
		if sr.foundBad() {
			wrong.Store(true)
		}
		return err
	}
	run := func(ctx context.Context, e located, lo int64, part []byte) error {
		for try := 0; ; try++ {
			err := once(ctx, e, lo, part)
			// A range of many stripes would never be whole if one that fails made
			// all of it begin again.
			if err == nil || !retry.IsTransient(err) || try == stripeTries || !retry.Pause(ctx, c.clock, try+2*boolInt(e.object != nil)) {
				return err
			}
		}
	}
	at := off
	end := off + int64(len(dst))
	// covered returns the part of dst that an extent, the next one, is for.
	covered := func(e *located) (lo int64, part []byte) {
		lo, hi := max(e.Offset, at), min(e.End(), end)
		clear(dst[at-off : lo-off]) // a hole
		at = hi
		return lo, dst[lo-off : hi-off]
	}
	if len(found) == 1 { // as of a small read, which need not pay for more
		lo, part := covered(&found[0])
		clear(dst[at-off:])
		err := run(ctx, found[0], lo, part)
		return wrong.Load(), err
	}
	var group errgroup.Group
	group.SetLimit(maxParallelStripes)
	all, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, e := range found {
		lo, part := covered(&e)
		group.Go(func() error {
			err := run(all, e, lo, part)
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
