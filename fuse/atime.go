package fuse

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
)

// atimes are the times of reads through this mount that raise the atime of a file, as relatime says. The mount
// shows them at once. The service gets them later, many in a request. So no read waits for that, and a
// file is named once a day at most while it does not change. An atime is no promise: what does not fit, and what a
// request that fails had, is dropped, and the next read counts again.
//
// A nil *atimes records nothing and shows attributes as they are. Its methods may be called concurrently.
type atimes struct {
	client  rawclient.Client
	dropped prometheus.Counter
	now     func() time.Time
	delay   time.Duration // from the first read to the requests
	ready   chan struct{} // gets a value when there is something to send
	off     atomic.Bool   // the session may not send them
	any     atomic.Bool   // known was not empty

	mu     sync.RWMutex
	known  map[moraine.InodeID]lastRead
	unsent []moraine.InodeID // those of known that are not sent, in the order of the reads
	// sending is closed when the requests on their way are answered; nil if there are none.
	sending chan struct{}
}

// lastRead is the last read of a file that raised its atime, in nanoseconds of the wall clock.
type lastRead struct {
	atime int64
	ctime int64 // of the attributes that the read found
	// pending says that the service does not have it yet.
	pending bool
}

const (
	// maxUnsentAtimes bounds the files of one delay: others are dropped.
	maxUnsentAtimes = 8 * wire.MaxRaiseAtimes
	// maxKnownAtimes bounds the files whose atime the mount shows: about as many as the client caches.
	maxKnownAtimes = 1 << 17
	// atimePatience bounds the requests of one delay, and those at the end of the mount. The client repeats them
	// within it.
	atimePatience = 5 * time.Second
)

func newAtimes(c rawclient.Client, delay time.Duration, now func() time.Time, dropped prometheus.Counter) *atimes {
	return &atimes{client: c, dropped: dropped, now: now, delay: delay, ready: make(chan struct{}, 1), known: map[moraine.InodeID]lastRead{}}
}

// read notes that a program reads a file with these attributes, and reports whether that raises the atime.
func (t *atimes) read(a client.Attr) bool {
	if t == nil || t.off.Load() || !a.IsRegular() || a.Sealed() {
		return false
	}
	// The times of the file are those of the service, whose clock may be ahead of this one.
	atime, mtime, ctime := a.AccessTime().UnixNano(), a.ModTime().UnixNano(), a.ChangeTime().UnixNano()
	now := max(t.now().UnixNano(), ctime+1)
	if !wire.AtimeIsOld(atime, mtime, ctime, now) {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	last := t.known[a.Inode()]
	if !wire.AtimeIsOld(max(atime, last.atime), mtime, ctime, now) {
		return false
	}
	if !last.pending && !t.enqueue(a.Inode()) {
		t.dropped.Inc()
		return false
	}
	t.known[a.Inode()] = lastRead{atime: now, ctime: ctime, pending: true}
	t.any.Store(true)
	return true
}

// enqueue has a file sent with the next requests, if there is room. The caller holds the mutex.
func (t *atimes) enqueue(inode moraine.InodeID) bool {
	if len(t.unsent) >= maxUnsentAtimes {
		return false
	}
	if len(t.known) >= maxKnownAtimes {
		for i, r := range t.known {
			if !r.pending {
				delete(t.known, i)
			}
		}
	}
	t.unsent = append(t.unsent, inode)
	select {
	case t.ready <- struct{}{}:
	default:
	}
	return true
}

// shown returns the atime that programs see, in nanoseconds. Attributes of a cache do not have what the service got.
func (t *atimes) shown(a client.Attr) int64 {
	atime := a.AccessTime().UnixNano()
	if t == nil || !t.any.Load() {
		return atime
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	// After a later change the service's answer is the newest: another mount may have set the atime.
	if r, ok := t.known[a.Inode()]; ok && (r.pending || r.ctime == a.ChangeTime().UnixNano()) {
		return max(atime, r.atime)
	}
	return atime
}

// set has a file forgotten whose atime a program is about to set. It waits for a request on its way, which would
// raise the time again.
func (t *atimes) set(ctx context.Context, inode moraine.InodeID) {
	if t == nil {
		return
	}
	t.mu.Lock()
	r, known := t.known[inode]
	delete(t.known, inode)
	sending := t.sending
	t.mu.Unlock()
	if !known || !r.pending || sending == nil {
		return
	}
	select {
	case <-sending:
	case <-ctx.Done():
	}
}

// run sends what was read, until ctx ends. Then it sends the rest.
func (t *atimes) run(ctx context.Context) {
	if t == nil {
		return
	}
	for ctx.Err() == nil {
		select {
		case <-t.ready:
		case <-ctx.Done():
		}
		select {
		case <-time.After(t.delay):
		case <-ctx.Done():
		}
		t.send(context.WithoutCancel(ctx))
	}
}

// send sends what was read so far. Whatever the service does, it takes atimePatience at most.
func (t *atimes) send(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, atimePatience)
	defer cancel()
	done := make(chan struct{})
	defer close(done)
	t.mu.Lock()
	inodes := t.unsent
	t.unsent, t.sending = nil, done
	t.mu.Unlock()
	for some := range slices.Chunk(inodes, wire.MaxRaiseAtimes) {
		reads := t.take(some)
		if len(reads) == 0 {
			continue
		}
		_, err := t.client.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_RaiseAtimes{RaiseAtimes: &wire.RaiseAtimes{Reads: reads}}})
		t.answered(reads, err)
	}
}

// take returns what a request says of inodes.
func (t *atimes) take(inodes []moraine.InodeID) (reads []*wire.FileRead) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, i := range inodes {
		if r := t.known[i]; r.pending {
			reads = append(reads, &wire.FileRead{Inode: uint64(i), Atime: r.atime})
		}
	}
	return reads
}

// answered ends a request. After an error the mount no longer shows what the request had.
func (t *atimes) answered(reads []*wire.FileRead, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, read := range reads {
		i := moraine.InodeID(read.Inode)
		if r, ok := t.known[i]; ok && err == nil {
			r.pending = false
			t.known[i] = r
		} else if ok {
			delete(t.known, i)
			t.dropped.Inc()
		}
	}
	if kind := moraine.KindOf(err); err != nil && (kind == moraine.ReadOnly || kind == moraine.PermissionDenied) {
		t.off.Store(true) // its certificate may only read
	}
}

// noteRead notes a read of an open file that reached the mount. The kernel requests the atime after it.
func (t *atimes) noteRead(f *file, flags uint32) bool {
	return t != nil && flags&syscall.O_NOATIME == 0 && t.read(f.handle.Attr())
}

// noteOpen counts the open of a file as a read where the reads may not reach the mount: the kernel keeps the pages of
// the file, or the mount is about to fill them. It reports whether the kernel must forget the attributes.
func (t *atimes) noteOpen(f *file, flags, reply uint32) bool {
	return (reply&gofuse.FOPEN_KEEP_CACHE != 0 || f.prefetched) && t.noteRead(f, flags)
}
