package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// holdAfter is how many files a client makes in a directory, within holdWindow,
	// before it asks for the exclusive lease on it.
	holdAfter  = 3
	holdWindow = 2 * time.Second
	// holdPause is for how long a directory is not asked for that was wanted back, or
	// refused, and holdIdle after how long one is given back that is not used.
	holdPause = 5 * time.Second
	holdIdle  = 10 * time.Second
	// madeAge is after how long a file is sent that nobody has flushed.
	madeAge = time.Second
	// maxMade bounds the files of one directory that the service has not heard of,
	// and sendBatch those that one request tells it of.
	maxMade   = 512
	sendBatch = 63
	// sendBytes bounds the contents of those, but for the first: the commit of a large
	// file has a record for each of its stripes.
	sendBytes = 1 << 20
	// maxHolds bounds the directories held; the service gives a few more.
	maxHolds = 48
	// numberCount is how many inode numbers are asked for at once.
	numberCount = 512
	// maxHoldPages bounds the listing of a directory, in requests, by which the names
	// in it are known. In a larger one each name is asked for.
	maxHoldPages = 8
)

// exclusive is the client's exclusive leases on directories. While it has one, it
// makes files there without a word to the service: nobody else sees the directory
// until it was given back. A file is sent with its first content, or when somebody
// else wants the directory, or soon; always after those that were made before it in
// that directory, in batches that are one entry of the service's log.
//
// What it keeps is guarded by the cache's mutex, since what the cache answers and
// what was made here must be of one moment.
type exclusive struct {
	meta  *Conn
	cache *cache
	// spawn runs fn in the background, as long as the client lives; false: it does
	// not any more.
	spawn func(fn func(context.Context)) bool

	holds   map[uint64]*hold
	made    map[uint64]*Made // by inode: not answered by the service yet
	getting map[uint64]*getting
	ranges  []*numberRange
	tries   map[uint64]tries
	pause   map[uint64]time.Time // directories that are not asked for until then
	off     time.Time            // nothing is asked for until then
}

// hold is the exclusive lease on one directory.
type hold struct {
	dir     uint64
	parent  uint64 // of dir: who moves dir gives it back first
	tenant  uint32
	squash  bool
	session *Session
	since   uint64
	epoch   uint64 // of the standing that it was got under
	used    time.Time
	names   map[string]*Made // of queue
	queue   []*Made          // in the order that they were made in
	// back says that it is given back: nothing more is made under it, and it ends
	// when the queue is empty.
	back    bool
	sending bool
}

// Made is a file that was made here and that the service has not answered for.
type Made struct {
	h      *hold
	op     *wire.Create
	Attr   *wire.Attr // not changed
	since  time.Time
	from   *numberRange
	commit *wire.Commit // its first content; nil: none yet
	wanted bool         // to be sent, with all before it
	sent   bool         // it is on its way
	done   chan struct{}
	reply  *wire.MetaResponse // when done
	Err    error
}

func newExclusive(m *Conn, c *cache) *exclusive {
	return &exclusive{meta: m, cache: c, holds: map[uint64]*hold{}, made: map[uint64]*Made{}, getting: map[uint64]*getting{},
		tries: map[uint64]tries{}, pause: map[uint64]time.Time{}}
}

// localCreate is what making a file here came to.
type localCreate uint8

const (
	localNo      localCreate = iota // the service has to
	localMade                       // done
	localUnknown                    // whether the name is free has to be asked
	localHold                       // the exclusive lease, or numbers, have to be asked for
)

// CreateLocally makes a file under an exclusive lease; nil where the service has to.
func (m *Conn) CreateLocally(ctx context.Context, parent moraine.InodeID, name string, like NewFile) *Made {
	e := m.Exclusive
	if e == nil || !isName(name) || len(name) > moraine.MaxNameLen {
		return nil
	}
	for range 3 {
		f, what := e.make(uint64(parent), name, like)
		switch what {
		case localMade:
			return f
		case localUnknown:
			if a, err := m.LookupAt(ctx, parent, name); a != nil || (err != nil && !retry.IsKind(err, moraine.NotFound)) {
				return nil
			}
		case localHold:
			if !e.get(ctx, uint64(parent)) {
				return nil
			}
		default:
			return nil
		}
	}
	return nil
}

// NewFile says what a file that is made under an exclusive lease is like.
type NewFile struct{ Mode, UID, GID uint32 }

// make makes a file, if all that it takes is there.
func (e *exclusive) make(dir uint64, name string, like NewFile) (*Made, localCreate) {
	c := e.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock.Now()
	h := e.holds[dir]
	if h == nil || h.back {
		return nil, e.tryHold(dir, h, now)
	}
	if !e.trusted(h) {
		e.giveBack(h)
		return nil, localNo
	}
	inode, known := c.find(dir, name)
	switch {
	case !known:
		return nil, localUnknown
	case inode != 0 || len(h.queue) >= maxMade:
		return nil, localNo
	}
	r := e.number(h.session)
	if r == nil {
		return nil, localHold
	}
	id := r.first + uint64(r.next)
	r.next++
	r.open++
	op := &wire.Create{Parent: dir, Name: name, Type: wire.FileType_FILE_TYPE_REGULAR, Mode: like.Mode & 0o7777,
		Uid: like.UID, Gid: like.GID, Exclusive: true, Inode: id}
	nanos := now.UnixNano()
	m := &Made{h: h, op: op, since: now, from: r, done: make(chan struct{}), Attr: &wire.Attr{Inode: id, Type: op.Type,
		Mode: op.Mode, Uid: h.squashed(op.Uid), Gid: h.squashed(op.Gid), Nlink: 1, Parent: dir, Tenant: h.tenant,
		Generation: uint64(moraine.ID(id).Incarnation())<<56 | 1, Atime: nanos, Mtime: nanos, Ctime: nanos}}
	h.queue, h.used = append(h.queue, m), now
	h.names[name], e.made[id] = m, m
	// What was read of the directory before is not so any more.
	c.events.add(dir)
	c.events.add(id)
	c.dropAttr(dir)
	if l := c.leases[dir]; l != nil {
		l.forget(c, name)
	}
	c.metrics.LocalCreates.Inc()
	return m, localMade
}

// squashed is what the service makes of a user or group.
func (h *hold) squashed(id uint32) uint32 {
	if h.squash && id == 0 {
		return 65534
	}
	return id
}

// trusted reports whether nobody else can have the directory now. The mutex is held.
func (e *exclusive) trusted(h *hold) bool {
	st := &e.cache.standing
	return e.cache.usable() && st.session == h.session.Id && st.epoch == h.epoch
}

// wantedBack carries out that the service wants a directory back. The mutex is held.
func (e *exclusive) wantedBack(dir uint64) {
	if e == nil {
		return
	}
	if g := e.getting[dir]; g != nil {
		g.voided = true
	}
	e.pause[dir] = e.cache.clock.Now().Add(holdPause)
	h := e.holds[dir]
	if h == nil { // it was lost, and the service has not heard
		h = e.add(dir, e.meta.Current(), 0, nil)
	}
	e.cache.metrics.HoldRecalls.Inc()
	e.giveBack(h)
}

// giveBack ends a hold, after what was made under it. The mutex is held.
func (e *exclusive) giveBack(h *hold) {
	h.back = true
	e.kick(h)
}

// kick begins to send, if there is something to be sent. The mutex is held.
func (e *exclusive) kick(h *hold) {
	if h.sending {
		return
	}
	if h.sending = e.spawn(func(ctx context.Context) { e.sendAll(ctx, h) }); h.sending {
		return
	}
	for _, m := range h.queue { // the client is closed
		m.Err = ErrClosed
		close(m.done)
	}
	h.queue = nil
	delete(e.holds, h.dir)
}

// want has a file sent, with all before it. The mutex is held.
func (e *exclusive) want(m *Made) {
	m.wanted = true
	e.kick(m.h)
}

func (h *hold) wantAll() {
	for _, m := range h.queue {
		m.wanted = true
	}
}

// wait returns what became of a file that was made here.
func (m *Made) wait(ctx context.Context) error {
	select {
	case <-m.done:
		return m.Err
	case <-ctx.Done():
		return retry.ContextError(ctx, "make the file")
	}
}

// Answered reports whether the service has answered for it.
func (m *Made) Answered() bool {
	select {
	case <-m.done:
		return true
	default:
		return false
	}
}

// Settle has the service hear of a file that was made here, and returns what became
// of it. For one that was not (nil) it does nothing.
func (e *exclusive) Settle(ctx context.Context, m *Made) error {
	if m == nil {
		return nil
	}
	if m.Answered() {
		return m.Err
	}
	e.cache.mu.Lock()
	e.want(m)
	e.cache.mu.Unlock()
	return m.wait(ctx)
}

// Commit has a file made with its first content. It returns false where the file is
// there already: then the content is to be committed as any.
func (e *exclusive) Commit(ctx context.Context, m *Made, op *wire.Commit, s *Session) (*wire.CommitReply, bool, error) {
	e.cache.mu.Lock()
	first := !m.sent && m.commit == nil
	if first {
		if s != m.h.session {
			e.cache.mu.Unlock()
			return nil, true, &moraine.Error{Op: "commit", Kind: moraine.SessionExpired}
		}
		op.Create, m.commit = m.op, op
		e.want(m)
	}
	e.cache.mu.Unlock()
	err := m.wait(ctx)
	if err != nil || !first {
		return nil, err != nil, err
	}
	if m.reply.GetCommit().GetAttr() == nil {
		return nil, true, retry.BadReply("commit")
	}
	return m.reply.GetCommit(), true, nil
}

// tick sends what is old, and gives back what is not used, until ctx ends.
func (e *exclusive) tick(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.cache.clock.After(madeAge / 2):
		}
		e.cache.mu.Lock()
		now := e.cache.clock.Now()
		for _, h := range e.holds {
			if len(h.queue) > 0 && now.Sub(h.queue[0].since) >= madeAge {
				h.wantAll()
				e.kick(h)
			}
			if h.back || !e.trusted(h) || now.Sub(h.used) >= holdIdle {
				e.giveBack(h)
			}
		}
		e.cache.mu.Unlock()
	}
}

// finish gives everything back, and returns when that is done or ctx has ended.
func (e *exclusive) finish(ctx context.Context) error {
	if e == nil {
		return nil
	}
	for {
		e.cache.mu.Lock()
		var left *hold
		for _, h := range e.holds {
			h.wantAll()
			e.giveBack(h)
			if left = h; !h.sending {
				left = nil
			}
		}
		n := len(e.holds)
		e.cache.mu.Unlock()
		if n == 0 || left == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return retry.ContextError(ctx, fmt.Sprintf("give %d directories back", n))
		case <-e.cache.clock.After(5 * time.Millisecond):
		}
	}
}

// of, named and pending are what is there of what was made here: a file by its
// number, and by its name, and whether there is any in a directory. A file that may
// be seen by nobody else is answered; the rest the service knows when it is asked.
// The mutex is held.
func (e *exclusive) of(inode uint64) *Made {
	if e == nil {
		return nil
	}
	if m := e.made[inode]; m != nil && e.trusted(m.h) {
		return m
	}
	return nil
}

func (e *exclusive) named(dir uint64, name string) *Made {
	if e == nil {
		return nil
	}
	if h := e.holds[dir]; h != nil && e.trusted(h) {
		return h.names[name]
	}
	return nil
}

func (e *exclusive) pending(dir uint64) bool {
	return e != nil && e.holds[dir] != nil && len(e.holds[dir].queue) > 0
}

// OfLocked returns a file that was made here and not answered for, nil for none.
func (e *exclusive) OfLocked(inode uint64) *Made {
	if e == nil {
		return nil
	}
	e.cache.mu.Lock()
	defer e.cache.mu.Unlock()
	return e.made[inode]
}

// giveAllBack ends all holds: the standing that they were got under is over. The
// mutex is held.
func (e *exclusive) giveAllBack() {
	if e == nil {
		return
	}
	for _, h := range e.holds {
		e.giveBack(h)
	}
}

// ErrClosed is the error of what nobody can carry out any more.
var ErrClosed = errors.New("the client is closed")

// ErrPutLost is the error of bytes that nobody can commit any more.
var ErrPutLost = errors.New("bytes that had been sent went with the session before they were committed")
