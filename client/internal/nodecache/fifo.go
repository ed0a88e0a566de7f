package nodecache

import "container/list"

// fifo orders the cache files by S3-FIFO (Yang et al., "FIFO Queues are All You Need for Cache
// Eviction", SOSP 2023): a new file enters a small queue. If nobody has read it again by the
// time that it reaches the end, it is evicted; otherwise it goes on to the main queue. So a scan of
// many files, each read once, pushes out only the small queue. A file that comes back soon after
// its eviction enters the main queue at once (ghosts). In the main queue a file that was read
// since its last turn gets another one.
//
// Instead of the paper's count of up to 3 reads it uses one bit, which all processes can set in
// the file itself.
type fifo struct {
	files  map[ID]*list.Element // of *queued
	small  queue
	main   queue
	ghosts ghosts
}

type queue struct {
	list.List // newest first
	bytes     int64
}

// queued is a cache file in a queue.
type queued struct {
	id    ID
	bytes int64
	main  bool
}

// marks are the bytes of a cache file that its queue uses. An error counts as not used.
type marks interface {
	// used reports whether the file was read since the last call, and begins again.
	used(id ID) bool
	// promoted records that the file is in the main queue.
	promoted(id ID)
}

func newFIFO() *fifo { return &fifo{files: map[ID]*list.Element{}} }

func (f *fifo) bytes() int64 { return f.small.bytes + f.main.bytes }

// put adds a file, or changes its size.
func (f *fifo) put(id ID, bytes int64, main bool) {
	if e := f.files[id]; e != nil {
		q := e.Value.(*queued)
		f.queueOf(q).bytes += bytes - q.bytes
		q.bytes = bytes
		return
	}
	f.push(&queued{id: id, bytes: bytes, main: main || f.ghosts.take(id)})
}

func (f *fifo) push(q *queued) {
	at := f.queueOf(q)
	f.files[q.id] = at.PushFront(q)
	at.bytes += q.bytes
}

func (f *fifo) queueOf(q *queued) *queue {
	if q.main {
		return &f.main
	}
	return &f.small
}

// remove forgets a file.
func (f *fifo) remove(id ID) {
	if e := f.files[id]; e != nil {
		f.pop(e)
	}
}

func (f *fifo) pop(e *list.Element) *queued {
	q := e.Value.(*queued)
	at := f.queueOf(q)
	at.Remove(e)
	at.bytes -= q.bytes
	delete(f.files, q.id)
	return q
}

// smallShare is the part of the bytes that the small queue has: one in ten, as in the paper.
const smallShare = 10

// evict removes the next file to evict from its queue and returns it. It returns false if there
// is no file.
func (f *fifo) evict(m marks) (ID, bool) {
	// Each file is looked at twice at most: once used, its mark is clear.
	for range 2*len(f.files) + 1 {
		fromSmall := f.main.Len() == 0 || f.small.bytes > f.bytes()/smallShare
		at := &f.main
		if fromSmall && f.small.Len() > 0 {
			at = &f.small
		}
		e := at.Back()
		if e == nil {
			return ID{}, false
		}
		q := f.pop(e)
		if !m.used(q.id) {
			if !q.main {
				f.ghosts.add(q.id, f.main.Len())
			}
			return q.id, true
		}
		if !q.main {
			q.main = true
			m.promoted(q.id)
		}
		f.push(q)
	}
	return ID{}, false
}

// ghosts are the files that were evicted from the small queue not long ago, as many as the main
// queue has files.
type ghosts struct {
	order list.List // of ID, newest first
	at    map[ID]*list.Element
}

// minGhosts is how many files are remembered however short the main queue is.
const minGhosts = 1024

func (g *ghosts) add(id ID, most int) {
	if g.at == nil {
		g.at = map[ID]*list.Element{}
	}
	g.at[id] = g.order.PushFront(id)
	for g.order.Len() > max(most, minGhosts) {
		delete(g.at, g.order.Remove(g.order.Back()).(ID))
	}
}

// take reports whether id is remembered, and forgets it.
func (g *ghosts) take(id ID) bool {
	e := g.at[id]
	if e == nil {
		return false
	}
	g.order.Remove(e)
	delete(g.at, id)
	return true
}
