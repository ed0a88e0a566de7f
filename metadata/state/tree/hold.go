package tree

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
)

// Holder returns the exclusive lease on a directory; its session is 0 if there is none.
func Holder(v *kvtx.View, dir moraine.InodeID) (record.Hold, error) {
	b, ok, err := v.R.Get(v.K.Hold(dir))
	if err != nil || !ok {
		return record.Hold{}, err
	}
	return record.DecodeHold(dir, b)
}

// MindHold makes the command fail if another session has the exclusive lease on the directory.
func MindHold(t *kvtx.Tx, dir moraine.InodeID) {
	if t.Count[record.CHolds] == 0 || t.Met.Directory != 0 || t.HoldErr != nil {
		return
	}
	h, err := Holder(&t.View, dir)
	switch {
	case err != nil:
		t.HoldErr = err
	case h.Session != 0 && (t.Session == nil || t.Session.Id != h.Session):
		t.Met = h
	}
}

// mindNumber is MindHold for an inode that does not exist. It ignores an exclusive lease outside
// the caller's scope, since the caller could not see the holder's file in any case.
func mindNumber(t *kvtx.Tx, id moraine.InodeID) {
	if t.Count[record.CHolds] == 0 || t.Met.Directory != 0 || t.HoldErr != nil {
		return
	}
	var own moraine.SessionID
	if t.Session != nil {
		own = t.Session.Id
	}
	h, err := NumberHold(&t.View, id, own)
	in := true
	if err == nil && h.Directory != 0 && t.Scope.Root != 0 { // a command of the leader itself has no scope
		in, err = MayName(&t.View, t.Scope, h.Directory)
	}
	if t.HoldErr = err; in {
		t.Met = h
	}
}

// NumberHold returns another session's exclusive lease if that session received
// the number of a missing inode and has not used it. It may have created the
// file already. Such ranges and lookups of missing inodes are few.
func NumberHold(v *kvtx.View, id moraine.InodeID, own moraine.SessionID) (record.Hold, error) {
	var owner moraine.SessionID
	err := v.EachIn(v.K.Table(record.TabRange), func(key, value []byte) (bool, error) {
		r, err := record.DecodeRange(value)
		if err != nil {
			return false, err
		}
		if id >= r.First && id <= r.Last() && r.Used[(id-r.First)/8]&(1<<((id-r.First)%8)) == 0 {
			owner = moraine.SessionID(record.LastU64(key[:11]))
		}
		return owner == 0, nil
	})
	if err != nil || owner == 0 || owner == own {
		return record.Hold{}, err
	}
	dirs, err := v.KeysUnder(v.K.SessionHolds(owner), 1)
	if err != nil || len(dirs) == 0 {
		return record.Hold{}, err
	}
	return Holder(v, moraine.InodeID(record.LastU64(dirs[0])))
}

// DropHold ends a session's exclusive lease if it exists; since 0 matches any.
func DropHold(t *kvtx.Tx, dir moraine.InodeID, s moraine.SessionID, since uint64) error {
	if t.Count[record.CHolds] == 0 {
		return nil
	}
	have, err := Holder(&t.View, dir)
	if err != nil || have.Session != s || s == 0 || (since != 0 && since != have.Since) {
		return err
	}
	t.Del(t.K.Hold(dir))
	t.Del(t.K.SessionHold(s, dir))
	t.Count[record.CHolds]--
	t.Events.Holds = append(t.Events.Holds, record.Hold{Directory: dir})
	return nil
}
