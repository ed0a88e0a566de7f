package client

import (
	"cmp"
	"context"
	"errors"
	"io"
	"sync"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/transport/wire"
)

// HandleOptions says how to open a file for reading and writing.
type HandleOptions struct {
	// Level overrides Config.Level as the level that Flush waits for, unless it is 0. All handles
	// of a client on one inode write at the highest level of any. If level memory would protect
	// nothing, as on a single host, the level is nvme. At level local Flush and Close do not wait
	// until the service has the content of a file of up to Config.InlineBytes that this client made in a
	// directory that is delegated to it: the client sends it a few milliseconds later, and a client
	// that dies loses it. A later failure is an error of the next Sync, Flush or Close of the file or of Inodes.Sync
	// of its directory. Other clients that open the file see it. Everything else is as at level memory.
	Level moraine.Level
	// Scheme overrides Config.Scheme unless K is 0. The first handle's scheme applies to all.
	Scheme moraine.Scheme
}

// Handle is a file opened for reading and writing at any offset, as a mount needs it. It copies
// writes and sends them in the background, a few seconds later at most. Flush makes them
// durable and visible to all. All handles of a client on one inode see each other's writes at
// once. Another client sees flushed bytes when it opens the file after the flush, or refreshes
// it (close-to-open).
//
// A file that loses its last name stays whole until its last Handle of the client is closed, whoever
// takes the name, as long as the client's session lives.
//
// If a write fails, its bytes are lost. The next Flush, Sync or Close of each handle that was
// open then returns the error, once. If the client's session expires, bytes that were sent and
// not committed fail with IOError. The client sends bytes that are still in its memory again.
//
// Methods may be called concurrently, except for Close, which comes last.
type Handle struct {
	ct *content

	mu     sync.Mutex
	seen   int // how many of the content's faults it has returned
	reader *baseReader
	closed bool
}

// OpenHandle opens a regular file, linked or not, by its number. It requests the file's current
// attributes from the service. Close ends the Handle; until then the caller must not close the
// client.
func (n Inodes) OpenHandle(ctx context.Context, inode moraine.InodeID, opts HandleOptions) (*Handle, error) {
	h, err := n.openHandle(ctx, inode, opts)
	return h, retry.Wrap("client.OpenHandle", inode.String(), err)
}

func (n Inodes) openHandle(ctx context.Context, inode moraine.InodeID, opts HandleOptions) (*Handle, error) {
	opts.Level = cmp.Or(opts.Level, n.c.cfg.Level)
	if opts.Scheme.K == 0 {
		opts.Scheme = n.c.cfg.Scheme
	}
	local := opts.Level == moraine.Local
	if local {
		opts.Level = moraine.Memory // of its stripes
	}
	if (opts.Scheme.K != 0 && !opts.Scheme.Valid()) || (opts.Level != moraine.NVMe && opts.Level != moraine.Memory) {
		return nil, &moraine.Error{Kind: moraine.InvalidArgument}
	}
	if opts.Level == moraine.Memory && n.c.io.Topology.SingleHost(ctx) {
		opts.Level = moraine.NVMe
	}
	opened := n.c.contents.open(inode)
	h, err := n.openNow(ctx, inode, opts, local)
	if opened() && err == nil {
		if err = h.ct.refresh(ctx); err != nil {
			n.c.contents.letGo(h.ct)
		}
	}
	if err != nil {
		return nil, err
	}
	return h, nil
}

// openNow is openHandle with complete options. local says that the level was Local.
func (n Inodes) openNow(ctx context.Context, inode moraine.InodeID, opts HandleOptions, local bool) (*Handle, error) {
	a, err := n.stat(ctx, inode)
	if err != nil {
		return nil, err
	}
	switch a.Type {
	case wire.FileType_FILE_TYPE_REGULAR:
	case wire.FileType_FILE_TYPE_DIRECTORY:
		return nil, &moraine.Error{Kind: moraine.IsDirectory}
	default:
		return nil, &moraine.Error{Kind: moraine.InvalidArgument}
	}
	if a.Nlink == 0 { // another session may have removed it a moment ago
		if err := n.c.meta.Orphans.Keep(ctx, inode); err != nil {
			return nil, err
		}
	}
	fresh := newContent(ctx, n.c, a, opts)
	fresh.local = local
	ct := n.c.contents.holdOr(inode, fresh)
	if ct == fresh {
		n.c.io.Writes.Join(ct)
	} else {
		fresh.end()
	}
	ct.mu.Lock()
	defer ct.mu.Unlock()
	ct.sawBase(a)
	ct.sender.Level, ct.local = max(ct.sender.Level, opts.Level), ct.local && local
	return &Handle{ct: ct, seen: ct.faults.begin()}, nil
}

// Inode returns the file's number.
func (h *Handle) Inode() moraine.InodeID { return h.ct.sender.Inode }

// Size returns the file's length in bytes, including what this client wrote.
func (h *Handle) Size() int64 {
	h.ct.mu.Lock()
	defer h.ct.mu.Unlock()
	return h.ct.size()
}

// Attr returns the attributes of the newest content received, with the size and the time of
// later writes.
func (h *Handle) Attr() Attr { return Attr{h.ct.attr()} }

// Refresh requests the newest content and attributes from the service. Afterwards the handle
// sees what other clients have flushed. If it fails, the next read does it first, or fails too.
func (h *Handle) Refresh(ctx context.Context) error {
	err := h.ct.refresh(ctx)
	if err != nil {
		h.ct.mu.Lock()
		h.ct.doubted = true
		h.ct.mu.Unlock()
	}
	return retry.Wrap("client.Refresh", h.ct.ref, err)
}

// ReadAt reads into p from off on and returns how many bytes it read. It
// returns fewer than len(p) only at the end of the file, with io.EOF, or with
// another error. After another error the content of p is undefined. It sees
// every write that returned before.
func (h *Handle) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	if err := h.check("client.Read", off); err != nil {
		return 0, err
	}
	n, err := h.read(ctx, p, off)
	if err == nil && n < len(p) {
		return n, io.EOF
	}
	return n, retry.Wrap("client.Read", h.ct.ref, err)
}

// WriteAt writes p at off. It returns after it has copied p. It waits while the client is
// sending Config.StripesInFlight stripes of the file, or its memory is used up. On error it
// returns how many bytes of p it has taken.
func (h *Handle) WriteAt(ctx context.Context, p []byte, off int64) (int, error) {
	if err := h.check("client.Write", off); err != nil {
		return 0, err
	}
	if err := h.ct.c.protected(h.Inode()); err != nil {
		return 0, retry.Wrap("client.Write", h.ct.ref, err)
	}
	n, err := h.ct.write(ctx, p, off)
	return n, retry.Wrap("client.Write", h.ct.ref, err)
}

// Append writes p at the end of the file as the service knows it, after what other clients have
// appended, and returns that offset. It returns when p is committed. A p of up to one stripe is
// appended in one piece.
func (h *Handle) Append(ctx context.Context, p []byte) (off int64, n int, err error) {
	if err := h.check("client.Append", 0); err != nil {
		return 0, 0, err
	}
	if err := h.ct.c.protected(h.Inode()); err != nil {
		return 0, 0, retry.Wrap("client.Append", h.ct.ref, err)
	}
	off, n, err = h.ct.append(ctx, p)
	return off, n, retry.Wrap("client.Append", h.ct.ref, err)
}

// Truncate sets the length of the file to size, visible to all when it returns. It drops bytes
// past size that were written before.
func (h *Handle) Truncate(ctx context.Context, size int64) error {
	if err := h.check("client.Truncate", size); err != nil {
		return err
	}
	_, err := h.ct.setAttr(ctx, &wire.SetAttr{Size: uint64(size), Valid: uint32(wire.SetAttrField_SET_ATTR_SIZE)})
	return retry.Wrap("client.Truncate", h.ct.ref, err)
}

// Flush returns when all earlier writes through any handle of this client on
// the file are committed at the file's level. All clients then see them.
// Otherwise it returns the errors since the last report. After Timeout or
// Canceled of its own ctx nothing is lost: the client still sends the bytes.
func (h *Handle) Flush(ctx context.Context) error {
	if err := h.check("client.Flush", 0); err != nil {
		return err
	}
	if err := h.flush(ctx, "client.Flush"); err != nil {
		return err
	}
	return retry.Wrap("client.Flush", h.ct.ref, h.ct.awaitProtected(ctx))
}

// Sync is Flush at level nvme, of the whole file as this client knows it. Bytes that were
// already flushed at level memory are at nvme too when it returns.
func (h *Handle) Sync(ctx context.Context) error {
	if err := h.check("client.Sync", 0); err != nil {
		return err
	}
	h.ct.mu.Lock()
	h.ct.sender.Level, h.ct.local = moraine.NVMe, false
	h.ct.mu.Unlock()
	if err := h.flush(ctx, "client.Sync"); err != nil {
		return err
	}
	if err := h.ct.c.protected(h.Inode()); err != nil {
		return retry.Wrap("client.Sync", h.ct.ref, err)
	}
	if err := h.ct.c.meta.Desk.Sync(ctx, uint64(h.Inode())); err != nil {
		return retry.Wrap("client.Sync", h.ct.ref, err)
	}
	return retry.Wrap("client.Sync", h.ct.ref, h.ct.awaitNVMe(ctx))
}

func (h *Handle) flush(ctx context.Context, op string) error {
	err := h.ct.flush(ctx)
	if fault := h.report(); fault != nil {
		err = fault
	}
	if fault := h.ct.c.meta.Desk.Fault(uint64(h.Inode())); fault != nil && err == nil {
		err = fault
	}
	return retry.Wrap(op, h.ct.ref, err)
}

// report returns, once, the newest error since the last report.
func (h *Handle) report() error {
	h.ct.mu.Lock()
	defer h.ct.mu.Unlock()
	return h.ct.faults.report(&h.seen)
}

// Close is Flush, and ends the handle, also on error. When the last handle of the file ends,
// the client discards bytes that it could not commit.
func (h *Handle) Close(ctx context.Context) error {
	if err := h.check("client.Close", 0); err != nil {
		return err
	}
	err := h.flush(ctx, "client.Close")
	if err == nil {
		err = retry.Wrap("client.Close", h.ct.ref, h.ct.awaitProtected(ctx))
	}
	h.mu.Lock()
	h.closed = true
	r := h.reader
	h.reader = nil
	h.mu.Unlock()
	if r != nil {
		r.release(true)
	}
	h.ct.c.contents.letGo(h.ct)
	return err
}

func (h *Handle) check(op string, off int64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed:
		return &moraine.Error{Op: op, Ref: h.ct.ref, Kind: moraine.InvalidArgument, Err: errHandleClosed}
	case off < 0:
		return &moraine.Error{Op: op, Ref: h.ct.ref, Kind: moraine.InvalidArgument}
	}
	return nil
}

var errHandleClosed = errors.New("the handle is closed")
