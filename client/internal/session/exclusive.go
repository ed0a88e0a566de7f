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
	// holdAfter is how many files a client makes in a directory, within holdWindow, before it
	// requests the exclusive lease.
	holdAfter  = 3
	holdWindow = 2 * time.Second
	// holdPause is for how long the client does not request a directory after a recall or a
	// refusal. holdIdle is after how long it returns an unused lease.
	holdPause = 5 * time.Second
	holdIdle  = 10 * time.Second
	// madeAge is after how long the client sends a file that no caller has flushed.
	madeAge = time.Second
	// maxMade bounds the files of one directory that the service does not know yet, and sendBatch
	// those that one request reports.
	maxMade   = 512
	sendBatch = 63
	// sendBytes bounds the contents in such a request, except the first: the commit of a large
	// file has a record for each of its stripes.
	sendBytes = 1 << 20
	// maxHolds bounds the exclusive leases of the client; the service allows a few more.
	maxHolds = 48
	// numberCount is how many inode numbers the client requests at once.
	numberCount = 512
	// maxHoldPages bounds the listing of a directory, in requests, from which the client knows
	// its names. In a larger directory it looks up each name.
	maxHoldPages = 8
)

// exclusive is the client's exclusive leases on directories. While it has one, it creates files
// there without a request to the service; no other client sees the directory until the lease is
// returned. The client sends a file with its first content, or when another client wants the
// directory, or soon. It always sends it after the files made before it in that directory, in
// batches that are one log entry.
//
// The cache's mutex guards its fields, because the cache's answers and the local files must be
// of the same moment.
type exclusive struct {
	meta  *Conn
	cache *cache
	// spawn runs fn in the background while the client lives; false: the client is closed.
	spawn func(fn func(context.Context)) bool

	holds   map[uint64]*hold
	made    map[uint64]*Made // by inode: files without an answer from the service
	getting map[uint64]*getting
	ranges  []*numberRange
	tries   map[uint64]tries
	pause   map[uint64]time.Time // until then the client does not request the directory
}

// hold is the exclusive lease on one directory.
type hold struct {
	dir     uint64
	parent  uint64 // of dir; a rename of dir first returns the lease
	tenant  uint32
	squash  bool
	session *Session
	since   uint64
	epoch   uint64 // of the standing under which it was granted
	used    time.Time
	names   map[string]*Made // of queue
	queue   []*Made          // in the order of creation
	// back says that the client returns the lease: it creates no more files under it, and the
	// lease ends when the queue is empty.
	back    bool
	sending bool
}

// Made is a file that this client created and that the service has not answered for.
type Made struct {
	h      *hold
	op     *wire.Create
	Attr   *wire.Attr // not changed
	since  time.Time
	from   *numberRange
	commit *wire.Commit // its first content; nil: none
	wanted bool         // to be sent, with all files before it
	sent   bool         // being sent
	done   chan struct{}
	reply  *wire.MetaResponse // set when done is closed
	Err    error
}

func newExclusive(m *Conn, c *cache) *exclusive {
	return &exclusive{meta: m, cache: c, holds: map[uint64]*hold{}, made: map[uint64]*Made{}, getting: map[uint64]*getting{},
		tries: map[uint64]tries{}, pause: map[uint64]time.Time{}}
}

// localCreate is the outcome of an attempt to create a file locally.
type localCreate uint8

const (
	localNo      localCreate = iota // the service must create it
	localMade                       // done
	localUnknown                    // the client must look up whether the name is free
	localHold                       // the client must request the exclusive lease, or inode numbers
)

// CreateLocally creates a file under an exclusive lease. It returns nil if the service must
// create it.
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

// NewFile describes a file created under an exclusive lease.
type NewFile struct{ Mode, UID, GID uint32 }

// make creates a file, if everything for it is available.
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
	// Earlier reads of the directory are no longer valid.
	c.events.add(dir)
	c.events.add(id)
	c.dropAttr(dir)
	if l := c.leases[dir]; l != nil {
		l.forget(c, name)
	}
	c.metrics.LocalCreates.Inc()
	return m, localMade
}

// squashed returns the user or group that the service records.
func (h *hold) squashed(id uint32) uint32 {
	if h.squash && id == 0 {
		return 65534
	}
	return id
}

// trusted reports whether the lease is certainly still ours. The caller holds the mutex.
func (e *exclusive) trusted(h *hold) bool {
	st := &e.cache.standing
	return e.cache.usable() && st.session == h.session.Id && st.epoch == h.epoch
}

// wantedBack carries out the service's recall of a directory. The caller holds the mutex.
func (e *exclusive) wantedBack(dir uint64) {
	if e == nil {
		return
	}
	if g := e.getting[dir]; g != nil {
		g.voided = true
	}
	e.pause[dir] = e.cache.clock.Now().Add(holdPause)
	h := e.holds[dir]
	if h == nil { // the lease was lost, and the service does not know
		h = e.add(dir, e.meta.Current(), 0, nil)
	}
	e.cache.metrics.HoldRecalls.Inc()
	e.giveBack(h)
}

// giveBack ends an exclusive lease, after its files are sent. The caller holds
// the mutex.
func (e *exclusive) giveBack(h *hold) {
	h.back = true
	e.kick(h)
}

// kick starts to send, if there is something to send. The caller holds the mutex.
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

// want requests that a file is sent, with all before it. The caller holds the mutex.
func (e *exclusive) want(m *Made) {
	m.wanted = true
	e.kick(m.h)
}

func (h *hold) wantAll() {
	for _, m := range h.queue {
		m.wanted = true
	}
}

// wait returns the outcome of a locally created file.
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

// Settle sends a locally created file to the service and returns the outcome. For nil it does
// nothing.
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

// Commit sends a local file together with its first content. It returns false if the service
// already knows the file; the caller then commits the content as usual.
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

// tick sends old files and returns unused leases, until ctx ends.
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

// finish returns all leases, and ends when that is done or ctx has ended.
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

// of, named and pending return local files: one by its inode, one by its name, and whether a
// directory has any. They answer only for files that no other client can see; the service knows
// the others. The caller holds the mutex.
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

// OfLocked returns a local file without an answer from the service, or nil. It takes the mutex.
func (e *exclusive) OfLocked(inode uint64) *Made {
	if e == nil {
		return nil
	}
	e.cache.mu.Lock()
	defer e.cache.mu.Unlock()
	return e.made[inode]
}

// giveAllBack ends all holds, because their standing has ended. The caller holds the mutex.
func (e *exclusive) giveAllBack() {
	if e == nil {
		return
	}
	for _, h := range e.holds {
		e.giveBack(h)
	}
}

// ErrClosed is the error of work left undone when the client was closed.
var ErrClosed = errors.New("the client is closed")

// ErrPutLost is the error of bytes whose session ended before their commit.
var ErrPutLost = errors.New("the session ended before the bytes that it had sent were committed")
