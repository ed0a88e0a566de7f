package fuse

import (
	"sync"
	"testing"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/stretchr/testify/require"
)

// keeper permits copies of everything, all of one generation.
type keeper struct {
	rawclient.Client
	refuses bool
}

const kept moraine.Generation = 7

func (k *keeper) Keep(moraine.InodeID) (rawclient.Kept, bool) {
	return rawclient.Kept{Generation: kept, Trust: time.Second}, !k.refuses
}

// fakeKernel records what it was made to drop.
type fakeKernel struct {
	mu      sync.Mutex
	dropped []span
}

func (k *fakeKernel) notify(_ uint64, off, length int64) gofuse.Status {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.dropped = append(k.dropped, span{off, off + length})
	return gofuse.OK
}

func (k *fakeKernel) drops() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.dropped)
}

func testPages(files *table) (*pages, *fakeKernel) {
	files.handles, files.inodes = map[uint64]*file{}, map[moraine.InodeID]*openInode{}
	p, kernel := newPages(&keeper{}, files.isWritten, func(inode uint64) uint64 { return inode }, nil), &fakeKernel{}
	p.notify = kernel.notify
	return p, kernel
}

// The pages of a reader are watched until the file is opened for writing, and again only once the
// writer is closed and its bytes are committed: they may be in no generation.
func TestPagesOfAWrittenFileAreNotWatched(t *testing.T) {
	const inode = moraine.InodeID(9)
	var files table
	p, kernel := testPages(&files)
	n := p.use(inode)
	defer p.leave(n)
	require.True(t, p.watch(n, kept))
	n.endFill(n.beginFill(span{0, 4096}, true, 0), false)
	before := kernel.drops()
	w := &file{state: files.entry(inode), writes: true}
	fh := files.add(w)
	p.written(inode)
	require.Greater(t, kernel.drops(), before, "the kernel keeps pages that the writer changes")
	require.Zero(t, n.watched())
	require.False(t, p.watch(n, kept))
	_, unwatched := n.endFill(n.beginFill(span{0, 4096}, true, 0), false)
	require.True(t, unwatched)
	require.Same(t, w, files.take(fh))
	require.False(t, p.watch(n, kept), "its bytes are not committed yet")
	files.endWriting(w)
	require.True(t, p.watch(n, kept))
	require.Equal(t, kept, n.watched())
}

// A read that is repeated after a drop stays locked: the next drop does not wait for it.
func TestARepeatedReadIsNotDroppedInBetween(t *testing.T) {
	n := newPagedInode(9)
	f := n.beginFill(span{0, 4096}, true, 0)
	n.beginDrop()
	_, over := n.nextDrop(0)
	require.True(t, over)
	again, _ := n.endFill(f, true)
	require.True(t, again)
	require.Equal(t, []span{{4096, everything.end}}, n.beginDrop())
	again, _ = n.endFill(f, true)
	require.False(t, again, "a read within a drop")
	todo, over := n.nextDrop(0)
	require.False(t, over)
	require.Equal(t, []span{{0, 4096}}, todo)
}

// The end of a mount waits for late work, while reads that still run begin more of it.
func TestLateWorkAtTheEnd(t *testing.T) {
	var l late
	var ran sync.WaitGroup
	release := make(chan struct{})
	l.Go(func() { <-release })
	for range 4 {
		ran.Go(func() {
			for range 1000 {
				ran.Add(1)
				l.Go(ran.Done)
			}
		})
	}
	close(release)
	l.end()
	ran.Wait()
}
