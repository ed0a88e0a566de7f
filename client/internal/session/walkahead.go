package session

import (
	"context"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/transport/wire"
)

// A program that walks a tree (ls -R, find, rm -r) lists one directory after the other, and waits for
// a request each time. The client lists the directories that come next, depth first, in the background,
// many in one request: most of the cost of a small listing is the round by which the leader knows that it
// still leads. It does so while programs list directories whose parents they have listed. Each of these listings
// pays for one ahead, and for two if it was itself listed ahead. So a walk that goes on is listed ever
// further ahead, and listings that nobody wants remain few.
const (
	// walkAhead is how many directories the client looks ahead of the program.
	walkAhead = 32
	// walksAtOnce bounds the requests that list ahead, and walkMany the directories of each.
	walksAtOnce, walkMany = 2, 16
	// walkPage is the most entries of one such request. A directory with more is left to the program.
	walkPage = 1000
	// walkDepth bounds the parents that the client looks at.
	walkDepth = 64
)

// walk is what the client knows of programs that walk trees. The mutex of the cache guards it.
type walk struct {
	at      uint64                   // the directory that a program listed last
	asked   uint64                   // the directory whose listing a program wants
	credit  int                      // listings ahead that are paid for
	running map[uint64]chan struct{} // listings ahead, each closed at its end
	batches int                      // requests that list them
	wanted  chan []uint64            // of such requests that no goroutine has yet
	over    chan struct{}            // closed when the client ends
}

func newWalk() walk {
	return walk{running: map[uint64]chan struct{}{}, wanted: make(chan []uint64, walksAtOnce), over: make(chan struct{})}
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
	for next := a.nextWalk(); next != nil; next = a.nextWalk() {
		w.wanted <- next // it has room for all that run
	}
}

// nextWalk begins the listing of the next directories ahead; nil: of none. While one request runs, the
// next waits until it is worth it. The caller holds the mutex.
func (a *lister) nextWalk() (dirs []uint64) {
	w := &a.walk
	if w.credit == 0 || w.batches == walksAtOnce || w.batches > 0 && w.credit < walkMany/2 || !a.c.usable() {
		return nil
	}
	for w.credit > 0 && len(dirs) < walkMany {
		dir := a.unlisted()
		if dir == 0 {
			break
		}
		w.credit--
		w.running[dir] = make(chan struct{})
		dirs = append(dirs, dir)
	}
	if dirs != nil {
		w.batches++
	}
	return dirs
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

// listNext lists directories ahead, and then those that come next by then.
func (a *lister) listNext(ctx context.Context, dirs []uint64) {
	for dirs != nil {
		r, err := requestPages(ctx, a.m, dirs, max(1, min(walkPage, a.c.limit/8)))
		if err != nil {
			a.m.Log.Debug("directories could not be listed ahead", "dir", moraine.InodeID(dirs[0]), "dirs", len(dirs), "err", err)
		}
		a.m.metrics.ListedAhead.Add(float64(entriesOf(r)))
		dirs = a.endWalk(dirs, err == nil)
	}
}

// requestPages requests the first pages of directories, with a number of entries at most in all. What is cached
// of them, others read.
func requestPages(ctx context.Context, m *Conn, dirs []uint64, limit int) (*wire.ReadDirReply, error) {
	t := m.cache.ask()
	resp, err := m.Do(ctx, &wire.MetaRequest{LeaseEpoch: t.epoch, Op: &wire.MetaRequest_ReadDir{ReadDir: &wire.ReadDir{
		Inode: dirs[0], Limit: uint32(limit), Also: dirs[1:]}}})
	r := resp.GetReadDir()
	if err == nil && r == nil {
		err = retry.BadReply("read directory")
	}
	if err != nil {
		return nil, err
	}
	m.cache.fill(t, resp.Lease, func(f *filling) {
		f.page(dirs[0], "", r)
		for _, p := range r.Also {
			f.page(p.Inode, "", &wire.ReadDirReply{Entries: p.Entries, More: p.More})
		}
	})
	return r, nil
}

func entriesOf(r *wire.ReadDirReply) (n int) {
	n = len(r.GetEntries())
	for _, p := range r.GetAlso() {
		n += len(p.Entries)
	}
	return n
}

// endWalk ends listings ahead, and begins the next; nil: none.
func (a *lister) endWalk(dirs []uint64, listed bool) []uint64 {
	c, w := a.c, &a.walk
	c.mu.Lock()
	defer c.mu.Unlock()
	w.batches--
	for _, dir := range dirs {
		close(w.running[dir])
		delete(w.running, dir)
		if l := c.leases[dir]; l != nil {
			l.walked.early = true // also if it is too large, so that it is not tried again
		}
	}
	if !listed {
		return nil
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
