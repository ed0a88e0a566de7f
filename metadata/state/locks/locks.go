// Package locks has the advisory locks of files: flock, and those of fcntl. All locks of an inode
// are one row. Another row for each session and inode finds what a session must give back.
//
// One path through it: SetLock checks the inode's row for a lock of another owner that excludes the
// new one, and answers with it; otherwise it writes the new row. A lock counts only while its
// session lives: from the command on that ends the session, everybody ignores its locks.
// DropSession and DropInode remove the rows.
package locks

import (
	"encoding/binary"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/locktable"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// MaxLocks is the largest number of locks on one inode.
	MaxLocks = 1024
	// MaxSessionInodes is the largest number of inodes on which one session has locks.
	MaxSessionInodes = 4096
)

// SetLock gives the session's owner a lock, or takes its locks in a range away.
func SetLock(t *kvtx.Tx, op *wire.SetLock) (*wire.MetaResponse, error) {
	id := moraine.InodeID(op.GetInode())
	want, err := Requested(op.GetLock(), t.Session.Id)
	if err != nil {
		return nil, err
	}
	old, err := All(&t.View, id)
	if err != nil {
		return nil, err
	}
	if op.GetUnlock() {
		return reply(nil), store(t, id, old, old.Clear(want.Owner, want.Start, want.End))
	}
	if _, err := tree.Named(t, id); err != nil {
		return nil, err
	}
	have, err := NewSessions(&t.View).live(old, want)
	if err != nil {
		return nil, err
	}
	if by, ok := have.Conflict(want); ok {
		return reply(&by), nil
	}
	if !have.HasSession(want.Session) {
		rows, err := t.KeysUnder(t.K.SessionLocks(t.Session.Id), MaxSessionInodes)
		if err != nil {
			return nil, err
		}
		if len(rows) == MaxSessionInodes {
			return nil, kvtx.Fail(moraine.QuotaExceeded, "lock", id.String(), "the session has locks on %d files, which is the limit: unlock or close some", MaxSessionInodes)
		}
	}
	now := have.Set(want)
	if len(now) > MaxLocks {
		if have, err = NewSessions(&t.View).living(have); err != nil {
			return nil, err
		}
		now = have.Set(want)
	}
	return reply(nil), store(t, id, old, now)
}

// Requested returns the lock of a request of the session.
func Requested(w *wire.FileLock, s moraine.SessionID) (locktable.Lock, error) {
	l := locktable.Lock{Owner: locktable.Owner{Session: uint64(s), Flock: w.GetFlock(), ID: w.GetOwner()},
		Start: w.GetStart(), End: w.GetEnd(), Write: w.GetWrite(), PID: w.GetPid()}
	if !l.Valid() {
		return l, kvtx.Fail(moraine.InvalidArgument, "lock", "", "the range from %d to %d is empty, or ends after 2^63", l.Start, l.End)
	}
	return l, nil
}

// ReadLock answers a lock that excludes another one.
func ReadLock(v *kvtx.View, sc kvtx.Scope, op *wire.GetLock) (*wire.MetaResponse, error) {
	id := moraine.InodeID(op.GetInode())
	want, err := Requested(op.GetLock(), moraine.SessionID(op.GetLock().GetSession()))
	if err != nil {
		return nil, err
	}
	if _, err := tree.ReadNamed(v, sc, id); err != nil {
		return nil, err
	}
	have, err := Of(v, id, want)
	if err != nil {
		return nil, err
	}
	if by, ok := have.Conflict(want); ok {
		return reply(&by), nil
	}
	return reply(nil), nil
}

// Of returns the locks of an inode. Those of ended sessions may be among them, unless they exclude
// want.
func Of(v *kvtx.View, id moraine.InodeID, want locktable.Lock) (locktable.Table, error) {
	have, err := All(v, id)
	if err != nil {
		return nil, err
	}
	return NewSessions(v).live(have, want)
}

// All returns the locks of an inode, with those of ended sessions.
func All(v *kvtx.View, id moraine.InodeID) (locktable.Table, error) {
	b, ok, err := v.R.Get(v.K.Locks(id))
	if err != nil || !ok {
		return nil, err
	}
	return record.DecodeLocks(b)
}

// store replaces the locks of an inode, and the rows of the sessions that now have some, or none.
func store(t *kvtx.Tx, id moraine.InodeID, old, now locktable.Table) error {
	if slices.Equal(old, now) {
		return nil
	}
	if len(now) > MaxLocks && len(now) > len(old) {
		return kvtx.Fail(moraine.QuotaExceeded, "lock", id.String(), "the file would have %d locks, %d at most: unlock some, or lock larger ranges", len(now), MaxLocks)
	}
	switch {
	case len(now) == 0:
		t.Del(t.K.Locks(id))
		t.Count[record.CLocked]--
	case len(old) == 0:
		t.Count[record.CLocked]++
	}
	if len(now) > 0 {
		t.Put(t.K.Locks(id), record.EncodeLocks(now))
	}
	eachSession(old, func(s uint64) {
		if !now.HasSession(s) {
			t.Del(t.K.SessionLock(moraine.SessionID(s), id))
		}
	})
	eachSession(now, func(s uint64) {
		if !old.HasSession(s) {
			t.Put(t.K.SessionLock(moraine.SessionID(s), id), []byte{record.LocksVersion})
		}
	})
	t.Events.LocksChanged = append(t.Events.LocksChanged, id)
	return nil
}

// eachSession calls fn once with each session in a table, which is in their order.
func eachSession(table locktable.Table, fn func(session uint64)) {
	for i, l := range table {
		if i == 0 || table[i-1].Session != l.Session {
			fn(l.Session)
		}
	}
}

// DropInode removes the locks of an inode that is deleted.
func DropInode(t *kvtx.Tx, id moraine.InodeID) error {
	if t.Count[record.CLocked] == 0 {
		return nil
	}
	old, err := All(&t.View, id)
	if err != nil {
		return err
	}
	return store(t, id, old, nil)
}

// DropSession removes the locks of an ended session, from as many inodes as budget allows.
func DropSession(t *kvtx.Tx, s moraine.SessionID, budget int) (int, error) {
	rows, err := t.KeysUnder(t.K.SessionLocks(s), (budget+1)/2)
	if err != nil {
		return 0, err
	}
	for _, row := range rows {
		id := InodeOfRow(row)
		old, err := All(&t.View, id)
		if err != nil {
			return 0, err
		}
		if err := store(t, id, old, old.Drop(uint64(s))); err != nil {
			return 0, err
		}
	}
	return 2 * len(rows), nil
}

// InodeOfRow returns the inode in a key of TabSessLock.
func InodeOfRow(key []byte) moraine.InodeID {
	return moraine.InodeID(binary.BigEndian.Uint64(key[len(key)-8:]))
}

// reply answers with the lock that prevents the requested one; nil if none does.
func reply(by *locktable.Lock) *wire.MetaResponse {
	r := &wire.LockReply{}
	if by != nil {
		r.Conflict = &wire.FileLock{Session: by.Session, Owner: by.ID, Flock: by.Flock, Write: by.Write, Start: by.Start, End: by.End, Pid: by.PID}
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Lock{Lock: r}}
}
