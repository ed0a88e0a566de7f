package delegation

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// maxDirs is how many directories are delegated at most. Above manyDirs, and manyNodes inodes, the
	// desk gives back those that it has not used for the longest time. The service ends at 4,096.
	maxDirs, manyDirs, manyNodes = 3500, 3000, 100_000
	// manyNames is how many names all directories have before it gives some back.
	manyNames = 500_000
	// tendEvery is how often the keeper looks whether it has work.
	tendEvery = time.Second
	// quietAfter is for how long the client changes nothing in a directory before the desk gives it
	// back: no lease covers a delegated one, so kernels keep no names, attributes and pages of it.
	quietAfter = 5 * time.Second
)

// notices are what the cache learns from the service while it holds its own mutex.
type notices struct {
	mu       sync.Mutex
	recalled []uint64            // that the keeper has not seen
	ending   map[uint64]struct{} // recalled directories that are not given back yet
}

// Recall takes the directories that the service recalls. It does not wait.
func (d *Desk) Recall(dirs []uint64) {
	if d == nil || len(dirs) == 0 {
		return
	}
	n := &d.notices
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, id := range dirs {
		if _, ok := n.ending[id]; !ok {
			if n.ending == nil {
				n.ending = map[uint64]struct{}{}
			}
			n.ending[id] = struct{}{}
			n.recalled = append(n.recalled, id)
		}
	}
	signal(d.tend)
}

// Ending returns the recalled directories that are not given back yet. It does not wait.
func (d *Desk) Ending() []uint64 {
	if d == nil {
		return nil
	}
	n := &d.notices
	n.mu.Lock()
	defer n.mu.Unlock()
	ids := make([]uint64, 0, len(n.ending))
	for id := range n.ending {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// Doubt makes the desk look at once whether the standing has ended. It does not wait.
func (d *Desk) Doubt() {
	if d != nil {
		signal(d.tend)
	}
}

// keep gives directories back, when it must, until ctx ends.
func (d *Desk) keep(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.tend:
		case <-d.Clock.After(tendEvery):
		}
		d.tendAll()
	}
}

// tendAll begins to give back what is recalled, whose standing has ended, that is quiet, or too much.
func (d *Desk) tendAll() {
	n := &d.notices
	n.mu.Lock()
	recalled := n.recalled
	n.recalled = nil
	n.mu.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, id := range recalled {
		d.Metrics.DelegationRecalls.Inc()
		d.asks.recalled(id, d.Clock.Now())
		if l := d.dirs[id]; l != nil {
			d.give(l)
		} else if session := d.Service.Newest().Session; !d.asks.at(id).asking {
			d.running.Go(func() { d.giveBack([]uint64{id}, session) })
		}
	}
	if len(d.dirs) == 0 {
		return
	}
	now := d.Service.Newest()
	for _, l := range d.dirs {
		if l.under != now || len(l.names) > maxNames || d.quiet(l) {
			d.give(l)
		}
	}
	d.shrink()
}

// quiet reports whether the client has changed nothing in a directory for a while. The caller holds the
// mutex.
func (d *table) quiet(l *dir) bool {
	return l.state == dirLive && d.queue.about[l.id] == 0 && d.Clock.Since(l.changed) >= quietAfter
}

// shrink gives back the directories that were not used for the longest time, if there are too many.
func (d *Desk) shrink() {
	for inode, n := range d.nodes {
		if len(d.nodes) <= manyNodes {
			break
		}
		if n.dir == nil && d.queue.about[inode] == 0 {
			d.disown(inode)
		}
	}
	names := 0
	all := make([]*dir, 0, len(d.dirs))
	for _, l := range d.dirs {
		if l.state == dirLive {
			all = append(all, l)
			names += len(l.names)
		}
	}
	if len(d.dirs) <= manyDirs && names <= manyNames {
		return
	}
	slices.SortFunc(all, func(a, b *dir) int { return int(int64(a.used) - int64(b.used)) })
	for i, l := range all {
		if (len(d.dirs) <= manyDirs || i >= (len(all)+7)/8) && names <= manyNames {
			break
		}
		names -= len(l.names)
		d.give(l)
	}
}

// giveAll begins to give all directories back. The caller holds the mutex.
func (d *table) giveAll() {
	for _, l := range d.dirs {
		d.give(l)
	}
}

// give begins to give a directory back: the desk works there no more. The caller holds the mutex.
func (d *table) give(l *dir) {
	if l.state == dirEnding {
		return
	}
	l.state = dirEnding
	first := len(d.giving) == 0
	d.giving = append(d.giving, l.id)
	if first {
		d.running.Go(d.giveEach)
	}
	d.wake()
}

// giveEach gives back what give has collected.
func (d *table) giveEach() {
	for {
		d.mu.Lock()
		ids, session := d.nextGiven()
		d.mu.Unlock()
		if len(ids) == 0 {
			return
		}
		d.giveBack(ids, session)
		d.mu.Lock()
		d.giving = d.giving[len(ids):]
		d.mu.Unlock()
	}
}

// nextGiven returns directories that one request can give back: all of one session. It may not be the
// desk's, if that has just changed. The caller holds the mutex.
func (d *table) nextGiven() (ids []uint64, session uint64) {
	for _, id := range d.giving {
		of := d.session
		if l := d.dirs[id]; l != nil {
			of = l.under.Session
		}
		if len(ids) == wire.MaxEndDelegation || len(ids) > 0 && of != session {
			break
		}
		ids, session = append(ids, id), of
	}
	return ids, session
}

// giveBack gives directories back, after what is queued.
func (d *table) giveBack(ids []uint64, session uint64) {
	d.mu.Lock()
	last := d.queue.last
	d.mu.Unlock()
	for try := 0; d.awaitSent(d.life, last) != nil && retry.Pause(d.life, d.Clock, try); try++ {
	}
	req := &wire.MetaRequest{Op: &wire.MetaRequest_EndDelegation{EndDelegation: &wire.EndDelegation{Inodes: ids}}}
	for try := 0; ; try++ {
		_, err := d.Service.Send(d.life, req, session)
		if err == nil || retry.IsKind(err, moraine.SessionExpired) || !retry.Pause(d.life, d.Clock, try) {
			break
		}
	}
	d.notices.over(ids)
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, id := range ids {
		if l := d.dirs[id]; l != nil && l.state == dirEnding {
			d.forget(l)
		}
	}
	d.wake()
}

// ends reports whether a recalled directory is not given back yet.
func (n *notices) ends(id uint64) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, ok := n.ending[id]
	return ok
}

// over forgets recalls that are carried out.
func (n *notices) over(ids []uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, id := range ids {
		delete(n.ending, id)
	}
}
