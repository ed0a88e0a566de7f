package fuse

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/morainefs/moraine"
)

// orphans are files without a name that nobody has open any more, and whose release
// failed. It releases them again, ever less often, until the service has done it.
// What is left when the mount ends is freed with its session.
type orphans struct {
	release func(ctx context.Context, inodes ...moraine.InodeID) error
	log     *slog.Logger
	running sync.WaitGroup

	mu sync.Mutex // guards the fields below
	// waiting are the files to release again. retrying says that a goroutine does so.
	waiting  []moraine.InodeID
	retrying bool
	stop     context.CancelFunc // ends that goroutine
	closed   bool
	// logged is when a log line was last written, and failed how many releases have
	// failed since.
	logged time.Time
	failed int
}

const (
	// maxOrphans bounds the files that are released again. Others stay until the
	// session ends.
	maxOrphans = 64 << 10
	// firstRelease and lastRelease are the first and the longest pause before a release
	// that failed is repeated.
	firstRelease, lastRelease = time.Second, 5 * time.Minute
	// orphanLog is the least time between two log lines about failed releases.
	orphanLog = 10 * time.Second
)

func newOrphans(release func(context.Context, ...moraine.InodeID) error, log *slog.Logger) *orphans {
	return &orphans{release: release, log: log}
}

// add has an inode released again in the background. err is why its release failed.
// ctx outlives the mount's requests.
func (o *orphans) add(ctx context.Context, inode moraine.InodeID, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return
	}
	o.failed++
	if len(o.waiting) < maxOrphans {
		o.waiting = append(o.waiting, inode)
	}
	if now := time.Now(); now.Sub(o.logged) >= orphanLog {
		o.log.Warn("unlinked file not released; the mount tries again until it ends", "inode", inode, "failed", o.failed, "waiting", len(o.waiting), "err", err)
		o.logged, o.failed = now, 0
	}
	if !o.retrying {
		o.retrying = true
		ctx, o.stop = context.WithCancel(ctx)
		o.running.Go(func() { o.retry(ctx) })
	}
}

// retry releases the waiting files, and returns when none is left or ctx has ended.
func (o *orphans) retry(ctx context.Context) {
	for pause := firstRelease; ; pause = min(2*pause, lastRelease) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		if o.once(ctx) {
			return
		}
	}
}

// once releases the waiting files once, and reports whether none is left.
func (o *orphans) once(ctx context.Context) (done bool) {
	o.mu.Lock()
	all := o.waiting
	o.waiting = nil
	o.mu.Unlock()
	// The service skips files that the session no longer has: one file blocks no other.
	err := o.release(ctx, all...)
	o.mu.Lock()
	defer o.mu.Unlock()
	if err != nil {
		o.waiting = append(all, o.waiting[:min(len(o.waiting), maxOrphans-len(all))]...)
	}
	if o.retrying = len(o.waiting) > 0; !o.retrying {
		o.stop()
	}
	return !o.retrying
}

// end stops the releases. The session, which ends next, frees what is left.
func (o *orphans) end() {
	o.mu.Lock()
	o.closed = true
	if o.stop != nil {
		o.stop()
	}
	o.mu.Unlock()
	o.running.Wait()
}
