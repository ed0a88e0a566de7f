package client

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/clock"
)

// orphans are files without a name that the session keeps, since the client had them open when
// others removed them. The mutex of contents guards them.
type orphans struct {
	kept map[moraine.InodeID]struct{}
	// closed are those that nobody has open any more. ready gets a value when there are some.
	closed []moraine.InodeID
	ready  chan struct{}
}

// Open implements session.Files.
func (s *contents) Open() []moraine.InodeID {
	s.mu.Lock()
	defer s.mu.Unlock()
	open := slices.Collect(maps.Keys(s.opening))
	for i := range s.of {
		if s.opening[i] == nil {
			open = append(open, i)
		}
	}
	return open
}

// Kept implements session.Files.
func (s *contents) Kept(inodes []moraine.InodeID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.orphans.kept == nil {
		s.orphans.kept = map[moraine.InodeID]struct{}{}
	}
	for _, i := range inodes {
		s.orphans.kept[i] = struct{}{}
		s.closed(i)
	}
}

// closed has an orphan released if nobody has it open any more. The caller holds the mutex.
func (s *contents) closed(inode moraine.InodeID) {
	o := &s.orphans
	if _, kept := o.kept[inode]; !kept || s.of[inode] != nil || s.opening[inode] != nil {
		return
	}
	delete(o.kept, inode)
	o.closed = append(o.closed, inode)
	select {
	case o.ready <- struct{}{}:
	default:
	}
}

const (
	// firstRelease and lastRelease are the first and the longest pause after a release that failed.
	firstRelease, lastRelease = time.Second, time.Minute
)

// releaseOrphans releases the orphans that are closed, until ctx ends. After that the end of the
// session does.
func (n Inodes) releaseOrphans(ctx context.Context, clk clock.Clock) {
	s, pause := n.c.contents, firstRelease
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.orphans.ready:
		}
		s.mu.Lock()
		closed := s.orphans.closed
		s.orphans.closed = nil
		s.mu.Unlock()
		err := n.Release(ctx, closed...)
		if err == nil {
			pause = firstRelease
			continue
		}
		if ctx.Err() == nil {
			n.c.log.Warn("removed files were not released after their last close; the client tries again", "files", len(closed), "err", err)
		}
		s.Kept(closed) // which makes them ready again
		select {
		case <-ctx.Done():
		case <-clk.After(pause):
		}
		pause = min(2*pause, lastRelease)
	}
}
