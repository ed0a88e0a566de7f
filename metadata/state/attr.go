package state

import (
	"github.com/morainefs/moraine"
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
		i.mode = op.GetMode() & 0o7777
	}
	if has(wire.SetAttrField_SET_ATTR_UID) {
		i.uid = t.scope.squashed(op.GetUid())
	}
	if has(wire.SetAttrField_SET_ATTR_GID) {
		i.gid = t.scope.squashed(op.GetGid())
	}
	if has(wire.SetAttrField_SET_ATTR_ATIME) {
		i.atime = op.GetAtime()
	}
	if has(wire.SetAttrField_SET_ATTR_MTIME) {
		i.mtime = op.GetMtime()
	}
	i.ctime = t.now
	t.putInode(i)
	if has(wire.SetAttrField_SET_ATTR_SIZE) {
		if err := m.flushOnCommit(t, i); err != nil {
			return nil, err
		}
	}
	return entryReply(i), nil
}

// setSize truncates or extends a file. The caller writes the inode.
func (m *Machine) setSize(t *tx, i *inode, size uint64) error {
	switch {
	case i.typ == typeDirectory:
		return fail(moraine.IsDirectory, "truncate", i.id.String(), "")
	case i.typ != typeFile:
		return fail(moraine.InvalidArgument, "truncate", i.id.String(), "not a regular file")
	case size > MaxFileSize:
		return fail(moraine.TooLarge, "truncate", i.id.String(), "%d bytes, %d at most", size, uint64(MaxFileSize))
	}
	if int64(size) < i.size {
		if err := m.truncate(t, i, int64(size)); err != nil {
			return err
		}
	}
	i.size = int64(size)
	i.mtime = t.now
	if i.stored == 0 {
		i.degraded = 0
	}
	return t.raiseGeneration(i)
}

// raiseGeneration gives the inode's content its next version.
func (t *tx) raiseGeneration(i *inode) error {
	c, err := t.identity()
	if err != nil {
		return err
	}
	i.generation = moraine.Generation(uint64(c.incarnation)<<56 | (uint64(i.generation)+1)&(1<<56-1))
	i.level, err = t.levelBeside(i) // no object holds this one yet
	return err
}
