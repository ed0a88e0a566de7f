package fuse

import (
	"context"
	"syscall"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"github.com/morainefs/moraine/client"
)

// pagesFor decides whether a file that is being opened has pages, and returns the flags for the
// kernel. A writer has none: its bytes are on their way when write returns. While the pages cannot
// be watched, a file is opened with direct I/O. It still knows the pages that a mapping fills.
func (o *openFiles) pagesFor(f *file, flags uint32) (openFlags uint32) {
	const direct = gofuse.FOPEN_DIRECT_IO
	if f.writes {
		return direct | gofuse.FOPEN_PARALLEL_DIRECT_WRITES
	}
	// There is nothing to commit at its close.
	if flags&(syscall.O_DIRECT|syscall.O_TRUNC) != 0 || !o.pages.client.Leases() {
		return direct | gofuse.FOPEN_NOFLUSH
	}
	n := o.pages.use(f.state.inode)
	f.paged = n
	if !o.pages.watch(n, f.handle.Attr().Generation()) {
		f.direct = true
		return direct | gofuse.FOPEN_NOFLUSH
	}
	keep := false
	if f.pagedIn, keep = n.opened(); keep {
		return gofuse.FOPEN_NOFLUSH | gofuse.FOPEN_KEEP_CACHE
	}
	return gofuse.FOPEN_NOFLUSH
}

const (
	// maxReadTries bounds how often a read begins again because the file was changed meanwhile.
	maxReadTries = 8
	// refreshPatience is how long a read of pages that nobody watches waits for the newest
	// attributes. It is longer than the leader of the metadata waits for a client.
	refreshPatience = 4 * time.Second
)

// read reads for the kernel, which may put the bytes into pages. It first waits for the memory of
// the answer. A drop must know of the read by then: the kernel has locked its pages.
func (o *openFiles) read(ctx context.Context, f *file, in *gofuse.ReadIn, buf []byte, memory func() error) (answer, error) {
	off := int64(in.Offset)
	// A file without pages fills some too, when it is mapped.
	n := f.paged
	if n == nil {
		n = o.pages.known(f.state.inode)
	}
	if n == nil {
		if err := memory(); err != nil {
			return answer{}, err
		}
		return readAt(ctx, f, buf, off)
	}
	paged := f.paged != nil && !f.direct && in.Flags&syscall.O_DIRECT == 0
	s := span{off, off + int64(len(buf))}
	fill := n.beginFill(s, paged, f.pagedIn)
	if err := memory(); err != nil {
		n.endFill(fill, false)
		return answer{}, err
	}
	for try := 1; ; try++ {
		if !fill.watched {
			o.refresh(ctx, f, n)
		}
		got, err := readAt(ctx, f, buf, off)
		repeat := err == nil && try < maxReadTries
		again, unwatched := n.endFill(fill, repeat)
		if again && repeat {
			got.drop()
			continue
		}
		if again || unwatched {
			o.pages.afterwards(n, s)
		}
		return got, err
	}
}

// refresh has an open file take over what others have committed, and begins to watch its pages. If
// the metadata service does not answer, the file stays as it is, like any open file.
func (o *openFiles) refresh(ctx context.Context, f *file, n *pagedInode) {
	ctx, cancel := context.WithTimeout(ctx, refreshPatience)
	defer cancel()
	if err := f.handle.Refresh(ctx); err != nil {
		return
	}
	o.pages.rewatch(n, f.handle.Attr().Generation())
}

// trust is for how long the kernel may use the attributes of an inode. It is 0 for a file that is
// written here: its attributes change without a request.
func (o *openFiles) trust(a client.Attr) time.Duration {
	if o.files.isWritten(a.Inode()) {
		return 0
	}
	return o.pages.trust(a.Inode(), a.Generation())
}

// settle waits until the kernel has dropped what a change of this mount has made old.
func (o *openFiles) settle(ctx context.Context) { o.pages.client.AwaitDropped(ctx) }
