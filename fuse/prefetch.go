package fuse

import (
	"context"
	"fmt"
	"io"
	"path"
	"strings"
	"sync"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
)

// Prefetch says which files the mount reads whole, in the background, once a program opens them for
// reading: files that programs map, and then read page by page.
type Prefetch struct {
	// Names are patterns of path.Match for the names of such files. Default: none.
	Names []string
	// CacheOnly reads them only into the client's node cache. Otherwise the kernel gets their pages.
	CacheOnly bool
}

// validate fails if a pattern is wrong.
func (p *Prefetch) validate() error {
	for _, pattern := range p.Names {
		if _, err := path.Match(pattern, ""); err != nil || pattern == "" || strings.Contains(pattern, "/") {
			return &moraine.Error{Op: "fuse.New", Kind: moraine.InvalidArgument,
				Err: fmt.Errorf("the pattern %q of names is wrong: * and ? stand for any characters, and [abc] for one of them", pattern)}
		}
	}
	return nil
}

// prefetches reads files whole. The kernel keeps the bytes as pages, under the same lease as those
// that it has read. A prefetch ends when the last program closes the file, and when the file changes.
type prefetches struct {
	Prefetch
	open  *openFiles
	bytes prometheus.Counter
	store func(node uint64, off int64, p []byte) gofuse.Status
	slots chan struct{} // of those that run

	mu sync.Mutex
	// named are inodes whose name matched when the kernel looked it up: an open has no name.
	named map[moraine.InodeID]struct{}
	of    map[moraine.InodeID]*prefetch
}

// prefetch is one file that is being read, or was, while programs have it open.
type prefetch struct {
	opens  int
	cancel context.CancelFunc
	over   chan struct{} // closed at its end
}

const (
	// prefetchesAtOnce bounds the files that are read at once.
	prefetchesAtOnce = 4
	// maxNamed bounds the inodes that are remembered by their name.
	maxNamed = 1 << 16
	// openAnswered is when the kernel has the answer of an open. It then drops the pages of the file.
	openAnswered = 20 * time.Millisecond
	// prefetchTries is how often the mount begins to read a file of whose pages it has no cache lease, or had lost
	// it: the client has just begun, or another one has just made the file. The first pause is prefetchPause, each
	// further one twice as long.
	prefetchTries, prefetchPause = 6, 100 * time.Millisecond
)

func newPrefetches(p Prefetch, o *openFiles, bytes prometheus.Counter) *prefetches {
	return &prefetches{Prefetch: p, open: o, bytes: bytes, slots: make(chan struct{}, prefetchesAtOnce),
		named: map[moraine.InodeID]struct{}{}, of: map[moraine.InodeID]*prefetch{}}
}

// saw notes the name of an inode. It forgets all names if there are too many: the next look-ups
// bring those that are in use.
func (p *prefetches) saw(name string, a client.Attr) {
	if len(p.Names) == 0 || !a.IsRegular() || !p.matches(name) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.named) >= maxNamed {
		clear(p.named)
	}
	p.named[a.Inode()] = struct{}{}
}

func (p *prefetches) matches(name string) bool {
	for _, pattern := range p.Names {
		if ok, _ := path.Match(pattern, name); ok { // validate has checked it
			return true
		}
	}
	return false
}

// opened begins to read a file that was opened for reading, unless that was done or runs. Each call has a closed.
func (p *prefetches) opened(f *file, flags uint32) {
	if f.writes || flags&(unix.O_DIRECT|unix.O_TRUNC) != 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	inode := f.state.inode
	if _, ok := p.named[inode]; !ok {
		return
	}
	if run := p.of[inode]; run != nil {
		run.opens++
		f.prefetched = true
		return
	}
	ctx, cancel := context.WithCancel(p.open.unlocking)
	run := &prefetch{opens: 1, cancel: cancel, over: make(chan struct{})}
	p.of[inode], f.prefetched = run, true
	p.open.background.Go(func() {
		defer close(run.over)
		defer cancel()
		p.run(ctx, inode)
	})
}

// stop ends the prefetch of a file whose size is about to change, before its last bytes reach the kernel: after the
// change these would be old.
func (p *prefetches) stop(ctx context.Context, inode moraine.InodeID) {
	p.mu.Lock()
	run := p.of[inode]
	p.mu.Unlock()
	if run == nil {
		return
	}
	run.cancel()
	select {
	case <-run.over:
	case <-ctx.Done(): // the change fails too
	}
}

// closed ends the prefetch with the last file that needs it.
func (p *prefetches) closed(f *file) {
	if !f.prefetched {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	run := p.of[f.state.inode]
	if run.opens--; run.opens == 0 {
		run.cancel()
		delete(p.of, f.state.inode)
	}
}

// run reads a file through a handle of its own, and counts as a user of its pages.
func (p *prefetches) run(ctx context.Context, inode moraine.InodeID) {
	select {
	case <-time.After(openAnswered):
	case <-ctx.Done():
		return
	}
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	case <-ctx.Done():
		return
	}
	var generation moraine.Generation
	for try := range prefetchTries {
		if p.once(ctx, inode, &generation) {
			return
		}
		select {
		case <-time.After(prefetchPause << try):
		case <-ctx.Done():
			return
		}
	}
}

// once reads a file of a generation, or of any that it then sets. It returns false if the mount lost the lease of its
// pages meanwhile.
func (p *prefetches) once(ctx context.Context, inode moraine.InodeID, generation *moraine.Generation) (over bool) {
	h, err := p.open.client.Inodes().OpenHandle(ctx, inode, client.HandleOptions{Level: p.open.level})
	if err != nil {
		return true
	}
	defer func() { _ = h.Close(context.WithoutCancel(ctx)) }() // nothing was written
	now := h.Attr().Generation()
	if *generation != 0 && now != *generation {
		return true
	}
	*generation = now
	n := p.open.pages.use(inode)
	defer p.open.pages.leave(n)
	if n.isPrefetched() {
		return true
	}
	if n.watched() != now && !p.open.pages.watch(n, now) {
		return false
	}
	epoch, ok := p.open.pages.beginPrefetch(n, now)
	if !ok {
		return false
	}
	whole, err := p.read(ctx, h, n, epoch)
	if err != nil && ctx.Err() == nil {
		p.open.log.Debug("a file could not be prefetched", "inode", inode, "err", err)
	}
	return whole || err != nil
}

// read reads the file in pieces, in order, until its end, or until its pages are no longer of the
// epoch: then it is not whole.
func (p *prefetches) read(ctx context.Context, h *client.Handle, n *pagedInode, epoch uint64) (whole bool, err error) {
	buf := make([]byte, maxRequest)
	most := h.Size()
	if !p.CacheOnly {
		most = min(most, roomForPages())
	}
	for off := int64(0); off < most; {
		got, err := h.ReadAt(ctx, buf, off)
		if err != nil && err != io.EOF {
			return false, err
		}
		if got == 0 || ctx.Err() != nil {
			return true, ctx.Err()
		}
		if !p.keep(n, epoch, off, buf[:got]) {
			return false, nil
		}
		p.bytes.Add(float64(got))
		off += int64(got)
	}
	n.prefetchedIn(epoch)
	return true, nil
}

// keep gives the kernel bytes for the pages of a file, if they are of the epoch. A drop that begins
// meanwhile drops them too. It returns false if there are others, or the kernel does not take them.
func (p *prefetches) keep(n *pagedInode, epoch uint64, off int64, b []byte) bool {
	if p.CacheOnly {
		return n.isIn(epoch)
	}
	whole := span{off, off + int64(len(b))}
	todo, ok := n.beginStore(whole, epoch)
	if !ok {
		return false
	}
	defer n.endStore(whole)
	for _, s := range todo {
		if !n.isIn(epoch) || !p.store(p.open.node(uint64(n.inode)), s.off, b[s.off-off:s.end-off]).Ok() {
			return false
		}
	}
	return true
}

// roomForPages is how many bytes of one file a prefetch gives the kernel at most: all together half of
// the memory of the machine, so that the end of a large file does not push out its beginning.
func roomForPages() int64 {
	var s unix.Sysinfo_t
	if err := unix.Sysinfo(&s); err != nil {
		return 0
	}
	return int64(uint64(s.Totalram) * uint64(s.Unit) / 2 / prefetchesAtOnce)
}

// beginPrefetch returns the epoch in which the pages of a file with this generation may be filled;
// false: they are not watched, or were filled. The kernel has no pages of another generation then.
func (p *pages) beginPrefetch(n *pagedInode, generation moraine.Generation) (epoch uint64, ok bool) {
	n.turn.Lock()
	defer n.turn.Unlock()
	if n.watched() != generation || generation == 0 {
		return 0, false
	}
	if _, clean := n.opened(); !clean {
		p.drop(n, generation)
	}
	epoch, _ = n.now()
	return epoch, true
}
