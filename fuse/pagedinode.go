package fuse

import (
	"container/list"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/fuse/handover"
)

// pagedInode is a file of which the kernel may have pages.
type pagedInode struct {
	inode      moraine.InodeID
	place      handover.Place // in the state; constant
	users      int            // open files and running drops; guarded by pages.mu
	at         *list.Element  // in pages.unused; nil while there are users
	turn       sync.Mutex     // held by a drop
	rewatching atomic.Bool

	mu sync.Mutex // guards the fields below
	// generation is that of the pages, 0 while they are not watched.
	generation moraine.Generation
	// clean says that the kernel has no pages of another generation.
	clean      bool
	prefetched uint64 // the epoch in which a prefetch was complete; 0: none
	epoch      uint64 // rises when a drop begins, when it ends, and when a watch begins
	dropping   bool
	filling    map[*fill]struct{} // reads that run now
	filled     []span             // what was filled since the last step of the running drop
	storing    int                // stores of prefetches that run now
	stored     sync.Cond          // of mu: the last of them ended
}

// fill is one read that may fill pages.
type fill struct {
	span
	// locked says that the kernel has these pages locked until the answer. A read past the pages
	// locks none.
	locked  bool
	epoch   uint64
	watched bool
}

// span is a range of bytes.
type span struct{ off, end int64 }

// everything is all pages of a file.
var everything = span{0, moraine.MaxFileSize}

func newPagedInode(inode moraine.InodeID) *pagedInode {
	n := &pagedInode{inode: inode, filling: map[*fill]struct{}{}}
	n.stored.L = &n.mu
	return n
}

// watched returns the generation of the pages that are watched, 0 for none.
func (n *pagedInode) watched() moraine.Generation {
	_, generation := n.now()
	return generation
}

// watchUnused begins to watch a file without users, unless a read of it runs. The kernel may still
// have old pages. It drops them before the open returns to the program.
func (n *pagedInode) watchUnused(generation moraine.Generation) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.filling) > 0 {
		return false
	}
	n.epoch++
	n.generation, n.clean = generation, false
	return true
}

// opened returns whether the kernel may keep its pages for a file that is being opened.
func (n *pagedInode) opened() (epoch uint64, keep bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.epoch, n.generation != 0 && n.clean
}

func (n *pagedInode) now() (epoch uint64, generation moraine.Generation) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.epoch, n.generation
}

// beginFill begins a read. watched says that it needs no look at the newest attributes: the pages
// are watched, or are being dropped.
// The file was opened in epoch opened: the kernel dropped older pages then.
func (n *pagedInode) beginFill(s span, locked bool, opened uint64) *fill {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.clean = n.clean || locked && opened == n.epoch
	f := &fill{span: s, locked: locked, epoch: n.epoch, watched: n.generation != 0 || n.dropping}
	n.filling[f] = struct{}{}
	return f
}

// endFill ends a read. again says that its bytes may be older than a drop, unwatched that no drop
// will follow when the file changes. If it is again, and the caller repeats such reads, the read has
// begun once more. No drop finds it ended in between: its pages stay locked.
func (n *pagedInode) endFill(f *fill, repeats bool) (again, unwatched bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	again = !n.dropping && n.epoch != f.epoch
	if again && repeats {
		f.epoch, f.watched = n.epoch, n.generation != 0
		return true, false
	}
	delete(n.filling, f)
	if n.dropping {
		n.filled = append(n.filled, f.span)
		return false, false
	}
	return again, n.generation == 0
}

// beginStore begins to give the kernel pages, and returns those that no read has locked. false: the
// pages are no longer of the epoch. Each that begins has an endStore. The kernel waits in a store for
// reads that lock its pages. So the store has no turn: a drop begins meanwhile, and none of these reads
// waits for the end of the drop.
func (n *pagedInode) beginStore(s span, epoch uint64) (todo []span, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.epoch != epoch || n.generation == 0 {
		return nil, false
	}
	n.storing++
	return n.unlocked([]span{s}), true
}

// endStore ends a store. A drop that began meanwhile drops its pages too.
func (n *pagedInode) endStore(s span) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.dropping {
		n.filled = append(n.filled, s)
	}
	if n.storing--; n.storing == 0 {
		n.stored.Broadcast()
	}
}

// awaitStores waits until no store runs. While pages are dropped, none begins.
func (n *pagedInode) awaitStores() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for n.storing > 0 {
		n.stored.Wait()
	}
}

// beginDrop returns what to drop first: all but the pages that are locked for a read. No program
// sees these before its answer.
func (n *pagedInode) beginDrop() []span {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.epoch++
	n.generation, n.clean, n.dropping = 0, false, true
	return n.unlocked([]span{everything})
}

// nextDrop returns what reads and stores have filled since the last step. If that is nothing the drop is over.
func (n *pagedInode) nextDrop(next moraine.Generation) (todo []span, over bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.filled) == 0 {
		n.epoch++
		n.generation, n.clean, n.dropping = next, next != 0, false
		return nil, true
	}
	todo, n.filled = n.unlocked(n.filled), nil
	return todo, false
}

// stillUnlocked returns ranges without the pages that are locked now.
func (n *pagedInode) stillUnlocked(todo []span) []span {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.unlocked(slices.Clone(todo))
}

// unlocked returns ranges without the pages that are locked. The caller holds the mutex.
func (n *pagedInode) unlocked(todo []span) []span {
	for f := range n.filling {
		if !f.locked {
			continue
		}
		var left []span
		for _, s := range todo {
			if s.off < f.off {
				left = append(left, span{s.off, min(s.end, f.off)})
			}
			if s.end > f.end {
				left = append(left, span{max(s.off, f.end), s.end})
			}
		}
		todo = left
	}
	return slices.DeleteFunc(todo, func(s span) bool { return s.off >= s.end })
}

// isIn reports whether the pages are watched in an epoch.
func (n *pagedInode) isIn(epoch uint64) bool {
	now, generation := n.now()
	return now == epoch && generation != 0
}

// prefetchedIn records that a prefetch was complete in an epoch.
func (n *pagedInode) prefetchedIn(epoch uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.prefetched = epoch
}

func (n *pagedInode) isPrefetched() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.prefetched != 0 && n.prefetched == n.epoch
}
