package state

import (
	"slices"

	"github.com/morainefs/moraine"
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

const holdVersion = 1

// Hold is the exclusive lease of a session on a directory.
type Hold struct {
	Directory moraine.InodeID // 0: it was not
	Session   moraine.SessionID
	Since     uint64 // tells it from earlier and later ones of the session
}

// holder returns the exclusive lease on a directory; its session is 0 where nobody
// has it.
func (v *view) holder(dir moraine.InodeID) (Hold, error) {
	b, ok, err := v.r.Get(v.k.hold(dir))
	if err != nil || !ok {
		return Hold{}, err
	}
	return decodeHold(dir, b)
}

func (h Hold) encode() []byte {
	return putUvarint(putFixed64([]byte{holdVersion}, uint64(h.Session)), h.Since)
}

func decodeHold(dir moraine.InodeID, b []byte) (Hold, error) {
	d := dec{b: b}
	d.version(holdVersion)
	h := Hold{Directory: dir, Session: moraine.SessionID(d.fixed64())}
	h.Since = d.uvarint()
	return h, d.end("hold")
}

// Holder returns the exclusive lease on a directory; its session is 0 where nobody
// has it.
func (m *Machine) Holder(r Reader, dir moraine.InodeID) (Hold, error) {
	return m.view(r).holder(dir)
}

// Holds calls fn with every exclusive lease.
func (m *Machine) Holds(r Reader, fn func(Hold)) error {
	var bad error
	prefix := m.k.table(tabHold)
	err := r.Scan(prefix, prefixEnd(prefix), func(key, value []byte) bool {
		var h Hold
		if h, bad = decodeHold(moraine.InodeID(lastU64(key)), value); bad == nil {
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
	if t.count[cHolds] == 0 || t.met.Directory != 0 || t.holdErr != nil {
		return
	}
	h, err := t.holder(dir)
	switch {
	case err != nil:
		t.holdErr = err
	case h.Session != 0 && (t.session == nil || t.session.id != h.Session):
		t.met = h
	}
}

// mindNumber is mindHold for an inode that there is none of. A hold outside of the caller's
// scope is passed over: what its holder may have made is not there for the caller either way.
func (t *tx) mindNumber(id moraine.InodeID) {
	if t.count[cHolds] == 0 || t.met.Directory != 0 || t.holdErr != nil {
		return
	}
	var own moraine.SessionID
	if t.session != nil {
		own = t.session.id
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
func (v *view) numberHold(id moraine.InodeID, own moraine.SessionID) (Hold, error) {
	var owner moraine.SessionID
	var bad error
	prefix := v.k.table(tabRange)
	err := v.r.Scan(prefix, prefixEnd(prefix), func(key, value []byte) bool {
		var r *numberRange
		if r, bad = decodeRange(value); bad != nil {
			return false
		}
		if id >= r.first && id <= r.last() && r.used[(id-r.first)/8]&(1<<((id-r.first)%8)) == 0 {
			owner = moraine.SessionID(lastU64(key[:11]))
		}
		return owner == 0
	})
	if err == nil {
		err = bad
	}
	if err != nil || owner == 0 || owner == own {
		return Hold{}, err
	}
	dirs, err := v.keysUnder(v.k.sessionHolds(owner), 1)
	if err != nil || len(dirs) == 0 {
		return Hold{}, err
	}
	return v.holder(moraine.InodeID(lastU64(dirs[0])))
}

// NumberHold returns an exclusive lease under which another session than own may have
// made an inode that the state does not have; its session is 0 where there is none.
func (m *Machine) NumberHold(r Reader, id moraine.InodeID, own moraine.SessionID) (Hold, error) {
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
		reply.Directory, reply.Since = dir.attr(), t.count[cCommands]
	}
	if err := t.dropRanges(t.session.id, op.GetDone()); err != nil {
		return nil, err
	}
	if op.GetNumbers() > 0 {
		r, err := t.giveRange(op.GetNumbers())
		if err != nil {
			return nil, err
		}
		reply.First, reply.Count = uint64(r.first), r.count
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Hold{Hold: reply}}, nil
}

func (t *tx) takeHold(id moraine.InodeID) (*inode, error) {
	if _, err := t.named(id); err != nil { // before anything is said of who has it
		return nil, err
	}
	had, err := t.holder(id)
	if err != nil {
		return nil, err
	}
	if had.Session != 0 && had.Session != t.session.id {
		return nil, fail(moraine.Busy, "hold", id.String(), "session %s has it", had.Session)
	}
	dir, err := t.directory(id)
	if err != nil {
		return nil, err
	}
	if dir.sealed {
		return nil, t.immutable(dir) // nothing is ever made in it
	}
	h := Hold{Directory: id, Session: t.session.id, Since: t.count[cCommands]}
	t.events.Holds = append(t.events.Holds, h)
	if had.Session != 0 { // an end of the one before that comes late does not end this one
		t.put(t.k.hold(id), h.encode())
		return dir, nil
	}
	have, err := t.keysUnder(t.k.sessionHolds(t.session.id), MaxSessionHolds)
	if err != nil {
		return nil, err
	}
	if len(have) == MaxSessionHolds {
		return nil, fail(moraine.TooLarge, "hold", id.String(), "the session has %d directories: give one back", MaxSessionHolds)
	}
	t.insert(t.k.hold(id), h.encode())
	t.insert(t.k.sessionHold(t.session.id, id), []byte{holdVersion})
	t.count[cHolds]++
	t.touched = append(t.touched, Touch{Lease: id, Inode: id, Change: Taken})
	return dir, nil
}

// endHold gives a directory back.
func (m *Machine) endHold(t *tx, op *wire.EndHold) (*wire.MetaResponse, error) {
	return done(), t.dropHold(moraine.InodeID(op.GetDirectory()), t.session.id, op.GetSince())
}

// lapseHold takes a directory from a session whose leases have ended.
func (m *Machine) lapseHold(t *tx, op *statepb.LapseHold) (*wire.MetaResponse, error) {
	return done(), t.dropHold(moraine.InodeID(op.GetDirectory()), moraine.SessionID(op.GetSession()), op.GetSince())
}

// dropHold ends a hold of a session, if it has it; with since 0 whichever it has.
func (t *tx) dropHold(dir moraine.InodeID, s moraine.SessionID, since uint64) error {
	if t.count[cHolds] == 0 {
		return nil
	}
	have, err := t.holder(dir)
	if err != nil || have.Session != s || s == 0 || (since != 0 && since != have.Since) {
		return err
	}
	t.del(t.k.hold(dir))
	t.del(t.k.sessionHold(s, dir))
	t.count[cHolds]--
	t.events.Holds = append(t.events.Holds, Hold{Directory: dir})
	return nil
}

// endSessionHolds ends all holds of a session, and forgets its numbers: they are
// few.
func (t *tx) endSessionHolds(s moraine.SessionID) error {
	keys, err := t.keysUnder(t.k.sessionHolds(s), MaxSessionHolds)
	for _, key := range keys {
		if err == nil {
			err = t.dropHold(moraine.InodeID(lastU64(key)), s, 0)
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

// numberRange is inode numbers that one session may make files of. Its key is the
// session and its last number, as with a grant.
type numberRange struct {
	first moraine.InodeID
	count uint32
	used  []byte // a bit for each number that a file was made of
}

func (r *numberRange) last() moraine.InodeID { return r.first + moraine.InodeID(r.count) - 1 }

func (r *numberRange) encode() []byte {
	b := putFixed64([]byte{holdVersion}, uint64(r.first))
	return putBytes(putUvarint(b, uint64(r.count)), r.used)
}

func decodeRange(b []byte) (*numberRange, error) {
	d := dec{b: b}
	d.version(holdVersion)
	r := &numberRange{first: moraine.InodeID(d.fixed64()), count: d.u32()}
	r.used = slices.Clone(d.bytes())
	if d.err == nil && (r.count == 0 || uint32(len(r.used)) != (r.count+7)/8) {
		d.fail(errShort)
	}
	return r, d.end("range of numbers")
}

// giveRange gives the session numbers that nobody else will ever get.
func (t *tx) giveRange(count uint32) (*numberRange, error) {
	have, err := t.keysUnder(t.k.ranges(t.session.id), MaxSessionRanges)
	if err != nil {
		return nil, err
	}
	if len(have) == MaxSessionRanges {
		return nil, fail(moraine.TooLarge, "hold", "", "the session has %d ranges of numbers: say which are done with", MaxSessionRanges)
	}
	first, err := t.nextIDs(cInode, uint64(count))
	if err != nil {
		return nil, err
	}
	r := &numberRange{first: moraine.InodeID(first), count: count, used: make([]byte, (count+7)/8)}
	t.insert(t.k.numbers(t.session.id, r.last()), r.encode())
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
		r, err := decodeRange(b)
		if err != nil {
			return err
		}
		if slices.Contains(firsts, uint64(r.first)) {
			t.del(key)
		}
	}
	return nil
}

// takeNumber marks a number of the session as used. Stale where it may not be: it
// is not the session's, or a file was made of it once.
func (t *tx) takeNumber(id moraine.InodeID) error {
	var r *numberRange
	var bad error
	err := t.view.r.Scan(t.k.numbers(t.session.id, id), prefixEnd(t.k.ranges(t.session.id)), func(_, value []byte) bool {
		r, bad = decodeRange(value)
		return false
	})
	if err == nil {
		err = bad
	}
	if err != nil {
		return err
	}
	if r == nil || id < r.first || id > r.last() {
		return fail(moraine.Stale, "create", id.String(), "the number is not one of the session's")
	}
	n := id - r.first
	if r.used[n/8]&(1<<(n%8)) != 0 {
		return fail(moraine.Stale, "create", id.String(), "a file of that number was made before")
	}
	r.used[n/8] |= 1 << (n % 8)
	t.put(t.k.numbers(t.session.id, r.last()), r.encode())
	return nil
}

// existingAs answers a create of a given number whose name is taken: by the file
// itself, where the answer to the first was lost.
func (t *tx) existingAs(op *wire.Create, e dentry) (*wire.MetaResponse, error) {
	if uint64(e.inode) != op.GetInode() {
		return nil, fail(moraine.Exists, "create", op.GetName(), "")
	}
	i, err := t.inode(e.inode)
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
