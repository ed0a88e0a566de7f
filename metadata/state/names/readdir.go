package names

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// ReadDir answers a page of a directory's entries, by name, and the first pages of others.
func ReadDir(v *kvtx.View, sc kvtx.Scope, op *wire.ReadDir) (*wire.MetaResponse, error) {
	if n := len(op.GetAlso()); n > wire.MaxAlso {
		return nil, kvtx.Fail(moraine.InvalidArgument, "read directory", "", "%d directories in one request, %d at most", n, wire.MaxAlso)
	}
	limit := tree.ListLimit(op.GetLimit())
	entries, more, err := readPage(v, sc, op.GetInode(), op.GetAfter(), limit)
	if err != nil {
		return nil, err
	}
	reply := &wire.ReadDirReply{Entries: entries, More: more}
	left := limit - len(entries)
	for _, inode := range op.GetAlso() {
		if left <= 0 {
			break
		}
		entries, more, err := readPage(v, sc, inode, "", left)
		switch kvtx.MoraineKind(err) {
		case moraine.NotFound, moraine.NotDirectory:
			continue
		}
		if err != nil {
			return nil, err
		}
		left -= len(entries)
		reply.Also = append(reply.Also, &wire.DirPage{Inode: inode, Entries: entries, More: more})
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_ReadDir{ReadDir: reply}}, nil
}

// readPage returns at most limit entries after a name, and whether there are others.
func readPage(v *kvtx.View, sc kvtx.Scope, inode uint64, after string, limit int) (page []*wire.DirEntry, more bool, err error) {
	dir, err := dirForRead(v, sc, moraine.InodeID(inode))
	if err != nil {
		return nil, false, err
	}
	names, entries, err := tree.ListDir(v, dir.Id, after, limit+1)
	if err != nil {
		return nil, false, err
	}
	if len(names) > limit {
		names, more = names[:limit], true
	}
	tree.SawAttr(v, dir) // every change of its entries changes its attributes too
	page = make([]*wire.DirEntry, len(names))
	for n, name := range names {
		i, err := tree.ReadInode(v, entries[n].Inode)
		if err != nil {
			return nil, false, err
		}
		tree.SawAttr(v, i)
		page[n] = &wire.DirEntry{Name: name, Attr: i.CachedAttr()}
	}
	return page, more, nil
}
