package content

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// RaiseAtimes records when files were read. It touches nothing and meets no delegation: nobody waits because
// another one has read a file, and caches show the old atime until they read the attributes again.
func RaiseAtimes(t *kvtx.Tx, op *wire.RaiseAtimes) (*wire.MetaResponse, error) {
	if len(op.GetReads()) > wire.MaxRaiseAtimes {
		return nil, kvtx.Fail(moraine.TooLarge, "raise atimes", "", "%d files, %d at most", len(op.GetReads()), wire.MaxRaiseAtimes)
	}
	for _, r := range op.GetReads() {
		i, err := readable(t, moraine.InodeID(r.GetInode()))
		if err != nil {
			return nil, err
		}
		read := min(r.GetAtime(), t.Now)
		if i == nil || !wire.AtimeIsOld(i.Atime, i.Mtime, i.Ctime, read) {
			continue
		}
		i.Atime = read
		t.Put(t.K.Inode(i.Id), i.Encode())
	}
	return kvtx.Done(), nil
}

// readable returns a file whose atime the caller may raise, or nil.
func readable(t *kvtx.Tx, id moraine.InodeID) (*record.Inode, error) {
	i, err := tree.Ancestor(&t.View, id)
	if err == nil {
		err = tree.Within(&t.View, t.Scope, i)
	}
	if kvtx.MoraineKind(err) == moraine.NotFound || err == nil && (i.Typ != record.TypeFile || i.Sealed) {
		return nil, nil
	}
	return i, err
}
