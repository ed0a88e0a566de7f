package names

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/layout"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// SetAttr changes attributes. A size truncates the file or extends it by a hole, and raises the
// generation.
func SetAttr(t *kvtx.Tx, op *wire.SetAttr) (*wire.MetaResponse, error) {
	i, err := tree.Named(t, moraine.InodeID(op.GetInode()))
	if err != nil {
		return nil, err
	}
	if err := MayChange(t, "set attributes", i); err != nil {
		return nil, err
	}
	has := func(f wire.SetAttrField) bool { return op.GetValid()&uint32(f) != 0 }
	if has(wire.SetAttrField_SET_ATTR_SIZE) {
		if err := setSize(t, i, op.GetSize()); err != nil {
			return nil, err
		}
	}
	if has(wire.SetAttrField_SET_ATTR_MODE) {
		if err := changeMode(t, i, op.GetMode()&0o7777); err != nil {
			return nil, err
		}
	}
	if has(wire.SetAttrField_SET_ATTR_UID) {
		i.Uid = squashed(t.Scope, op.GetUid())
	}
	if has(wire.SetAttrField_SET_ATTR_GID) {
		i.Gid = squashed(t.Scope, op.GetGid())
	}
	if has(wire.SetAttrField_SET_ATTR_ATIME) {
		i.Atime = op.GetAtime()
	}
	if has(wire.SetAttrField_SET_ATTR_MTIME) {
		i.Mtime = op.GetMtime()
	}
	i.Changed(t.Now)
	tree.PutInode(t, i)
	if has(wire.SetAttrField_SET_ATTR_SIZE) {
		if err := FlushOnCommit(t, i); err != nil {
			return nil, err
		}
	}
	return tree.EntryReply(i), nil
}

// setSize truncates or extends a file. The caller writes the inode.
func setSize(t *kvtx.Tx, i *record.Inode, size uint64) error {
	switch {
	case i.Typ == record.TypeDirectory:
		return kvtx.Fail(moraine.IsDirectory, "truncate", i.Id.String(), "")
	case i.Typ != record.TypeFile:
		return kvtx.Fail(moraine.InvalidArgument, "truncate", i.Id.String(), "not a regular file")
	case size > tree.MaxFileSize:
		return kvtx.Fail(moraine.TooLarge, "truncate", i.Id.String(), "the new size of %d bytes is above the limit of %d bytes", size, uint64(tree.MaxFileSize))
	}
	if int64(size) < i.Size {
		if err := layout.Truncate(t, i, int64(size)); err != nil {
			return err
		}
	}
	i.Size = int64(size)
	i.Mtime = t.Now
	if i.Stored == 0 {
		i.Degraded = 0
	}
	return RaiseGeneration(t, i)
}

// RaiseGeneration increments the generation of the inode's content.
func RaiseGeneration(t *kvtx.Tx, i *record.Inode) error {
	c, err := t.Identity()
	if err != nil {
		return err
	}
	i.Generation = moraine.Generation(uint64(c.Incarnation)<<56 | (uint64(i.Generation)+1)&(1<<56-1))
	i.Level, err = layout.LevelBeside(&t.View, i) // no object has this generation yet
	return err
}
