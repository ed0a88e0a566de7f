package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// MaxFileSize is moraine.MaxFileSize.
const MaxFileSize = moraine.MaxFileSize

// setAttr changes attributes; a size truncates the file or extends it by a
// hole, and raises the generation.
func (m *Machine) setAttr(t *tx, op *wire.SetAttr) (*wire.MetaResponse, error) {
	i, err := t.named(moraine.InodeID(op.GetInode()))
	if err != nil {
		return nil, err
	}
	if err := t.mayChange("set attributes", i); err != nil {
		return nil, err
	}
	has := func(f wire.SetAttrField) bool { return op.GetValid()&uint32(f) != 0 }
	if has(wire.SetAttrField_SET_ATTR_SIZE) {
		if err := m.setSize(t, i, op.GetSize()); err != nil {
			return nil, err
		}
	}
	if has(wire.SetAttrField_SET_ATTR_MODE) {
		i.Mode = op.GetMode() & 0o7777
	}
	if has(wire.SetAttrField_SET_ATTR_UID) {
		i.Uid = t.scope.squashed(op.GetUid())
	}
	if has(wire.SetAttrField_SET_ATTR_GID) {
		i.Gid = t.scope.squashed(op.GetGid())
	}
	if has(wire.SetAttrField_SET_ATTR_ATIME) {
		i.Atime = op.GetAtime()
	}
	if has(wire.SetAttrField_SET_ATTR_MTIME) {
		i.Mtime = op.GetMtime()
	}
	i.Ctime = t.now
	t.putInode(i)
	if has(wire.SetAttrField_SET_ATTR_SIZE) {
		if err := m.flushOnCommit(t, i); err != nil {
			return nil, err
		}
	}
	return entryReply(i), nil
}

// setSize truncates or extends a file. The caller writes the inode.
func (m *Machine) setSize(t *tx, i *record.Inode, size uint64) error {
	switch {
	case i.Typ == record.TypeDirectory:
		return fail(moraine.IsDirectory, "truncate", i.Id.String(), "")
	case i.Typ != record.TypeFile:
		return fail(moraine.InvalidArgument, "truncate", i.Id.String(), "not a regular file")
	case size > MaxFileSize:
		return fail(moraine.TooLarge, "truncate", i.Id.String(), "%d bytes, %d at most", size, uint64(MaxFileSize))
	}
	if int64(size) < i.Size {
		if err := m.truncate(t, i, int64(size)); err != nil {
			return err
		}
	}
	i.Size = int64(size)
	i.Mtime = t.now
	if i.Stored == 0 {
		i.Degraded = 0
	}
	return t.raiseGeneration(i)
}

// raiseGeneration gives the inode's content its next version.
func (t *tx) raiseGeneration(i *record.Inode) error {
	c, err := t.identity()
	if err != nil {
		return err
	}
	i.Generation = moraine.Generation(uint64(c.Incarnation)<<56 | (uint64(i.Generation)+1)&(1<<56-1))
	i.Level, err = t.levelBeside(i) // no object holds this one yet
	return err
}
