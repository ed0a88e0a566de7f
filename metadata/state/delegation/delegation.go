// Package delegation gives directories to single sessions. Such a session changes the directory by
// itself, and sends the changes in batches.
//
// The inode of the directory names the session. Every request that reads that inode for another
// session meets the delegation (tree.ReadInode): it has no effect, and no answer is kept. The leader
// recalls the delegation and does the request again. Met says which meetings count. A delegation
// counts while its session lives. The cleanup of an ended session removes what is left of it.
package delegation

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/metadata/state/usage"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// MaxDirs is the largest number of directories delegated to one session.
	MaxDirs = 4096
	// maxNumbers is the largest number of inode numbers in one reservation.
	maxNumbers = 65_536
	// maxRanges is how many reservations a session has, besides those that it has used up.
	maxRanges = 16
	// spareNumbers is how many numbers a session may reserve before it uses some. It may reserve twice as
	// many as it has used besides. A client has at most 4,096 changes in its queue, and reserves
	// others early.
	spareNumbers = 8192
	// endBudget is what DropSession may use for as many directories as one EndDelegation names.
	endBudget = 2 * wire.MaxEndDelegation
)

// Delegate gives a directory to the session, and reserves inode numbers for it. The answer says why
// the directory is not delegated, if it is not.
func Delegate(t *kvtx.Tx, op *wire.Delegate) (*wire.MetaResponse, error) {
	if op.GetNumbers() > maxNumbers {
		return nil, kvtx.Fail(moraine.InvalidArgument, "delegate", "", "the request reserves %d numbers, %d at most", op.GetNumbers(), maxNumbers)
	}
	r := &wire.DelegateReply{Now: t.Now}
	if t.Scope.Squash {
		r.Nobody = kvtx.Nobody
	}
	if op.GetInode() != 0 {
		if err := delegate(t, moraine.InodeID(op.GetInode()), r); err != nil {
			return nil, err
		}
	}
	if n := op.GetNumbers(); n > 0 {
		if err := reserve(t, uint64(n), r); err != nil {
			return nil, err
		}
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Delegate{Delegate: r}}, nil
}

// delegate gives the directory id to the session, or says in r why not.
func delegate(t *kvtx.Tx, id moraine.InodeID, r *wire.DelegateReply) error {
	dir, err := tree.Directory(t, id)
	if err != nil {
		return err
	}
	t.Forgo() // it takes nothing from the session that has the directory
	d, err := Of(&t.View, t.Session.Id)
	if err != nil {
		return err
	}
	if r.Why, err = whyNot(t, dir, d); err != nil || r.Why != "" {
		return err
	}
	if dir.Delegate != t.Session.Id {
		if err := give(t, dir, d); err != nil {
			return err
		}
	}
	tree.TouchAttr(t, dir, kvtx.Delegated)
	r.Delegated, r.Attr = true, dir.Attr()
	return nil
}

// whyNot returns why a directory cannot be delegated to the session; "" if it can.
func whyNot(t *kvtx.Tx, dir *record.Inode, d *record.Delegations) (string, error) {
	switch {
	case !t.Session.Leases:
		return "the session was opened without cache leases", nil
	case dir.Sealed || dir.Step != (record.StepID{}):
		return "the directory belongs to a checkpoint", nil
	case d.Dirs >= MaxDirs && dir.Delegate != t.Session.Id:
		return "the session has too many directories", nil
	}
	if run, err := tree.RunRecord(&t.View, moraine.RunID(dir.Id)); err != nil || run != nil {
		return "the directory is a training run", err
	}
	if dir.Delegate != 0 && dir.Delegate != t.Session.Id {
		if live, err := lives(&t.View, dir.Delegate); err != nil || live {
			return "the directory is delegated to another session", err
		}
	}
	if trash, err := tree.TrashOf(&t.View, dir); err != nil || trash != nil && trash.Top.Id == dir.Id {
		return "the directory has a trash", err // removals make entries in it
	}
	if _, inherits, err := t.Get(t.K.Xattr(dir.Id, moraine.DefaultACL)); err != nil || inherits {
		return "new entries inherit an access control list", err
	}
	if in, err := tree.Hidden(&t.View, dir); err != nil || in {
		return "the directory belongs to the service", err // removals of others make entries in a trash
	}
	if level, err := usage.Level(t, dir.Id); err != nil || level > kvtx.MaxDelegated {
		return "the directory is deep below the root", err // a late mkdir in it must not be too deep
	}
	limited, err := usage.Limited(&t.View, dir.Id)
	if err != nil || limited {
		return "a quota limits the directory", err
	}
	return "", nil
}

// give writes that the directory is delegated to the session. d is what the session has.
func give(t *kvtx.Tx, dir *record.Inode, d *record.Delegations) error {
	if err := Drop(t, dir); err != nil { // of a session that has ended
		return err
	}
	dir.Delegate = t.Session.Id
	d.Dirs++
	put(t, t.Session.Id, d)
	t.Put(t.K.SessionDir(dir.Delegate, dir.Id), []byte{record.DelegationsVersion})
	t.Put(t.K.Inode(dir.Id), dir.Encode())
	return nil
}

// reserve reserves at most n inode numbers for the session. It never takes back what it has
// reserved, since changes on their way may use it. Numbers that nobody uses are gone for good,
// so a session gets no more than it seems to need.
func reserve(t *kvtx.Tx, n uint64, r *wire.DelegateReply) error {
	d, err := Of(&t.View, t.Session.Id)
	if err != nil {
		return err
	}
	n = min(n, spareNumbers+2*d.Used-min(d.Reserved, spareNumbers+2*d.Used))
	if n == 0 || len(d.Numbers) >= maxRanges {
		return nil
	}
	first, err := t.NextIDs(record.CInode, n)
	if err != nil {
		return err
	}
	d.Reserve(moraine.InodeID(first), n)
	put(t, t.Session.Id, d)
	r.First, r.Count = uint64(first), uint32(n)
	return nil
}

// EndDelegation takes directories back from the session: those that it names, or all, some with each request.
func EndDelegation(t *kvtx.Tx, op *wire.EndDelegation) (*wire.MetaResponse, error) {
	if len(op.GetInodes()) > wire.MaxEndDelegation {
		return nil, kvtx.Fail(moraine.TooLarge, "end delegation", "", "%d directories, %d at most", len(op.GetInodes()), wire.MaxEndDelegation)
	}
	for _, id := range op.GetInodes() {
		if err := end(t, moraine.InodeID(id), t.Session.Id); err != nil {
			return nil, err
		}
	}
	r := &wire.EndDelegationReply{}
	if op.GetAll() {
		used, err := DropSession(t, t.Session.Id, endBudget)
		if err != nil {
			return nil, err
		}
		r.More = used >= endBudget
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_EndDelegation{EndDelegation: r}}, nil
}

// end takes the directory id from a session, if it has it.
func end(t *kvtx.Tx, id moraine.InodeID, session moraine.SessionID) error {
	if _, has, err := t.Get(t.K.SessionDir(session, id)); err != nil || !has {
		return err
	}
	dir, err := tree.Inode(t, id)
	if err != nil {
		return kvtx.Damaged(err)
	}
	tree.Touch(t, dir)
	return Drop(t, dir)
}

// Drop takes a directory from the session that has it, if there is one. The caller need not write
// dir.
func Drop(t *kvtx.Tx, dir *record.Inode) error {
	if dir.Delegate == 0 {
		return nil
	}
	d, err := Of(&t.View, dir.Delegate)
	if err != nil {
		return err
	}
	d.Dirs--
	put(t, dir.Delegate, d)
	t.Del(t.K.SessionDir(dir.Delegate, dir.Id))
	t.Events.Undelegated = append(t.Events.Undelegated, kvtx.Met{Dir: dir.Id, Session: dir.Delegate})
	dir.Delegate = 0
	t.Put(t.K.Inode(dir.Id), dir.Encode())
	return nil
}

// Of returns what a session has.
func Of(v *kvtx.View, session moraine.SessionID) (*record.Delegations, error) {
	d := &record.Delegations{}
	b, ok, err := v.R.Get(v.K.SessionNumbers(session))
	if err != nil || !ok {
		return d, err
	}
	return d, d.Decode(b)
}

// put writes what a session has.
func put(t *kvtx.Tx, session moraine.SessionID, d *record.Delegations) {
	key := t.K.SessionNumbers(session)
	if d.Dirs == 0 && d.Reserved == 0 {
		t.Del(key)
		return
	}
	t.Put(key, d.Encode())
}

// DropSession takes directories from a session, as many as budget allows, and its numbers.
func DropSession(t *kvtx.Tx, session moraine.SessionID, budget int) (int, error) {
	rows, err := t.KeysUnder(t.K.SessionDirs(session), (budget+1)/2)
	if err != nil {
		return 0, err
	}
	for _, row := range rows {
		if err := end(t, moraine.InodeID(record.LastU64(row)), session); err != nil {
			return 0, err
		}
	}
	used := 2 * len(rows)
	if used >= budget {
		return used, nil
	}
	key := t.K.SessionNumbers(session)
	_, has, err := t.Get(key)
	if err == nil && has {
		t.Del(key)
		used++
	}
	return used, err
}

// lives reports whether a session lives.
func lives(v *kvtx.View, session moraine.SessionID) (bool, error) {
	_, live, err := v.R.Get(v.K.Session(session))
	return live, err
}

// Has reports whether a directory is delegated to a session that lives.
func Has(v *kvtx.View, dir moraine.InodeID, session moraine.SessionID) (bool, error) {
	i, err := tree.Ancestor(v, dir)
	if kvtx.MoraineKind(err) == moraine.NotFound || err == nil && i.Delegate != session {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return lives(v, session)
}

// Met returns the delegations that a request met and must wait for: those of live sessions, on
// directories in its scope. A confined caller neither learns of another directory nor waits for it.
func Met(v *kvtx.View, sc kvtx.Scope) (met []kvtx.Met, err error) {
	if v.Meeting == nil || len(v.Meeting.Met) == 0 {
		return nil, nil
	}
	for _, m := range v.Meeting.Met {
		live, err := lives(v, m.Session)
		if err != nil {
			return nil, err
		}
		in := tree.All(v, sc)
		if live && !in {
			if in, err = tree.Below(v, sc.Root, m.Dir); kvtx.MoraineKind(err) == moraine.NotFound {
				in, err = false, nil
			}
		}
		if err != nil {
			return nil, err
		}
		if live && in {
			met = append(met, m)
		}
	}
	return met, nil
}
