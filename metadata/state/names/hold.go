package names

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// takeNumber marks an inode number of the session as used. It fails with Stale if the number is not
// the session's, or was used before.
func takeNumber(t *kvtx.Tx, id moraine.InodeID) error {
	var r *record.NumberRange
	err := t.Each(t.K.Numbers(t.Session.Id, id), kvtx.PrefixEnd(t.K.Ranges(t.Session.Id)), func(_, value []byte) (_ bool, err error) {
		r, err = record.DecodeRange(value)
		return false, err
	})
	if err != nil {
		return err
	}
	if r == nil || id < r.First || id > r.Last() {
		return kvtx.Fail(moraine.Stale, "create", id.String(), "the number is not one of the session's")
	}
	n := id - r.First
	if r.Used[n/8]&(1<<(n%8)) != 0 {
		return kvtx.Fail(moraine.Stale, "create", id.String(), "a file of that number was made before")
	}
	r.Used[n/8] |= 1 << (n % 8)
	t.Put(t.K.Numbers(t.Session.Id, r.Last()), r.Encode())
	return nil
}

// existingAs answers a create under a given number whose name is taken. If the same file has the
// name, the first answer was lost, and the retry gets it again.
func existingAs(t *kvtx.Tx, op *wire.Create, e record.Dentry) (*wire.MetaResponse, error) {
	if uint64(e.Inode) != op.GetInode() {
		return nil, kvtx.Fail(moraine.Exists, "create", op.GetName(), "")
	}
	i, err := tree.Inode(t, e.Inode)
	if err != nil {
		return nil, err
	}
	return tree.EntryReply(i), nil
}
