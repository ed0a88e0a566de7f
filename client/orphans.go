package client

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/transport/wire"
)

// orphans are files without a name that the session keeps: the client had them open when others
// removed them, or their release failed. The mutex of contents guards them.
type orphans struct {
	kept map[moraine.InodeID]struct{}
	// read counts the Readers that have an inode open.
	read map[moraine.InodeID]int
	// closed are those that nobody has open any more, maxClosed at most. ready gets a value when there are some.
	closed []moraine.InodeID
	ready  chan struct{}
}

// OpenFiles implements session.Files.
func (s *contents) OpenFiles() []moraine.InodeID {
	s.mu.Lock()
	defer s.mu.Unlock()
	open := slices.Collect(maps.Keys(s.opening))
	for i := range s.of {
		if s.opening[i] == nil {
			open = append(open, i)
		}
	}
	for i := range s.orphans.read {
		if s.opening[i] == nil && s.of[i] == nil {
			open = append(open, i)
		}
	}
	return open
}

// beginRead records that a Reader has an inode open, or is opening it, until endRead.
func (s *contents) beginRead(inode moraine.InodeID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.orphans.read == nil {
		s.orphans.read = map[moraine.InodeID]int{}
	}
	s.orphans.read[inode]++
}

// endRead ends one beginRead. The last one has a file without a name released.
func (s *contents) endRead(inode moraine.InodeID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.orphans.read[inode]--; s.orphans.read[inode] == 0 {
		delete(s.orphans.read, inode)
		s.closed(inode)
	}
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
	if _, kept := o.kept[inode]; !kept || s.of[inode] != nil || s.opening[inode] != nil || o.read[inode] > 0 {
		return
	}
	delete(o.kept, inode)
	if len(o.closed) == maxClosed {
		return
	}
	o.closed = append(o.closed, inode)
	select {
	case o.ready <- struct{}{}:
	default:
	}
}

// takeClosed returns the orphans that are closed, and leaves none.
func (s *contents) takeClosed() []moraine.InodeID {
	s.mu.Lock()
	defer s.mu.Unlock()
	closed := s.orphans.closed
	s.orphans.closed = nil
	return closed
}

const (
	// maxClosed bounds the orphans that wait for their release. Others stay until the session ends.
	maxClosed = 64 << 10
	// releaseBatch bounds the inodes in one request.
	releaseBatch = 256
	// firstRelease and lastRelease are the first and the longest pause after a release that failed.
	firstRelease, lastRelease = time.Second, 5 * time.Minute
	// releaseLog is the least time between two log lines about failed releases.
	releaseLog = 10 * time.Second
)

// Release ends the session's ownership of files without a name (RemoveOptions.Keep); the
// cluster then frees their content. It skips files that the session does not own, such as those
// of an expired session. After an error the client repeats the release in the background, ever
// less often and at least each 5 minutes, until it succeeds or the client closes.
func (n Inodes) Release(ctx context.Context, inodes ...moraine.InodeID) error {
	err := n.release(ctx, inodes)
	if err != nil {
		n.c.contents.Kept(inodes)
	}
	return err
}

// release sends the requests of a Release.
func (n Inodes) release(ctx context.Context, inodes []moraine.InodeID) error {
	for batch := range slices.Chunk(inodes, releaseBatch) {
		_, err := n.c.meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_Release{Release: &wire.Release{
			Inodes: wireInodes(batch)}}})
		if err != nil {
			return retry.Wrap("client.Release", batch[0].String(), err)
		}
	}
	return nil
}

// releaseOrphans releases the orphans that are closed, until ctx ends. After that the end of the
// session does.
func (n Inodes) releaseOrphans(ctx context.Context, clk clock.Clock) {
	s, pause := n.c.contents, firstRelease
	var logged time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.orphans.ready:
		}
		closed := s.takeClosed()
		err := n.Release(ctx, closed...) // after an error they are ready again
		if err == nil {
			pause = firstRelease
			continue
		}
		if now := clk.Now(); ctx.Err() == nil && now.Sub(logged) >= releaseLog {
			n.c.log.Warn("removed files were not released after their last close; the client tries again", "files", len(closed), "err", err)
			logged = now
		}
		select {
		case <-ctx.Done():
		case <-clk.After(pause):
		}
		pause = min(2*pause, lastRelease)
	}
}
