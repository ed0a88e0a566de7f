package names

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// A file that loses its last name may be open in any session with Session.Opens. So it becomes an
// orphan: it lingers, under a number of its own, until the leader knows that each such session
// had time to keep it (EndLingers). After that it stays as long as a session keeps it.

// mayBeOpen reports whether a session may have a file open that loses its last name.
func mayBeOpen(t *kvtx.Tx, i *record.Inode) bool {
	return i.Typ == record.TypeFile && t.Count[record.COpeners] > 0
}

// orphan has a file that lost its last name linger. The caller writes it.
func orphan(t *kvtx.Tx, i *record.Inode) {
	i.From = i.Parent
	i.Detach()
	i.Nlink = 0
	i.Changed(t.Now)
	i.Linger = t.Next(record.CLinger)
	t.Insert(t.K.Linger(i.Linger), record.EncodeLinger(i.Id))
}

// Hold makes the session keep a file that lost its last name. The file stays until the session
// releases it or ends.
func Hold(t *kvtx.Tx, i *record.Inode) {
	if mayBeOpen(t, i) { // in other sessions too
		orphan(t, i)
		keep(t, i)
		return
	}
	i.Detach()
	i.Nlink, i.Owner = 0, t.Session.Id
	i.Changed(t.Now)
	t.Put(t.K.SessionInode(i.Owner, i.Id), []byte{record.SessionVersion})
	tree.PutInode(t, i)
}

// keep has the session keep an orphan that it does not keep yet.
func keep(t *kvtx.Tx, i *record.Inode) {
	i.KeptBy++
	t.Put(t.K.SessionInode(t.Session.Id, i.Id), []byte{record.SessionVersion})
	tree.PutInode(t, i)
}

// unkeep ends the keeping of an orphan by a session, which keeps it.
func unkeep(t *kvtx.Tx, i *record.Inode, s moraine.SessionID) error {
	t.Del(t.K.SessionInode(s, i.Id))
	i.KeptBy--
	return dropUnkept(t, i)
}

// dropUnkept writes an orphan, or removes it if nobody can keep it any more.
func dropUnkept(t *kvtx.Tx, i *record.Inode) error {
	if !i.Orphan() {
		return DropFile(t, i)
	}
	tree.PutInode(t, i)
	return nil
}

// MayChange fails if only other sessions have the file without a name open.
func MayChange(t *kvtx.Tx, op string, i *record.Inode) error {
	ours := i.Owner == 0 || i.Owner == t.Scope.Session
	if i.Orphan() && i.Linger == 0 {
		var err error
		if ours, err = tree.Keeps(&t.View, t.Scope.Session, i.Id); err != nil {
			return err
		}
	}
	if !ours {
		return kvtx.Fail(moraine.PermissionDenied, op, i.Id.String(), "another session has the unnamed file open")
	}
	return nil
}

// ReadOrphans returns the files of a request that are orphans which the session may keep, and does
// not.
func ReadOrphans(v *kvtx.View, sc kvtx.Scope, op *wire.FindOrphans) (*wire.MetaResponse, error) {
	if len(op.GetInodes()) > wire.MaxFindOrphans {
		return nil, kvtx.Fail(moraine.TooLarge, "find orphans", "", "%d files, %d at most", len(op.GetInodes()), wire.MaxFindOrphans)
	}
	reply := &wire.OrphansReply{}
	for _, id := range op.GetInodes() {
		i, err := orphanIn(v, sc, moraine.InodeID(id))
		if err != nil {
			return nil, err
		}
		if i == nil {
			continue
		}
		kept, err := tree.Keeps(v, sc.Session, i.Id)
		if err != nil {
			return nil, err
		}
		if !kept {
			reply.Inodes = append(reply.Inodes, id)
		}
	}
	return orphansReply(reply), nil
}

func orphansReply(r *wire.OrphansReply) *wire.MetaResponse {
	return &wire.MetaResponse{Result: &wire.MetaResponse_Orphans{Orphans: r}}
}

// orphanIn returns an orphan in the scope, or nil.
func orphanIn(v *kvtx.View, sc kvtx.Scope, id moraine.InodeID) (*record.Inode, error) {
	i, err := tree.ReadNamed(v, sc, id)
	if kvtx.MoraineKind(err) == moraine.NotFound || err == nil && !i.Orphan() {
		return nil, nil
	}
	return i, err
}

// Keep has the session keep orphans. It skips other files, and answers with those that the session
// keeps now.
func Keep(t *kvtx.Tx, op *wire.Keep) (*wire.MetaResponse, error) {
	if len(op.GetInodes()) > wire.MaxKeep {
		return nil, kvtx.Fail(moraine.TooLarge, "keep", "", "%d files, %d at most", len(op.GetInodes()), wire.MaxKeep)
	}
	reply := &wire.OrphansReply{}
	for _, id := range op.GetInodes() {
		i, err := tree.Named(t, moraine.InodeID(id))
		if kvtx.MoraineKind(err) == moraine.NotFound || err == nil && !i.Orphan() {
			continue
		}
		if err != nil {
			return nil, err
		}
		kept, err := tree.Keeps(&t.View, t.Session.Id, i.Id)
		if err != nil {
			return nil, err
		}
		if !kept {
			keep(t, i)
		}
		reply.Inodes = append(reply.Inodes, id)
	}
	return orphansReply(reply), nil
}

// Release removes files without a name that the session has open, or no longer keeps them. It skips
// files that the session does not have open.
func Release(t *kvtx.Tx, op *wire.Release) (*wire.MetaResponse, error) {
	if len(op.GetInodes()) > wire.MaxKeep {
		return nil, kvtx.Fail(moraine.TooLarge, "release", "", "%d files, %d at most", len(op.GetInodes()), wire.MaxKeep)
	}
	for _, id := range op.GetInodes() {
		i, err := tree.Inode(t, moraine.InodeID(id))
		if kvtx.MoraineKind(err) == moraine.NotFound {
			continue
		}
		if err != nil {
			return nil, err
		}
		if err := release(t, i, t.Session.Id); err != nil {
			return nil, err
		}
	}
	return kvtx.Done(), nil
}

// release ends what a session has of a file without a name, if anything.
func release(t *kvtx.Tx, i *record.Inode, s moraine.SessionID) error {
	if i.Owner == s {
		return DropFile(t, i)
	}
	if kept, err := tree.Keeps(&t.View, s, i.Id); err != nil || !kept {
		return err
	}
	return unkeep(t, i, s)
}

// DropSessionInodes releases the files without a name of an ended session.
func DropSessionInodes(t *kvtx.Tx, id moraine.SessionID, budget int) (int, error) {
	keys, err := t.KeysUnder(t.K.SessionInodes(id), (budget+7)/8)
	if err != nil {
		return 0, err
	}
	before := len(t.Order)
	for n, key := range keys {
		if len(t.Order)-before >= budget {
			return budget, nil
		}
		i, err := tree.Inode(t, moraine.InodeID(record.LastU64(key)))
		if err != nil {
			return n, kvtx.Damaged(err)
		}
		if err := release(t, i, id); err != nil {
			return n, err
		}
	}
	if len(keys) == (budget+7)/8 {
		return budget, nil // there may be more
	}
	return len(t.Order) - before, nil
}

// lingerBudget is the number of records that one EndLingers writes, approximately.
const lingerBudget = 512

// EndLingers ends the lingering of the oldest orphans, up to a number.
func EndLingers(t *kvtx.Tx, op *statepb.EndLingers) (*wire.MetaResponse, error) {
	keys, err := t.KeysUnder(t.K.Table(record.TabLinger), lingerBudget/4)
	if err != nil {
		return nil, err
	}
	for _, key := range keys {
		if record.LastU64(key) > op.GetUpto() || len(t.Order) >= lingerBudget {
			break
		}
		if err := endLinger(t, key); err != nil {
			return nil, err
		}
	}
	return kvtx.Done(), nil
}

// endLinger ends the lingering of the orphan whose row has the key.
func endLinger(t *kvtx.Tx, key []byte) error {
	value, ok, err := t.Get(key)
	if err != nil || !ok {
		return err
	}
	id, err := record.DecodeLinger(value)
	if err != nil {
		return err
	}
	i, err := tree.Inode(t, id)
	if err != nil {
		return kvtx.Damaged(err)
	}
	t.Del(key)
	i.Linger = 0
	return dropUnkept(t, i)
}

// Lingers returns the number of the oldest orphan that lingers, 0 if none does, and the last number
// that was issued.
func Lingers(v *kvtx.View) (oldest, last uint64, err error) {
	n, err := v.Counters()
	if err != nil {
		return 0, 0, err
	}
	keys, err := v.KeysUnder(v.K.Table(record.TabLinger), 1)
	if err == nil && len(keys) > 0 {
		oldest = record.LastU64(keys[0])
	}
	return oldest, n[record.CLinger], err
}
