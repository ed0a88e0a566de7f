package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

func cachedReply(i *record.Inode) *wire.MetaResponse {
	return &wire.MetaResponse{Result: &wire.MetaResponse_Entry{Entry: &wire.EntryReply{Attr: i.CachedAttr()}}}
}

func entryReply(i *record.Inode) *wire.MetaResponse {
	return &wire.MetaResponse{Result: &wire.MetaResponse_Entry{Entry: &wire.EntryReply{Attr: i.Attr()}}}
}

// inode returns the inode id; NotFound where there is none.
func (v *view) inode(id moraine.InodeID) (*record.Inode, error) {
	b, ok, err := v.r.Get(v.k.inode(id))
	if err != nil {
		return nil, err
	}
	if !ok {
		if v.seen != nil {
			v.seen.Missing = append(v.seen.Missing, id)
		}
		return nil, noInode(id)
	}
	i := &record.Inode{Id: id}
	if err := i.Decode(b); err != nil {
		return nil, err
	}
	i.Leased, i.Home = i.Lease(), i.Parent
	return i, nil
}

// inode is view.inode for change: within one command every call with the same
// id returns the same record, so that no handler overwrites what another one
// of the command changed.
func (t *tx) inode(id moraine.InodeID) (*record.Inode, error) {
	if i := t.inodes[id]; i != nil {
		return i, nil
	}
	t.read = append(t.read, id)
	i, err := t.view.inode(id)
	if err != nil {
		if moraineKind(err) == moraine.NotFound {
			t.mindNumber(id)
		}
		return nil, err
	}
	t.remember(i)
	return i, nil
}

func (t *tx) remember(i *record.Inode) {
	if t.inodes == nil {
		t.inodes = make(map[moraine.InodeID]*record.Inode, 4)
	}
	t.inodes[i.Id] = i
}

// putInode writes a changed inode.
func (t *tx) putInode(i *record.Inode) {
	t.put(t.k.inode(i.Id), i.Encode())
	t.touch(i)
}

// delInode takes an inode's record away, with what hangs on it alone.
func (t *tx) delInode(i *record.Inode) error {
	if err := t.m.forgetMoves(t, i); err != nil {
		return err
	}
	if i.Object != 0 {
		if err := t.m.releaseNewest(t, i); err != nil {
			return err
		}
	}
	if i.Policy {
		t.del(t.k.policy(i.Id))
		t.count[record.CPolicies]--
	}
	if i.Typ == record.TypeDirectory {
		t.mindHold(i.Id)
		if t.session != nil {
			if err := t.dropHold(i.Id, t.session.Id, 0); err != nil {
				return err
			}
		}
		if err := t.dropQuota(i.Id); err != nil {
			return err
		}
		if err := t.dropHeight(i.Id); err != nil {
			return err
		}
	}
	if i.Xattrs {
		keys, err := t.keysUnder(t.k.xattrs(i.Id), MaxXattrs)
		if err != nil {
			return err
		}
		for _, key := range keys {
			t.del(key)
		}
	}
	t.del(t.k.inode(i.Id))
	delete(t.inodes, i.Id)
	t.count[record.CInodes]--
	t.touchAttr(i, Removed)
	return nil
}

// lookup finds an entry of a directory.
func (v *view) lookup(dir moraine.InodeID, name string) (record.Dentry, bool, error) {
	b, ok, err := v.r.Get(v.k.dentry(dir, name))
	if err != nil || !ok {
		return record.Dentry{}, false, err
	}
	e, err := record.DecodeDentry(b)
	return e, err == nil, err
}
