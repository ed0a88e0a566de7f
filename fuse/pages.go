package fuse

import (
	"container/list"
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/fuse/handover"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
)

// pages knows of which files the kernel keeps pages, and has it drop them. RFC 0028 has the
// reasons for the rules:
//
//   - A file that is opened for reading has pages if the client has a cache lease on it. While the
//     client may trust the lease, the pages are watched: the client calls dropAll before it
//     acknowledges a change of the file.
//   - While the pages of a file are dropped, no read of them asks the metadata service for its
//     attributes: the kernel drops the pages of a read only after its answer, and the service answers
//     only after the drop. Such a read may return old bytes, and the drop includes its pages.
//   - A read that began before the end of a drop, and ends after it, is repeated.
//   - Pages that are not watched are dropped after each read.
//   - The pages of a file that is open for writing here are not watched. They may have bytes that no
//     commit takes, and nobody would recall these.
type pages struct {
	client rawclient.Client
	// isWritten reports whether a file may have bytes that are not committed.
	isWritten func(moraine.InodeID) bool
	// notify has the kernel drop the attributes of a node and the pages of a range. It returns once
	// the reads that are filling pages of the range are answered.
	notify func(node uint64, off, length int64) gofuse.Status
	node   func(inode uint64) uint64
	reads  prometheus.Counter
	late   late
	ended  atomic.Bool // nothing is watched any more
	state  *handover.State

	mu     sync.Mutex
	of     map[moraine.InodeID]*pagedInode
	unused list.List // of *pagedInode without users, most recently used first
}

// maxUnusedPaged bounds the files that are not open and whose pages the kernel may use at the next
// open.
const maxUnusedPaged = 1 << 16

func newPages(c rawclient.Client, isWritten func(moraine.InodeID) bool, node func(uint64) uint64, reads prometheus.Counter) *pages {
	p := &pages{client: c, isWritten: isWritten, node: node, reads: reads, of: map[moraine.InodeID]*pagedInode{}}
	p.unused.Init()
	return p
}

// begin starts to have pages.
func (p *pages) begin(server *gofuse.Server) {
	p.notify = server.InodeNotify
	p.client.OnLost(p.dropAll)
}

// end has the kernel drop all pages, and lets it keep none from then on: when the session of the
// mount has ended, nobody hears of changes. It waits for endPatience at most.
func (p *pages) end() {
	p.ended.Store(true)
	p.mu.Lock()
	inodes := slices.Collect(maps.Keys(p.of))
	p.mu.Unlock()
	dropped := make(chan struct{})
	p.late.Go(func() {
		defer close(dropped)
		p.dropAll(context.Background(), inodes)
	})
	select {
	case <-dropped:
	case <-time.After(endPatience):
	}
}

// endPatience bounds the time in which the kernel drops all pages at the end of a mount.
const endPatience = time.Second

// use returns the entry of an inode. Each use ends with leave.
func (p *pages) use(inode moraine.InodeID) *pagedInode {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.of[inode]
	if n == nil {
		n = newPagedInode(inode)
		n.place = p.state.Put(handover.Slot{Kind: handover.Paged, Inode: uint64(inode)})
		p.of[inode] = n
	}
	p.join(n)
	return n
}

// join counts a user. The mutex is held.
func (p *pages) join(n *pagedInode) {
	if n.at != nil {
		p.unused.Remove(n.at)
		n.at = nil
	}
	n.users++
}

// leave ends a use. It forgets an inode without users if its pages are not watched. It forgets the
// least recently used one if there are too many: the next open of such a file drops its pages.
func (p *pages) leave(n *pagedInode) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n.users--; n.users > 0 {
		return
	}
	if n.watched() == 0 {
		p.forget(n)
		return
	}
	n.at = p.unused.PushFront(n)
	if p.unused.Len() > maxUnusedPaged {
		oldest := p.unused.Remove(p.unused.Back()).(*pagedInode)
		oldest.at = nil
		p.forget(oldest)
	}
}

// forget forgets an inode without users. The mutex is held.
func (p *pages) forget(n *pagedInode) {
	delete(p.of, n.inode)
	p.state.Drop(n.place)
}

// known returns the entry of an inode, or nil.
func (p *pages) known(inode moraine.InodeID) *pagedInode {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.of[inode]
}

// written ends the watch of a file that was just opened for writing, before the program can write.
// A watch that begins later finds that the file is written.
func (p *pages) written(inode moraine.InodeID) {
	if p.known(inode) == nil {
		return
	}
	n := p.use(inode)
	defer p.leave(n)
	n.turn.Lock()
	defer n.turn.Unlock()
	if n.watched() != 0 {
		p.drop(n, 0)
	}
}

// watch begins to watch the pages of a file with a content of this generation. The kernel drops
// what it has of another one, at the latest when it opens the file. It returns false if no lease
// covers the file, or the file is written here.
func (p *pages) watch(n *pagedInode, generation moraine.Generation) bool {
	epoch, before := n.now()
	if p.ended.Load() || p.isWritten(n.inode) {
		return false
	}
	if k, ok := p.client.Keep(n.inode); !ok || k.Generation != generation {
		return false
	}
	if before == generation {
		return true
	}
	n.turn.Lock()
	defer n.turn.Unlock()
	now, watched := n.now()
	switch {
	case now != epoch:
		return watched != 0 // another call began to watch, or the lease is gone
	case p.ended.Load() || p.isWritten(n.inode):
		return false
	case p.isOnlyUser(n) && n.watchUnused(generation):
	default:
		p.drop(n, generation)
	}
	return true
}

// isOnlyUser reports whether an inode has no user but the caller.
func (p *pages) isOnlyUser(n *pagedInode) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return n.users == 1
}

// trust returns for how long the kernel may use the attributes of an inode with a content of this
// generation. It is 0 unless the pages are watched: only then a change has the kernel drop the
// attributes.
func (p *pages) trust(inode moraine.InodeID, generation moraine.Generation) time.Duration {
	if n := p.known(inode); n == nil || generation == 0 || n.watched() != generation {
		return 0
	}
	k, ok := p.client.Keep(inode)
	if !ok || k.Generation != generation {
		return 0
	}
	return max(k.Trust, 0)
}

// dropAll has the kernel drop the attributes and pages of inodes. The attributes come first, since
// that waits for nothing: before the kernel reads from the pages it then asks for new ones, and
// drops the pages itself if they differ.
func (p *pages) dropAll(_ context.Context, inodes []moraine.InodeID) {
	for _, inode := range inodes {
		p.notify(p.node(uint64(inode)), attributesOnly, 0)
	}
	var g errgroup.Group
	g.SetLimit(dropsAtOnce)
	for _, inode := range inodes {
		g.Go(func() error {
			n := p.use(inode)
			defer p.leave(n)
			n.turn.Lock()
			defer n.turn.Unlock()
			p.drop(n, 0)
			return nil
		})
	}
	_ = g.Wait()
}

// dropsAtOnce limits the files whose pages are dropped concurrently for one recall.
const dropsAtOnce = 64

// attributesOnly is the offset of a notification about attributes alone.
const attributesOnly = -1

// drop has the kernel drop the pages of a file. Afterwards pages of the given
// generation are watched; 0: none. The caller has the file's turn.
func (p *pages) drop(n *pagedInode, next moraine.Generation) {
	todo := n.beginDrop()
	for over := false; !over; todo, over = n.nextDrop(next) {
		p.dropSpans(n, todo)
		n.awaitStores()
	}
}

// stuckAfter is how long the kernel may take to drop pages before it is taken to wait for a read,
// and longestLook the longest time between two looks at the reads.
const (
	stuckAfter  = 20 * time.Millisecond
	longestLook = time.Second
)

// dropSpans has the kernel drop the pages of ranges. The kernel may wait there for a read that it
// sent meanwhile, and that read for the servers. Then dropSpans begins again without the pages of
// such reads. Each begin occupies a thread until the kernel has done it, so there is one only if
// the pages differ.
func (p *pages) dropSpans(n *pagedInode, todo []span) {
	done := p.invalidateAll(n, todo)
	for wait := stuckAfter; ; wait = min(2*wait, longestLook) {
		select {
		case <-done:
			return
		case <-time.After(wait):
		}
		if left := n.stillUnlocked(todo); !slices.Equal(left, todo) {
			todo = left
			done = p.invalidateAll(n, todo)
		}
	}
}

// invalidateAll begins to drop ranges. The channel is closed when the kernel has done it.
func (p *pages) invalidateAll(n *pagedInode, todo []span) <-chan struct{} {
	done := make(chan struct{})
	p.late.Go(func() {
		defer close(done)
		for _, s := range todo {
			p.invalidate(n, s)
		}
	})
	return done
}

// invalidate has the kernel drop the pages of a range. An error means that the kernel does not know
// the inode, or that the file system is unmounted.
func (p *pages) invalidate(n *pagedInode, s span) {
	p.notify(p.node(uint64(n.inode)), s.off, s.end-s.off)
}

// afterwards drops the pages of a read whose answer nobody watches. The kernel has locked these
// pages until it has the answer, and drops them after that.
func (p *pages) afterwards(n *pagedInode, s span) {
	p.late.Go(func() { p.invalidate(n, s) })
}

// rewatch begins to watch pages again, in the background: a read does not wait for it, since it
// may wait for reads.
func (p *pages) rewatch(n *pagedInode, generation moraine.Generation) {
	if !n.rewatching.CompareAndSwap(false, true) {
		return
	}
	p.late.Go(func() {
		defer n.rewatching.Store(false)
		p.watch(n, generation)
	})
}
