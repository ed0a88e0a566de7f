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

// The holder of an exclusive lease on a directory answers creates in it before the service knows of
// them. A cache lease is a promise that the leader may forget. This one is not: if another
// session's change were applied before the holder's, the holder's answer would be wrong. The lease
// is therefore in the state, and every change is checked against it whichever leader proposed the
// change. A command of another session that touches the directory's entries or attributes is
// refused when it is applied. It changes nothing, not even kept answers (Result.Met). The leader
// then recalls the lease from the holder and proposes the command again.

const (
	// maxSessionHolds is the largest number of exclusive leases of one session.
	maxSessionHolds = 64
	// maxNumbers is the largest number of inode numbers that one Hold issues.
	maxNumbers = 1024
	// maxSessionRanges is the largest number of number ranges of one session.
	maxSessionRanges = 16
)

// Holder returns the exclusive lease on a directory; its session is 0 if there is none.
func Holder(r *kvtx.View, dir moraine.InodeID) (record.Hold, error) {
	return tree.Holder(r, dir)
}

// Holds calls fn with every exclusive lease.
func Holds(r *kvtx.View, fn func(record.Hold)) error {
	return r.EachIn(r.K.Table(record.TabHold), func(key, value []byte) (bool, error) {
		h, err := record.DecodeHold(moraine.InodeID(record.LastU64(key)), value)
		if err == nil {
			fn(h)
		}
		return true, err
	})
}

// NumberHold returns an exclusive lease under which a session other than own may have created an
// inode that the state does not know yet. Its session is 0 if there is none.
func NumberHold(r *kvtx.View, id moraine.InodeID, own moraine.SessionID) (record.Hold, error) {
	return tree.NumberHold(r, id, own)
}

// RefusedByLease returns the answer of a command that another session's exclusive lease refused, or
// nil. It discards the command's writes.
func RefusedByLease(t *kvtx.Tx) *wire.MetaResponse {
	if t.Met.Directory == 0 {
		return nil
	}
	t.Reset()
	return kvtx.Refuse(kvtx.Fail(moraine.Busy, "apply", t.Met.Directory.String(), "session %s has the exclusive lease on the directory", t.Met.Session))
}

// HoldDirectory gives the session the exclusive lease on a directory, and inode numbers. The change
// Taken makes all other clients drop their cache of the directory.
func HoldDirectory(t *kvtx.Tx, op *wire.Hold) (*wire.MetaResponse, error) {
	if op.GetNumbers() > maxNumbers {
		return nil, kvtx.Fail(moraine.InvalidArgument, "hold", "", "%d numbers; %d at most", op.GetNumbers(), maxNumbers)
	}
	reply := &wire.HoldReply{Squash: t.Scope.Squash}
	if op.GetDirectory() != 0 {
		dir, err := takeHold(t, moraine.InodeID(op.GetDirectory()))
		if err != nil {
			return nil, err
		}
		reply.Directory, reply.Since = dir.Attr(), t.Count[record.CCommands]
	}
	if err := dropRanges(t, t.Session.Id, op.GetDone()); err != nil {
		return nil, err
	}
	if op.GetNumbers() > 0 {
		r, err := giveRange(t, op.GetNumbers())
		if err != nil {
			return nil, err
		}
		reply.First, reply.Count = uint64(r.First), r.Count
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Hold{Hold: reply}}, nil
}

// takeHold gives the session the exclusive lease on a directory and returns the directory.
func takeHold(t *kvtx.Tx, id moraine.InodeID) (*record.Inode, error) {
	if _, err := tree.Named(t, id); err != nil { // check this before the answer can reveal who has the lease
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
		return nil, tree.Immutable(t, dir) // nobody can create anything in it
	}
	h := record.Hold{Directory: id, Session: t.Session.Id, Since: t.Count[record.CCommands]}
	t.Events.Holds = append(t.Events.Holds, h)
	if had.Session != 0 { // a late end of the previous lease must not end this one
		t.Put(t.K.Hold(id), h.Encode())
		return dir, nil
	}
	have, err := t.KeysUnder(t.K.SessionHolds(t.Session.Id), maxSessionHolds)
	if err != nil {
		return nil, err
	}
	if len(have) == maxSessionHolds {
		return nil, kvtx.Fail(moraine.TooLarge, "hold", id.String(), "the session has %d directories: give one back", maxSessionHolds)
	}
	t.Insert(t.K.Hold(id), h.Encode())
	t.Insert(t.K.SessionHold(t.Session.Id, id), []byte{record.HoldVersion})
	t.Count[record.CHolds]++
	t.Touched = append(t.Touched, kvtx.Touch{Lease: id, Inode: id, Change: kvtx.Taken})
	return dir, nil
}

// EndHold ends the session's exclusive lease on a directory.
func EndHold(t *kvtx.Tx, op *wire.EndHold) (*wire.MetaResponse, error) {
	return kvtx.Done(), tree.DropHold(t, moraine.InodeID(op.GetDirectory()), t.Session.Id, op.GetSince())
}

// LapseHold ends the exclusive lease of a session whose leases have expired, as the leader
// requests.
func LapseHold(t *kvtx.Tx, op *statepb.LapseHold) (*wire.MetaResponse, error) {
	return kvtx.Done(), tree.DropHold(t, moraine.InodeID(op.GetDirectory()), moraine.SessionID(op.GetSession()), op.GetSince())
}

// endSessionHolds ends all exclusive leases of a session and deletes its number ranges. Both are
// few.
func endSessionHolds(t *kvtx.Tx, s moraine.SessionID) error {
	keys, err := t.KeysUnder(t.K.SessionHolds(s), maxSessionHolds)
	for _, key := range keys {
		if err == nil {
			err = tree.DropHold(t, moraine.InodeID(record.LastU64(key)), s, 0)
		}
	}
	if err != nil {
		return err
	}
	if keys, err = t.KeysUnder(t.K.Ranges(s), maxSessionRanges); err != nil {
		return err
	}
	for _, key := range keys {
		t.Del(key)
	}
	return nil
}

// giveRange issues inode numbers to the session. No other session ever gets them.
func giveRange(t *kvtx.Tx, count uint32) (*record.NumberRange, error) {
	have, err := t.KeysUnder(t.K.Ranges(t.Session.Id), maxSessionRanges)
	if err != nil {
		return nil, err
	}
	if len(have) == maxSessionRanges {
		return nil, kvtx.Fail(moraine.TooLarge, "hold", "", "the session has %d ranges of numbers: say which are done with", maxSessionRanges)
	}
	first, err := t.NextIDs(record.CInode, uint64(count))
	if err != nil {
		return nil, err
	}
	r := &record.NumberRange{First: moraine.InodeID(first), Count: count, Used: make([]byte, (count+7)/8)}
	t.Insert(t.K.Numbers(t.Session.Id, r.Last()), r.Encode())
	return r, nil
}

// dropRanges deletes number ranges of a session, given by their first numbers.
func dropRanges(t *kvtx.Tx, s moraine.SessionID, firsts []uint64) error {
	if len(firsts) == 0 {
		return nil
	}
	keys, err := t.KeysUnder(t.K.Ranges(s), maxSessionRanges)
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
