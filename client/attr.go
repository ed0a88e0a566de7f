package client

import (
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// Attr is the attributes of an inode at one moment. It is one pointer,
// so programs pass it by value. It does not change, and its methods may be called concurrently.
// The zero value describes nothing, and its Inode is 0.
type Attr struct{ w *wire.Attr }

// FileType is the type of an inode.
type FileType uint8

// The types of inodes. TypeUnknown is that of an inode that no longer exists.
const (
	TypeUnknown FileType = iota
	TypeRegular
	TypeDirectory
	TypeSymlink
	TypeFifo
	TypeSocket
	TypeCharDevice
	TypeBlockDevice
)

// fileTypes are the types by their wire form.
var fileTypes = [...]FileType{
	wire.FileType_FILE_TYPE_REGULAR: TypeRegular, wire.FileType_FILE_TYPE_DIRECTORY: TypeDirectory,
	wire.FileType_FILE_TYPE_SYMLINK: TypeSymlink, wire.FileType_FILE_TYPE_FIFO: TypeFifo, wire.FileType_FILE_TYPE_SOCKET: TypeSocket,
	wire.FileType_FILE_TYPE_CHAR_DEVICE: TypeCharDevice, wire.FileType_FILE_TYPE_BLOCK_DEVICE: TypeBlockDevice,
}

// fileTypeOf converts a type from its wire form.
func fileTypeOf(t wire.FileType) FileType {
	if t > 0 && int(t) < len(fileTypes) {
		return fileTypes[t]
	}
	return TypeUnknown
}

// Inode returns the number of the inode.
func (a Attr) Inode() moraine.InodeID { return moraine.InodeID(a.w.GetInode()) }

// Type returns the type of the inode.
func (a Attr) Type() FileType { return fileTypeOf(a.w.GetType()) }

// IsDir reports whether it is a directory.
func (a Attr) IsDir() bool { return a.w.GetType() == wire.FileType_FILE_TYPE_DIRECTORY }

// IsRegular reports whether it is a regular file.
func (a Attr) IsRegular() bool { return a.w.GetType() == wire.FileType_FILE_TYPE_REGULAR }

// IsSymlink reports whether it is a symbolic link.
func (a Attr) IsSymlink() bool { return a.w.GetType() == wire.FileType_FILE_TYPE_SYMLINK }

// IsSpecial reports whether it is a fifo, a socket or a device node. It has no content here.
func (a Attr) IsSpecial() bool { return a.Type() >= TypeFifo }

// Rdev returns the device that a device node names, as in stat on Linux.
func (a Attr) Rdev() uint32 { return a.w.GetRdev() }

// Mode returns the permission bits as in POSIX: 07777 at most.
func (a Attr) Mode() uint32 { return a.w.GetMode() }

// UID returns the number of the owner.
func (a Attr) UID() uint32 { return a.w.GetUid() }

// GID returns the number of the group.
func (a Attr) GID() uint32 { return a.w.GetGid() }

// Nlink returns how many names the inode has.
func (a Attr) Nlink() uint32 { return a.w.GetNlink() }

// Parent returns the directory of the inode's first name. It is 0 for a file without a name, and
// for the root.
func (a Attr) Parent() moraine.InodeID { return moraine.InodeID(a.w.GetParent()) }

// Target returns the path that a symbolic link names.
func (a Attr) Target() string { return a.w.GetTarget() }

// Size returns the length of a file in bytes.
func (a Attr) Size() int64 { return int64(a.w.GetSize()) }

// Stored returns how many bytes of the file the cluster stores: its length without holes.
func (a Attr) Stored() int64 { return int64(a.w.GetStored()) }

// Generation returns the version of the file's content.
func (a Attr) Generation() moraine.Generation { return moraine.Generation(a.w.GetGeneration()) }

// AccessTime returns when the file was last read, as far as programs have set it.
func (a Attr) AccessTime() time.Time { return time.Unix(0, a.w.GetAtime()) }

// ModTime returns when the content last changed.
func (a Attr) ModTime() time.Time { return time.Unix(0, a.w.GetMtime()) }

// ChangeTime returns when the content or the attributes last changed.
func (a Attr) ChangeTime() time.Time { return time.Unix(0, a.w.GetCtime()) }

// Level returns the level that all bytes of the content have reached.
func (a Attr) Level() moraine.Level { return moraine.Level(a.w.GetLevel()) }

// IsLost reports whether a file has lost bytes that were only in memory: it has content, and
// that is at no level.
func (a Attr) IsLost() bool { return isLost(a.w) }

func isLost(a *wire.Attr) bool {
	return a.GetType() == wire.FileType_FILE_TYPE_REGULAR && a.GetStored() > 0 && a.GetLevel() == 0
}

// Degraded counts the stripes of the content that were below full protection at the last commit.
func (a Attr) Degraded() uint64 { return a.w.GetDegraded() }

// Clean reports whether an object has the whole content.
func (a Attr) Clean() bool { return a.w.GetClean() }

// Inline returns how many bytes of the content are in the metadata.
func (a Attr) Inline() int64 { return int64(a.w.GetInline()) }

// Evicted reports whether some of the content is only in an object.
func (a Attr) Evicted() bool { return a.w.GetEvicted() }

// Object returns the newest object made of the file, 0 for none. It has the content of the current
// generation if the file is Clean.
func (a Attr) Object() moraine.ObjectID { return moraine.ObjectID(a.w.GetObject()) }

// Sealed reports whether the inode belongs to a checkpoint, and cannot be changed.
func (a Attr) Sealed() bool { return a.w.GetSealed() }

// String returns all attributes as text, for logs.
func (a Attr) String() string { return a.w.String() }

// DirEntry is an entry of a directory.
type DirEntry struct {
	Name string
	Attr Attr
}

func dirEntryOf(e *wire.DirEntry) DirEntry { return DirEntry{e.GetName(), Attr{e.GetAttr()}} }

// DirPage is some entries of a directory, in order of name. It does not change.
type DirPage struct{ w *wire.ReadDirReply }

// Len returns the number of entries.
func (p DirPage) Len() int { return len(p.w.GetEntries()) }

// Entry returns entry i of the page: 0 <= i < Len.
func (p DirPage) Entry(i int) DirEntry { return dirEntryOf(p.w.GetEntries()[i]) }

// More reports whether the directory has entries after those of the page.
func (p DirPage) More() bool { return p.w.GetMore() }

// SetAttr is a change of attributes. A nil field leaves its attribute as it is.
type SetAttr struct {
	// Mode is the permission bits.
	Mode     *uint32
	UID, GID *uint32
	// Size cuts a file, or extends it by a hole.
	Size                *int64
	AccessTime, ModTime *time.Time
}

// wire returns the request that makes the change.
func (s SetAttr) wire(inode moraine.InodeID) *wire.SetAttr {
	op := &wire.SetAttr{Inode: uint64(inode)}
	set := func(f wire.SetAttrField) { op.Valid |= uint32(f) }
	if s.Mode != nil {
		op.Mode = *s.Mode
		set(wire.SetAttrField_SET_ATTR_MODE)
	}
	if s.UID != nil {
		op.Uid = *s.UID
		set(wire.SetAttrField_SET_ATTR_UID)
	}
	if s.GID != nil {
		op.Gid = *s.GID
		set(wire.SetAttrField_SET_ATTR_GID)
	}
	if s.Size != nil {
		op.Size = uint64(*s.Size)
		set(wire.SetAttrField_SET_ATTR_SIZE)
	}
	if s.AccessTime != nil {
		op.Atime = s.AccessTime.UnixNano()
		set(wire.SetAttrField_SET_ATTR_ATIME)
	}
	if s.ModTime != nil {
		op.Mtime = s.ModTime.UnixNano()
		set(wire.SetAttrField_SET_ATTR_MTIME)
	}
	return op
}
