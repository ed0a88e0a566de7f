package client

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync/atomic"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/nodecache"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/client/internal/stripeio"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/transport/wire"
)

// Reader reads one generation of a file: the one at the opening. A file that loses its name stays until
// Close, for as long as the client's session lives. Once the file has another generation, reads return
// the old bytes as long as the cluster still has them, and Stale after that: never a mixture. Methods
// may be called concurrently.
type Reader struct {
	c       *Client
	ref     string
	attr    *wire.Attr
	extents *stripeio.ExtentMap
	object  *stripeio.WholeObject // all reads use it; nil: the extents
	ahead   *readahead
	content nodecache.Content // zero without a cache of the node
	held    atomic.Bool       // the file counts as open
}

// OpenFile opens a regular file for reading, through symbolic links. The caller closes the Reader.
func (c *Client) OpenFile(ctx context.Context, path string) (*Reader, error) {
	for tries := 1; ; tries++ {
		a, err := c.paths.find(ctx, path, true)
		if err != nil {
			return nil, retry.Wrap("client.Open", path, err)
		}
		r, err := openHeld(ctx, c, path, moraine.InodeID(a.Inode))
		if tries == openTries || !retry.IsKind(err, moraine.NotFound) { // otherwise others took the name from it since
			return r, err
		}
	}
}

// openTries bounds the tries to open a file of a name that others replace again and again.
const openTries = 10

// Open opens a regular file, linked or not, by its number. The caller closes the Reader.
func (n Inodes) Open(ctx context.Context, inode moraine.InodeID) (*Reader, error) {
	job := stripeio.JobOf(ctx)
	if job == 0 {
		return openHeld(ctx, n.c, inode.String(), inode)
	}
	r, err := openNow(ctx, n.c, inode.String(), inode) // the job keeps what it works on
	if err == nil {
		r.extents.Job = job
	}
	return r, err
}

// openHeld opens a file that counts as open until Close. It does so before its attributes are read:
// a removal that these do not show finds it open.
func openHeld(ctx context.Context, c *Client, ref string, inode moraine.InodeID) (*Reader, error) {
	c.contents.beginRead(inode)
	r, err := openNow(ctx, c, ref, inode)
	if err == nil && r.attr.Nlink == 0 { // another session may have removed it a moment ago
		err = retry.Wrap("client.Open", ref, c.meta.Orphans.Keep(ctx, inode))
	}
	if err != nil {
		c.contents.endRead(inode)
		return nil, err
	}
	r.held.Store(true)
	return r, nil
}

// openNow opens a file that does not count as open.
func openNow(ctx context.Context, c *Client, ref string, inode moraine.InodeID) (*Reader, error) {
	a, err := c.Inodes().stat(ctx, inode)
	if err != nil {
		return nil, retry.Wrap("client.Open", ref, err)
	}
	return openAttr(c, ref, a)
}

// OpenObject opens the object of a regular file: all bytes come from the bucket, though devices have
// them, too. It fails with NotFound if no object has all of the file, and reads with PermissionDenied in a session
// that is confined to a directory. If the object goes meanwhile, reads fail.
func (n Inodes) OpenObject(ctx context.Context, inode moraine.InodeID) (*Reader, error) {
	r, err := n.Open(ctx, inode)
	if err != nil {
		return nil, err
	}
	if r.object, err = n.c.io.ObjectOf(ctx, r.attr); err != nil {
		_ = r.Close()
		return nil, retry.Wrap("client.OpenObject", inode.String(), err)
	}
	return r, nil
}

var errNoContent = errors.New("only a regular file has content")

// openAttr returns a reader of the file that a describes, if it is a regular one.
func openAttr(c *Client, ref string, a *wire.Attr) (*Reader, error) {
	switch a.Type {
	case wire.FileType_FILE_TYPE_REGULAR:
	case wire.FileType_FILE_TYPE_DIRECTORY:
		return nil, &moraine.Error{Op: "client.Open", Ref: ref, Kind: moraine.IsDirectory}
	default:
		return nil, &moraine.Error{Op: "client.Open", Ref: ref, Kind: moraine.InvalidArgument, Err: errNoContent}
	}
	return newReader(c, ref, a, stripeio.NewExtentMap(c.io, a.Inode, a.Generation)), nil
}

// newReader returns a reader of the generation of extents.
func newReader(c *Client, ref string, a *wire.Attr, extents *stripeio.ExtentMap) *Reader {
	r := &Reader{c: c, ref: ref, attr: a, extents: extents}
	r.ahead = newReadahead(r)
	if c.node != nil {
		r.content = contentOf(c, a)
	}
	return r
}

// Size returns the file's length in bytes.
func (r *Reader) Size() int64 { return int64(r.attr.Size) }

// Generation returns the content version that the Reader reads.
func (r *Reader) Generation() moraine.Generation { return moraine.Generation(r.attr.Generation) }

// Attr returns the file's attributes as of the opening.
func (r *Reader) Attr() Attr { return Attr{r.attr} }

// Close releases what was fetched ahead, and a file that has lost its name. It returns when no fetch is
// running. No other call may run at the same time or follow.
func (r *Reader) Close() error {
	r.ahead.close()
	if r.held.Swap(false) {
		r.c.contents.endRead(moraine.InodeID(r.attr.Inode))
	}
	return nil
}

// ReadAt reads into p from off on and returns how many bytes it read. It
// returns fewer than len(p) only at the end of the file, with io.EOF, or with
// another error. After another error the content of p is undefined.
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

// ReadRange fills dst from off on. A range that reaches past the end of the file is an error.
// It neither uses nor extends what a sequential reader fetched ahead.
func (r *Reader) ReadRange(ctx context.Context, dst []byte, off int64) error {
	if off < 0 || off > r.Size()-int64(len(dst)) {
		return &moraine.Error{Op: "client.Read", Ref: r.ref, Kind: moraine.InvalidArgument, Err: io.ErrUnexpectedEOF}
	}
	return retry.Wrap("client.Read", r.ref, r.read(ctx, dst, off))
}

// InObject reports whether reads of n bytes from off on use an object of the bucket, for some of the bytes
// at least. After a read it describes that read, unless the file has moved since.
func (r *Reader) InObject(ctx context.Context, off, n int64) (bool, error) {
	if r.object != nil {
		return true, nil
	}
	found, err := r.extents.Find(ctx, off, off+n)
	return slices.ContainsFunc(found, func(x stripeio.Located) bool { return x.Object != nil }), retry.Wrap("client.InObject", r.ref, err)
}

// read fills dst, which lies within the file, from the node's cache or from the servers. If a chunk is not where the record says, it
// requests the record again, once. If servers do not answer, it retries until Config.Patience
// has passed.
func (r *Reader) read(ctx context.Context, dst []byte, off int64) error {
	if !r.usesNodeCache(ctx) {
		return r.fetch(ctx, dst, off)
	}
	if r.c.node.Read(r.content, dst, off) {
		return nil
	}
	err := r.fetch(ctx, dst, off)
	if err == nil {
		r.c.node.Add(r.content, dst, off)
	}
	return err
}

// fetch is read from the servers.
func (r *Reader) fetch(ctx context.Context, dst []byte, off int64) error {
	ctx, cancel := context.WithTimeout(ctx, r.c.cfg.Patience)
	defer cancel()
	refreshed := false
	for try := 0; ; try++ {
		crc.SumsOf(ctx).Forget(dst) // another attempt may have filled it
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
			// The chunk is not where the record says, or the capability expired before its
			// renewal.
			refreshed = true
			r.extents.Forget()
		case retry.IsTransient(err):
			// After a layout change the old servers no longer have the chunks.
			r.extents.Forget()
			if !retry.Pause(ctx, r.c.clock, try) {
				return retry.ContextErrorAfter(ctx, "read", err)
			}
		default:
			return err
		}
	}
}

// readOnce reads the ranges of the extents, several in parallel.
func (r *Reader) readOnce(ctx context.Context, dst []byte, off int64, trust bool) error {
	if r.object != nil {
		return r.object.Read(ctx, dst, off)
	}
	found, err := r.extents.Find(ctx, off, off+int64(len(dst)))
	if err != nil {
		return err
	}
	bad, err := r.c.io.ReadLocated(ctx, found, dst, off, trust)
	if bad {
		r.extents.Doubt()
	}
	return err
}
