package session

import (
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
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

// Holder returns the exclusive lease on a directory; its session is 0 where nobody
// has it.
func Holder(r *kvtx.View, dir moraine.InodeID) (record.Hold, error) {
	return tree.Holder(r, dir)
}

// Holds calls fn with every exclusive lease.
func Holds(r *kvtx.View, fn func(record.Hold)) error {
	var bad error
	prefix := r.K.Table(record.TabHold)
	err := r.Scan(prefix, kvtx.PrefixEnd(prefix), func(key, value []byte) bool {
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

// NumberHold returns an exclusive lease under which another session than own may have
// made an inode that the state does not have; its session is 0 where there is none.
func NumberHold(r *kvtx.View, id moraine.InodeID, own moraine.SessionID) (record.Hold, error) {
	return tree.NumberHold(r, id, own)
}

// RefusedByLease makes the answer of a command that met another's hold; nil where it met
// none. What the command wrote is thrown away.
func RefusedByLease(t *kvtx.Tx) *wire.MetaResponse {
	if t.Met.Directory == 0 {
		return nil
	}
	t.Reset()
	return kvtx.Refuse(kvtx.Fail(moraine.Busy, "apply", t.Met.Directory.String(), "session %s has the exclusive lease on the directory", t.Met.Session))
}

// HoldDirectory gives a session the exclusive lease on a directory, and numbers. Everybody
// else's cache is told to forget what it has of the directory: Taken.
func HoldDirectory(t *kvtx.Tx, op *wire.Hold) (*wire.MetaResponse, error) {
	switch ok, err := t.Speaks(kvtx.LevelHolds); {
	case err != nil:
		return nil, err
	case !ok:
		return nil, kvtx.Fail(moraine.Unimplemented, "hold", "", "the cluster's feature level does not have it")
	case op.GetNumbers() > MaxNumbers:
		return nil, kvtx.Fail(moraine.InvalidArgument, "hold", "", "%d numbers; %d at most", op.GetNumbers(), MaxNumbers)
	}
	reply := &wire.HoldReply{Squash: t.Scope.Squash}
	if op.GetDirectory() != 0 {
		dir, err := TakeHold(t, moraine.InodeID(op.GetDirectory()))
		if err != nil {
			return nil, err
		}
		reply.Directory, reply.Since = dir.Attr(), t.Count[record.CCommands]
	}
	if err := DropRanges(t, t.Session.Id, op.GetDone()); err != nil {
		return nil, err
	}
	if op.GetNumbers() > 0 {
		r, err := GiveRange(t, op.GetNumbers())
		if err != nil {
			return nil, err
		}
		reply.First, reply.Count = uint64(r.First), r.Count
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Hold{Hold: reply}}, nil
}

func TakeHold(t *kvtx.Tx, id moraine.InodeID) (*record.Inode, error) {
	if _, err := tree.Named(t, id); err != nil { // before anything is said of who has it
		return nil, err
	}
	had, err := tree.Holder(&t.View, id)
	if err != nil {
		return nil, err
	}
	if had.Session != 0 && had.Session != t.Session.Id {
		return nil, kvtx.Fail(moraine.Busy, "hold", id.String(), "session %s has it", had.Session)
	}
	dir, err := tree.Directory(t, id)
	if err != nil {
		return nil, err
	}
	if dir.Sealed {
		return nil, tree.Immutable(t, dir) // nothing is ever made in it
	}
	h := record.Hold{Directory: id, Session: t.Session.Id, Since: t.Count[record.CCommands]}
	t.Events.Holds = append(t.Events.Holds, h)
	if had.Session != 0 { // an end of the one before that comes late does not end this one
		t.Put(t.K.Hold(id), h.Encode())
		return dir, nil
	}
	have, err := t.KeysUnder(t.K.SessionHolds(t.Session.Id), MaxSessionHolds)
	if err != nil {
		return nil, err
	}
	if len(have) == MaxSessionHolds {
		return nil, kvtx.Fail(moraine.TooLarge, "hold", id.String(), "the session has %d directories: give one back", MaxSessionHolds)
	}
	t.Insert(t.K.Hold(id), h.Encode())
	t.Insert(t.K.SessionHold(t.Session.Id, id), []byte{record.HoldVersion})
	t.Count[record.CHolds]++
	t.Touched = append(t.Touched, kvtx.Touch{Lease: id, Inode: id, Change: kvtx.Taken})
	return dir, nil
}

// EndHold gives a directory back.
func EndHold(t *kvtx.Tx, op *wire.EndHold) (*wire.MetaResponse, error) {
	return kvtx.Done(), tree.DropHold(t, moraine.InodeID(op.GetDirectory()), t.Session.Id, op.GetSince())
}

// LapseHold takes a directory from a session whose leases have ended.
func LapseHold(t *kvtx.Tx, op *statepb.LapseHold) (*wire.MetaResponse, error) {
	return kvtx.Done(), tree.DropHold(t, moraine.InodeID(op.GetDirectory()), moraine.SessionID(op.GetSession()), op.GetSince())
}

// EndSessionHolds ends all holds of a session, and forgets its numbers: they are
// few.
func EndSessionHolds(t *kvtx.Tx, s moraine.SessionID) error {
	keys, err := t.KeysUnder(t.K.SessionHolds(s), MaxSessionHolds)
	for _, key := range keys {
		if err == nil {
			err = tree.DropHold(t, moraine.InodeID(record.LastU64(key)), s, 0)
		}
	}
	if err != nil {
		return err
	}
	if keys, err = t.KeysUnder(t.K.Ranges(s), MaxSessionRanges); err != nil {
		return err
	}
	for _, key := range keys {
		t.Del(key)
	}
	return nil
}

// GiveRange gives the session numbers that nobody else will ever get.
func GiveRange(t *kvtx.Tx, count uint32) (*record.NumberRange, error) {
	have, err := t.KeysUnder(t.K.Ranges(t.Session.Id), MaxSessionRanges)
	if err != nil {
		return nil, err
	}
	if len(have) == MaxSessionRanges {
		return nil, kvtx.Fail(moraine.TooLarge, "hold", "", "the session has %d ranges of numbers: say which are done with", MaxSessionRanges)
	}
	first, err := t.NextIDs(record.CInode, uint64(count))
	if err != nil {
		return nil, err
	}
	r := &record.NumberRange{First: moraine.InodeID(first), Count: count, Used: make([]byte, (count+7)/8)}
	t.Insert(t.K.Numbers(t.Session.Id, r.Last()), r.Encode())
	return r, nil
}

// DropRanges forgets ranges of a session, by their first numbers.
func DropRanges(t *kvtx.Tx, s moraine.SessionID, firsts []uint64) error {
	if len(firsts) == 0 {
		return nil
	}
	keys, err := t.KeysUnder(t.K.Ranges(s), MaxSessionRanges)
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
			t.Del(key)
		}
	}
	return nil
}
