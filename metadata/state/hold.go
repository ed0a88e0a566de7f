package state

import (
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
	"google.golang.org/protobuf/proto"
)

// An exclusive lease on a directory lets its holder answer creates in it before the
// service has heard of them. So it is more than a promise to a cache, which the
// leader may forget: a change by anybody else that was applied before the holder's
// would make what the holder answered wrong. It is therefore in the state, where
// every change meets it whichever leader proposed it: a command of anybody else that
// touches the entries or the attributes of the directory is refused when it is
// applied, and changes nothing, not even the answers that are kept (Result.Met). The
// leader asks the holder to give the directory back, and proposes it again.

const (
	// MaxSessionHolds is the most directories that one session may hold.
	MaxSessionHolds = 64
	// MaxNumbers is the most inode numbers that one Hold gives.
	MaxNumbers = 1024
	// MaxSessionRanges is the most ranges of numbers that one session may have.
	MaxSessionRanges = 16
)

// holder returns the exclusive lease on a directory; its session is 0 where nobody
// has it.
func (v *view) holder(dir moraine.InodeID) (record.Hold, error) {
	b, ok, err := v.r.Get(v.k.hold(dir))
	if err != nil || !ok {
		return record.Hold{}, err
	}
	return record.DecodeHold(dir, b)
}

// Holder returns the exclusive lease on a directory; its session is 0 where nobody
// has it.
func (m *Machine) Holder(r Reader, dir moraine.InodeID) (record.Hold, error) {
	return m.view(r).holder(dir)
}

// Holds calls fn with every exclusive lease.
func (m *Machine) Holds(r Reader, fn func(record.Hold)) error {
	var bad error
	prefix := m.k.table(record.TabHold)
	err := r.Scan(prefix, prefixEnd(prefix), func(key, value []byte) bool {
		var h record.Hold
		if h, bad = record.DecodeHold(moraine.InodeID(record.LastU64(key)), value); bad == nil {
			fn(h)
		}
		return bad == nil
	})
	if err == nil {
		err = bad
	}
	return err
}

// mindHold has the command refused where another session has the directory.
func (t *tx) mindHold(dir moraine.InodeID) {
	if t.count[record.CHolds] == 0 || t.met.Directory != 0 || t.holdErr != nil {
		return
	}
	h, err := t.holder(dir)
	switch {
	case err != nil:
		t.holdErr = err
	case h.Session != 0 && (t.session == nil || t.session.Id != h.Session):
		t.met = h
	}
}

// mindNumber is mindHold for an inode that there is none of. A hold outside of the caller's
// scope is passed over: what its holder may have made is not there for the caller either way.
func (t *tx) mindNumber(id moraine.InodeID) {
	if t.count[record.CHolds] == 0 || t.met.Directory != 0 || t.holdErr != nil {
		return
	}
	var own moraine.SessionID
	if t.session != nil {
		own = t.session.Id
	}
	h, err := t.numberHold(id, own)
	in := true
	if err == nil && h.Directory != 0 && t.scope.root != 0 { // a command of the leader's own has no scope
		in, err = t.view.mayName(t.scope, h.Directory)
	}
	if t.holdErr = err; in {
		t.met = h
	}
}

// numberHold returns a hold of another session that was given the number of an inode
// that is not there, and has not used it: it may have made the file already. There
// are few such ranges, and few questions for what is not there.
func (v *view) numberHold(id moraine.InodeID, own moraine.SessionID) (record.Hold, error) {
	var owner moraine.SessionID
	var bad error
	prefix := v.k.table(record.TabRange)
	err := v.r.Scan(prefix, prefixEnd(prefix), func(key, value []byte) bool {
		var r *record.NumberRange
		if r, bad = record.DecodeRange(value); bad != nil {
			return false
		}
		if id >= r.First && id <= r.Last() && r.Used[(id-r.First)/8]&(1<<((id-r.First)%8)) == 0 {
			owner = moraine.SessionID(record.LastU64(key[:11]))
		}
		return owner == 0
	})
	if err == nil {
		err = bad
	}
	if err != nil || owner == 0 || owner == own {
		return record.Hold{}, err
	}
	dirs, err := v.keysUnder(v.k.sessionHolds(owner), 1)
	if err != nil || len(dirs) == 0 {
		return record.Hold{}, err
	}
	return v.holder(moraine.InodeID(record.LastU64(dirs[0])))
}

// NumberHold returns an exclusive lease under which another session than own may have
// made an inode that the state does not have; its session is 0 where there is none.
func (m *Machine) NumberHold(r Reader, id moraine.InodeID, own moraine.SessionID) (record.Hold, error) {
	return m.view(r).numberHold(id, own)
}

// refusedByLease makes the answer of a command that met another's hold; nil where it met
// none. What the command wrote is thrown away.
func (t *tx) refusedByLease() *wire.MetaResponse {
	if t.met.Directory == 0 {
		return nil
	}
	t.reset()
	return refuse(fail(moraine.Busy, "apply", t.met.Directory.String(), "session %s has the exclusive lease on the directory", t.met.Session))
}

// holdDirectory gives a session the exclusive lease on a directory, and numbers. Everybody
// else's cache is told to forget what it has of the directory: Taken.
func (m *Machine) holdDirectory(t *tx, op *wire.Hold) (*wire.MetaResponse, error) {
	switch ok, err := t.speaks(LevelHolds); {
	case err != nil:
		return nil, err
	case !ok:
		return nil, fail(moraine.Unimplemented, "hold", "", "the cluster's feature level does not have it")
	case op.GetNumbers() > MaxNumbers:
		return nil, fail(moraine.InvalidArgument, "hold", "", "%d numbers; %d at most", op.GetNumbers(), MaxNumbers)
	}
	reply := &wire.HoldReply{Squash: t.scope.squash}
	if op.GetDirectory() != 0 {
		dir, err := t.takeHold(moraine.InodeID(op.GetDirectory()))
		if err != nil {
			return nil, err
		}
		reply.Directory, reply.Since = dir.Attr(), t.count[record.CCommands]
	}
	if err := t.dropRanges(t.session.Id, op.GetDone()); err != nil {
		return nil, err
	}
	if op.GetNumbers() > 0 {
		r, err := t.giveRange(op.GetNumbers())
		if err != nil {
			return nil, err
		}
		reply.First, reply.Count = uint64(r.First), r.Count
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Hold{Hold: reply}}, nil
}

func (t *tx) takeHold(id moraine.InodeID) (*record.Inode, error) {
	if _, err := t.named(id); err != nil { // before anything is said of who has it
		return nil, err
	}
	had, err := t.holder(id)
	if err != nil {
		return nil, err
	}
	if had.Session != 0 && had.Session != t.session.Id {
		return nil, fail(moraine.Busy, "hold", id.String(), "session %s has it", had.Session)
	}
	dir, err := t.directory(id)
	if err != nil {
		return nil, err
	}
	if dir.Sealed {
		return nil, t.immutable(dir) // nothing is ever made in it
	}
	h := record.Hold{Directory: id, Session: t.session.Id, Since: t.count[record.CCommands]}
	t.events.Holds = append(t.events.Holds, h)
	if had.Session != 0 { // an end of the one before that comes late does not end this one
		t.put(t.k.hold(id), h.Encode())
		return dir, nil
	}
	have, err := t.keysUnder(t.k.sessionHolds(t.session.Id), MaxSessionHolds)
	if err != nil {
		return nil, err
	}
	if len(have) == MaxSessionHolds {
		return nil, fail(moraine.TooLarge, "hold", id.String(), "the session has %d directories: give one back", MaxSessionHolds)
	}
	t.insert(t.k.hold(id), h.Encode())
	t.insert(t.k.sessionHold(t.session.Id, id), []byte{record.HoldVersion})
	t.count[record.CHolds]++
	t.touched = append(t.touched, Touch{Lease: id, Inode: id, Change: Taken})
	return dir, nil
}

// endHold gives a directory back.
func (m *Machine) endHold(t *tx, op *wire.EndHold) (*wire.MetaResponse, error) {
	return done(), t.dropHold(moraine.InodeID(op.GetDirectory()), t.session.Id, op.GetSince())
}

// lapseHold takes a directory from a session whose leases have ended.
func (m *Machine) lapseHold(t *tx, op *statepb.LapseHold) (*wire.MetaResponse, error) {
	return done(), t.dropHold(moraine.InodeID(op.GetDirectory()), moraine.SessionID(op.GetSession()), op.GetSince())
}

// dropHold ends a hold of a session, if it has it; with since 0 whichever it has.
func (t *tx) dropHold(dir moraine.InodeID, s moraine.SessionID, since uint64) error {
	if t.count[record.CHolds] == 0 {
		return nil
	}
	have, err := t.holder(dir)
	if err != nil || have.Session != s || s == 0 || (since != 0 && since != have.Since) {
		return err
	}
	t.del(t.k.hold(dir))
	t.del(t.k.sessionHold(s, dir))
	t.count[record.CHolds]--
	t.events.Holds = append(t.events.Holds, record.Hold{Directory: dir})
	return nil
}

// endSessionHolds ends all holds of a session, and forgets its numbers: they are
// few.
func (t *tx) endSessionHolds(s moraine.SessionID) error {
	keys, err := t.keysUnder(t.k.sessionHolds(s), MaxSessionHolds)
	for _, key := range keys {
		if err == nil {
			err = t.dropHold(moraine.InodeID(record.LastU64(key)), s, 0)
		}
	}
	if err != nil {
		return err
	}
	if keys, err = t.keysUnder(t.k.ranges(s), MaxSessionRanges); err != nil {
		return err
	}
	for _, key := range keys {
		t.del(key)
	}
	return nil
}

// giveRange gives the session numbers that nobody else will ever get.
func (t *tx) giveRange(count uint32) (*record.NumberRange, error) {
	have, err := t.keysUnder(t.k.ranges(t.session.Id), MaxSessionRanges)
	if err != nil {
		return nil, err
	}
	if len(have) == MaxSessionRanges {
		return nil, fail(moraine.TooLarge, "hold", "", "the session has %d ranges of numbers: say which are done with", MaxSessionRanges)
	}
	first, err := t.nextIDs(record.CInode, uint64(count))
	if err != nil {
		return nil, err
	}
	r := &record.NumberRange{First: moraine.InodeID(first), Count: count, Used: make([]byte, (count+7)/8)}
	t.insert(t.k.numbers(t.session.Id, r.Last()), r.Encode())
	return r, nil
}

// dropRanges forgets ranges of a session, by their first numbers.
func (t *tx) dropRanges(s moraine.SessionID, firsts []uint64) error {
	if len(firsts) == 0 {
		return nil
	}
	keys, err := t.keysUnder(t.k.ranges(s), MaxSessionRanges)
	if err != nil {
		return err
	}
	for _, key := range keys {
		b, _, err := t.Get(key)
		if err != nil {
			return err
		}
		r, err := record.DecodeRange(b)
		if err != nil {
			return err
		}
		if slices.Contains(firsts, uint64(r.First)) {
			t.del(key)
		}
	}
	return nil
}

// takeNumber marks a number of the session as used. Stale where it may not be: it
// is not the session's, or a file was made of it once.
func (t *tx) takeNumber(id moraine.InodeID) error {
	var r *record.NumberRange
	var bad error
	err := t.view.r.Scan(t.k.numbers(t.session.Id, id), prefixEnd(t.k.ranges(t.session.Id)), func(_, value []byte) bool {
		r, bad = record.DecodeRange(value)
		return false
	})
	if err == nil {
		err = bad
	}
	if err != nil {
		return err
	}
	if r == nil || id < r.First || id > r.Last() {
		return fail(moraine.Stale, "create", id.String(), "the number is not one of the session's")
	}
	n := id - r.First
	if r.Used[n/8]&(1<<(n%8)) != 0 {
		return fail(moraine.Stale, "create", id.String(), "a file of that number was made before")
	}
	r.Used[n/8] |= 1 << (n % 8)
	t.put(t.k.numbers(t.session.Id, r.Last()), r.Encode())
	return nil
}

// existingAs answers a create of a given number whose name is taken: by the file
// itself, where the answer to the first was lost.
func (t *tx) existingAs(op *wire.Create, e record.Dentry) (*wire.MetaResponse, error) {
	if uint64(e.Inode) != op.GetInode() {
		return nil, fail(moraine.Exists, "create", op.GetName(), "")
	}
	i, err := t.inode(e.Inode)
	if err != nil {
		return nil, err
	}
	return entryReply(i), nil
}

// known returns a create as the feature level has it: below LevelHolds no build that
// may apply it knows of given numbers, and others must not do what those do not.
func (t *tx) known(op *wire.Create) (*wire.Create, error) {
	if op.GetInode() == 0 {
		return op, nil
	}
	if ok, err := t.speaks(LevelHolds); ok || err != nil {
		return op, err
	}
	op = proto.CloneOf(op)
	op.Inode = 0
	return op, nil
}

// createFirst makes the file that a commit brings along.
func (m *Machine) createFirst(t *tx, op *wire.Commit) error {
	if ok, err := t.speaks(LevelHolds); !ok || err != nil {
		return err
	}
	if c := op.GetCreate(); c.GetInode() == 0 || c.GetInode() != op.GetInode() {
		return fail(moraine.InvalidArgument, "commit", moraine.InodeID(op.GetInode()).String(), "it makes file %s", moraine.InodeID(c.GetInode()))
	}
	_, err := m.create(t, op.GetCreate())
	return err
}
