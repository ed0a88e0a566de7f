package session

import (
	"context"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// A program that walks a tree (ls -R, find, rm -r) lists one directory after the other, and waits for
// a request each time. The client lists the directories that come next, depth first, in the background.
// It does so while programs list directories whose parents they have listed. Each of these listings
// pays for one ahead, and for two if it was itself listed ahead. So a walk that goes on is listed ever
// further ahead, and listings that nobody wants remain few.
const (
	// walkAhead is how many directories the client looks ahead of the program.
	walkAhead = 16
	// walksAtOnce bounds the listings ahead that run.
	walksAtOnce = 4
	// walkPage is the most entries of a directory that is listed ahead. Larger ones are left to the
	// program.
	walkPage = 512
	// walkDepth bounds the parents that the client looks at.
	walkDepth = 64
)

// walk is what the client knows of programs that walk trees. The mutex of the cache guards it.
type walk struct {
	at      uint64                   // the directory that a program listed last
	asked   uint64                   // the directory whose listing a program wants
	credit  int                      // listings ahead that are paid for
	running map[uint64]chan struct{} // listings ahead, each closed at its end
	wanted  chan uint64              // directories in running that no goroutine has yet
	over    chan struct{}            // closed when the client ends
}

func newWalk() walk {
	return walk{running: map[uint64]chan struct{}{}, wanted: make(chan uint64, walksAtOnce), over: make(chan struct{})}
}

// walked is what the client knows of walks through one directory.
type walked struct {
	listed bool     // a program listed it
	early  bool     // it was listed ahead, and no program has listed it since
	dirs   []uint64 // its subdirectories, in order; nil: not known
	next   int      // index in dirs after the one that a program listed last
}

// listed records that a program has listed a directory, and begins to list what comes next.
func (a *lister) listed(dir moraine.InodeID) {
	c, w := a.c, &a.walk
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.leases[uint64(dir)]
	if l == nil || !l.listed {
		return
	}
	early := l.walked.early
	l.walked.listed, l.walked.early = true, false
	if w.at == l.id {
		return
	}
	w.at = l.id
	parent := a.parent(l.id)
	if parent == nil || !parent.walked.listed {
		return
	}
	if w.credit++; early {
		w.credit++
	}
	w.credit = min(w.credit, walkAhead)
	for next := a.nextWalk(); next != 0; next = a.nextWalk() {
		w.wanted <- next // it has room for all that run
	}
}

// nextWalk begins the listing of the next directory ahead; 0: none. The caller holds the mutex.
func (a *lister) nextWalk() uint64 {
	w := &a.walk
	if w.credit == 0 || len(w.running) == walksAtOnce || !a.c.usable() {
		return 0
	}
	dir := a.unlisted()
	if dir != 0 {
		w.credit--
		w.running[dir] = make(chan struct{})
	}
	return dir
}

// unlisted returns the first directory of the next walkAhead ones that should be listed; 0: none.
func (a *lister) unlisted() uint64 {
	l := a.c.leases[a.walk.at]
	from, left := 0, walkAhead
	for depth := 0; l != nil && l.listed && depth < walkDepth; depth++ {
		for _, dir := range a.subdirectories(l)[min(from, len(l.walked.dirs)):] {
			if a.wants(dir) {
				return dir
			}
			if left--; left == 0 {
				return 0
			}
		}
		parent := a.parent(l.id)
		if parent == nil || !parent.listed || !parent.pass(a.subdirectories(parent), l.id) {
			return 0
		}
		l, from = parent, parent.walked.next
	}
	return 0
}

// wants reports whether a directory should be listed ahead.
func (a *lister) wants(dir uint64) bool {
	if _, running := a.walk.running[dir]; running || dir == a.walk.asked || !a.c.free(dir) || !a.c.shows(dir) {
		return false
	}
	l := a.c.leases[dir]
	return l == nil || !l.listed && !l.walked.early && a.c.clock.Now().Sub(l.ahead.changed) >= quietTime
}

// parent returns the content of the directory above one; nil: it is not known.
func (a *lister) parent(dir uint64) *leased {
	at, ok := a.c.attrs[dir]
	if !ok || at.attr.Parent == 0 {
		return nil
	}
	return a.c.leases[at.attr.Parent]
}

// subdirectories returns those of a listed directory. The caller holds the mutex.
func (a *lister) subdirectories(l *leased) []uint64 {
	if l.walked.dirs == nil {
		l.walked.dirs, l.walked.next = []uint64{}, 0
		for _, name := range l.names {
			inode := l.entries[name]
			if at, ok := a.c.attrs[inode]; ok && at.attr.Type == wire.FileType_FILE_TYPE_DIRECTORY {
				l.walked.dirs = append(l.walked.dirs, inode)
			}
		}
	}
	return l.walked.dirs
}

// pass notes that a program is at a subdirectory. Programs mostly go from one to the next.
func (l *leased) pass(dirs []uint64, dir uint64) bool {
	for i := range dirs {
		at := (max(0, l.walked.next-1) + i) % len(dirs)
		if dirs[at] == dir {
			l.walked.next = at + 1
			return true
		}
	}
	return false
}

// listNext lists a directory ahead, and then those that come next by then.
func (a *lister) listNext(ctx context.Context, dir uint64) {
	for dir != 0 {
		r, err := requestPage(ctx, a.m, moraine.InodeID(dir), "", max(1, min(walkPage, a.c.limit/(4*walkAhead))))
		if err != nil {
			a.m.Log.Debug("a directory could not be listed ahead", "dir", moraine.InodeID(dir), "err", err)
		} else {
			a.m.metrics.ListedAhead.Add(float64(len(r.Entries)))
		}
		dir = a.endWalk(dir, err == nil)
	}
}

// endWalk ends a listing ahead, and begins the next; 0: none.
func (a *lister) endWalk(dir uint64, listed bool) uint64 {
	c, w := a.c, &a.walk
	c.mu.Lock()
	defer c.mu.Unlock()
	close(w.running[dir])
	delete(w.running, dir)
	if l := c.leases[dir]; l != nil {
		l.walked.early = true // also if it is too large, so that it is not tried again
	}
	if !listed {
		return 0
	}
	return a.nextWalk()
}

// await waits until a listing ahead of a directory has ended, or ctx. A program wants that listing, so
// none begins.
func (a *lister) await(ctx context.Context, dir moraine.InodeID) {
	if a == nil {
		return
	}
	a.c.mu.Lock()
	a.walk.asked = uint64(dir)
	ended := a.walk.running[uint64(dir)]
	a.c.mu.Unlock()
	if ended == nil {
		return
	}
	select {
	case <-ended:
	case <-a.walk.over: // nobody lists it
	case <-ctx.Done():
	}
}
