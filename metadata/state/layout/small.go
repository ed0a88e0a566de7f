package layout

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// smallExtents is how many extents a file has at most whose content is read ahead, and smallBytes how many
// bytes one answer has of such files.
const smallExtents, smallBytes = 8, 16 * moraine.MaxInline

// smallFiles returns the content of those files that the scope has, and of which the state has all bytes, as
// far as they fit into an answer.
func smallFiles(v *kvtx.View, sc kvtx.Scope, inodes []uint64) (files []*wire.SmallFile, err error) {
	left := int64(smallBytes)
	for _, inode := range inodes {
		f, size, err := smallFile(v, sc, moraine.InodeID(inode))
		if err != nil {
			return nil, err
		}
		if f == nil {
			continue
		}
		if left -= size; left < 0 {
			break
		}
		files = append(files, f)
	}
	return files, nil
}

// smallFile returns the content of one file; nil: it is none of those.
func smallFile(v *kvtx.View, sc kvtx.Scope, inode moraine.InodeID) (f *wire.SmallFile, size int64, err error) {
	i, err := tree.ReadInode(v, inode)
	if err == nil {
		err = tree.Within(v, sc, i)
	}
	switch kvtx.MoraineKind(err) {
	case moraine.NotFound, moraine.PermissionDenied:
		return nil, 0, nil
	}
	if err != nil || i.Typ != record.TypeFile || i.Size == 0 || i.Size > moraine.MaxInline {
		return nil, 0, err
	}
	exts, err := ExtentsOf(v, i, 0, smallExtents+1)
	if err != nil || len(exts) > smallExtents {
		return nil, 0, err
	}
	f = &wire.SmallFile{Inode: uint64(i.Id), Generation: uint64(i.Generation)}
	for _, e := range exts {
		if e.Inline == 0 {
			return nil, 0, nil
		}
		w := &wire.Extent{Offset: uint64(e.Offset), Length: uint64(e.Length), StripeOffset: uint64(e.StripeOffset), Inline: uint64(e.Inline)}
		if err := attachBytes(v, e, w); err != nil {
			return nil, 0, err
		}
		size += e.Length
		f.Extents = append(f.Extents, w)
	}
	return f, size, nil
}
