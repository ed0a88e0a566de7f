package fuse

import (
	"context"
	"testing"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"github.com/morainefs/moraine"
	"github.com/stretchr/testify/require"
)

// While the kernel takes the pages of a prefetch, which waits for a read that has one of them locked, a
// recall begins to drop: so the read does not wait for the service, which waits for the drop. The
// drop ends after the store, and with its pages.
func TestADropBeginsDuringAStore(t *testing.T) {
	const inode = moraine.InodeID(9)
	var files table
	p, kernel := testPages(&files)
	n := p.use(inode)
	defer p.leave(n)
	require.True(t, p.watch(n, kept))
	epoch, _ := n.now()

	pre := newPrefetches(Prefetch{}, &openFiles{calls: &calls{}, pages: p}, nil)
	storing, locked := make(chan struct{}), make(chan struct{})
	before := 0
	pre.store = func(uint64, int64, []byte) gofuse.Status {
		close(storing)
		<-locked
		before = kernel.drops()
		return gofuse.OK
	}
	keeping, dropping := make(chan bool), make(chan struct{})
	go func() { keeping <- pre.keep(n, epoch, 4096, make([]byte, 8192)) }()
	<-storing
	go func() {
		defer close(dropping)
		p.dropAll(context.Background(), []moraine.InodeID{inode})
	}()
	require.Eventually(t, func() bool { return n.watched() == 0 }, 10*time.Second, time.Millisecond, "the drop waits for the store")
	read := n.beginFill(span{4096, 8192}, true, epoch)
	require.True(t, read.watched, "the read looks at the newest attributes, which the service has once the drop is over")
	again, unwatched := n.endFill(read, true)
	require.False(t, again || unwatched)
	require.False(t, pre.keep(n, epoch, 0, make([]byte, 4096)), "a store within a drop")
	close(locked)
	require.True(t, <-keeping)
	<-dropping
	require.Contains(t, kernel.dropped[before:], span{4096, 12288}, "its pages are older than the recall")
}
