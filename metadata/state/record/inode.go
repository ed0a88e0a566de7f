package record

import (
	"encoding/binary"
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// File types of an inode; the numbers equal those of wire.FileType.
const (
	TypeFile      = uint8(wire.FileType_FILE_TYPE_REGULAR)
	TypeDirectory = uint8(wire.FileType_FILE_TYPE_DIRECTORY)
	TypeSymlink   = uint8(wire.FileType_FILE_TYPE_SYMLINK)
	TypeFifo      = uint8(wire.FileType_FILE_TYPE_FIFO)
	TypeSocket    = uint8(wire.FileType_FILE_TYPE_SOCKET)
	TypeChar      = uint8(wire.FileType_FILE_TYPE_CHAR_DEVICE)
	TypeBlock     = uint8(wire.FileType_FILE_TYPE_BLOCK_DEVICE)
)

// Inode is a file, a directory, a symbolic link or a special file: a fifo, a socket or a device node.
type Inode struct {
	Id       moraine.InodeID // in the key
	Typ      uint8
	Mode     uint32 // permission bits, 07777
	Uid, Gid uint32
	Nlink    uint32
	Tenant   moraine.Tenant
	// Parent is the directory that names the inode. It is 0 for the root and for an inode without a
	// name. A checkpoint's directory has the run's directory as parent from the start.
	Parent moraine.InodeID
	// ManyLinks is set for ever once the inode has had two names. Caches then ignore Parent.
	ManyLinks bool
	// Owner is the session that has a file without a name open.
	Owner moraine.SessionID
	// KeptBy, Linger and From are of an orphan (orphan.go).
	KeptBy, Linger      uint64
	From                moraine.InodeID
	Atime, Mtime, Ctime int64 // wall clock time in nanoseconds
	Target              string
	Rdev                uint32 // of a device node: the device that it names
	// Name is the inode's name in Parent, empty without one. It allows finding the path by walking
	// up.
	Name string
	// Xattrs is set while the inode has extended attributes.
	Xattrs bool

	// Sealed is set for a checkpoint's directory and files, for the links to it in its run, and for
	// everything in a snapshot. Only handlers of these change such inodes (seal.go).
	Sealed bool

	// Of a directory: the number of entries, and of directories among them.
	Entries uint64
	// Step is the checkpoint of a sealed directory. The checkpoint is committed once the directory
	// has a name.
	Step StepID
	// Reserved is what the ranks of that checkpoint have announced, and not sealed yet, in bytes. It
	// counts as used space.
	Reserved uint64
	// Policy is set while the directory has a policy of its own.
	Policy bool
	// Delegate is the session that may change the directory by itself; 0 for none. It counts while
	// that session lives.
	Delegate moraine.SessionID

	// Of a file.
	Size       int64
	Stored     int64 // bytes in extents
	Evicted    int64 // part of Stored that is only in objects
	Inline     int64 // part of Stored that is in the metadata
	Generation moraine.Generation
	Level      moraine.Level
	Degraded   uint64
	// Content identifies its list of table references; 0 if it has no extent.
	Content uint64
	// Refs is the number of references. None ends after LastEnd. The last one ends there unless it
	// was truncated.
	Refs    uint64
	LastEnd int64
	// Object is the newest object made from the file, or 0, and ObjectGen is the generation in it.
	Object    moraine.ObjectID
	ObjectGen moraine.Generation

	// Leased and Home are Lease() and Parent as read; they are not stored.
	Leased, Home moraine.InodeID
}

const InodeVersion = 1

// Bits for the optional parts of an inode record.
const (
	inodeManyLinks = 1 << iota
	InodeOwned
	inodeContent
	InodeNamed
	inodeXattrs
	inodeObject
	inodeEvicted
	inodePolicy
	InodeSealed
	InodeStep
	inodeDelegated
	inodeInline
	inodeOrphan
	inodeFlagsEnd // the first unused bit
)

// Encode returns the stored value. It takes 89 ns, and 138 ns through a codec.
func (i *Inode) Encode() []byte {
	b := make([]byte, 0, 120+len(i.Target)+len(i.Name))
	flags := i.flags()
	b = putUvarint(append(b, InodeVersion, i.Typ), uint64(flags))
	b = putUvarint(b, uint64(i.Mode))
	b = putUvarint(b, uint64(i.Uid))
	b = putUvarint(b, uint64(i.Gid))
	b = putUvarint(b, uint64(i.Nlink))
	b = putUvarint(b, uint64(i.Tenant))
	b = putFixed64(b, uint64(i.Parent))
	b = putFixed64(b, uint64(i.Atime))
	b = putFixed64(b, uint64(i.Mtime))
	b = putFixed64(b, uint64(i.Ctime))
	if i.Owner != 0 {
		b = putFixed64(b, uint64(i.Owner))
	}
	switch i.Typ {
	case TypeDirectory:
		b = putUvarint(b, i.Entries)
	case TypeSymlink:
		b = putString(b, i.Target)
	case TypeChar, TypeBlock:
		b = putUvarint(b, uint64(i.Rdev))
	case TypeFile:
		b = putUvarint(b, uint64(i.Size))
		b = putFixed64(b, uint64(i.Generation))
		b = append(b, byte(i.Level))
		if i.Content != 0 {
			b = putUvarint(b, uint64(i.Stored))
			b = putUvarint(b, i.Degraded)
			b = putUvarint(b, i.Content)
			b = putUvarint(b, i.Refs)
			b = putUvarint(b, uint64(i.LastEnd))
		}
	}
	if i.Name != "" {
		b = putString(b, i.Name)
	}
	if i.Object != 0 {
		b = putFixed64(putFixed64(b, uint64(i.Object)), uint64(i.ObjectGen))
	}
	if i.Evicted != 0 {
		b = putUvarint(b, uint64(i.Evicted))
	}
	if i.Inline != 0 {
		b = putUvarint(b, uint64(i.Inline))
	}
	if i.Step != (StepID{}) {
		b = putUvarint(i.Step.Encode(b), i.Reserved)
	}
	if i.Delegate != 0 {
		b = putFixed64(b, uint64(i.Delegate))
	}
	return i.encodeOrphan(b)
}

// flags returns the bits of the optional parts that follow.
func (i *Inode) flags() (flags uint16) {
	for bit, set := range [13]bool{
		i.ManyLinks, i.Owner != 0, i.Content != 0, i.Name != "", i.Xattrs, i.Object != 0, i.Evicted != 0, i.Policy,
		i.Sealed, i.Step != (StepID{}), i.Delegate != 0, i.Inline != 0, i.Orphan(),
	} {
		if set {
			flags |= 1 << bit
		}
	}
	return flags
}

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
func (i *Inode) Decode(b []byte) error {
	d := Dec{B: b}
	d.Version(InodeVersion)
	i.Typ = d.Byte()
	flags := uint16(min(d.Uvarint(), inodeFlagsEnd))
	const ofFiles, ofDirs = inodeContent | inodeObject | inodeEvicted | inodeInline | inodeOrphan, inodePolicy | InodeStep | inodeDelegated
	if flags >= inodeFlagsEnd || (flags&ofFiles != 0 && i.Typ != TypeFile) || (flags&ofDirs != 0 && i.Typ != TypeDirectory) {
		d.fail(fmt.Errorf("flags %02x of type %d", flags, i.Typ))
	}
	i.ManyLinks = flags&inodeManyLinks != 0
	i.Mode = d.U32()
	i.Uid = d.U32()
	i.Gid = d.U32()
	i.Nlink = d.U32()
	i.Tenant = moraine.Tenant(d.U32())
	i.Parent = moraine.InodeID(d.Fixed64())
	i.Atime = int64(d.Fixed64())
	i.Mtime = int64(d.Fixed64())
	i.Ctime = int64(d.Fixed64())
	if flags&InodeOwned != 0 {
		i.Owner = moraine.SessionID(d.Fixed64())
	}
	switch i.Typ {
	case TypeDirectory:
		i.Entries = d.Uvarint()
	case TypeSymlink:
		i.Target = d.string()
	case TypeFifo, TypeSocket:
	case TypeChar, TypeBlock:
		i.Rdev = d.U32()
	case TypeFile:
		i.Size = int64(d.Uvarint())
		i.Generation = moraine.Generation(d.Fixed64())
		i.Level = moraine.Level(d.Byte())
		if flags&inodeContent != 0 {
			i.Stored = int64(d.Uvarint())
			i.Degraded = d.Uvarint()
			i.Content = d.Uvarint()
			i.Refs = d.Uvarint()
			i.LastEnd = int64(d.Uvarint())
		}
	default:
		d.fail(fmt.Errorf("file type %d", i.Typ))
	}
	i.Xattrs, i.Policy = flags&inodeXattrs != 0, flags&inodePolicy != 0
	if flags&InodeNamed != 0 {
		i.Name = d.string()
	}
	if flags&inodeObject != 0 {
		i.Object, i.ObjectGen = moraine.ObjectID(d.Fixed64()), moraine.Generation(d.Fixed64())
	}
	if flags&inodeEvicted != 0 {
		i.Evicted = int64(d.Uvarint())
	}
	if flags&inodeInline != 0 {
		i.Inline = int64(d.Uvarint())
	}
	i.Sealed = flags&InodeSealed != 0
	if flags&InodeStep != 0 {
		i.Step.Decode(&d)
		i.Reserved = d.Uvarint()
	}
	if flags&inodeDelegated != 0 {
		i.Delegate = moraine.SessionID(d.Fixed64())
	}
	if flags&inodeOrphan != 0 {
		i.decodeOrphan(&d)
	}
	if flags != i.flags() {
		d.fail(fmt.Errorf("flags %02x mark a field that is 0", flags))
	}
	return d.End("inode")
}

// Attr returns the attributes in wire form.
func (i *Inode) Attr() *wire.Attr {
	return &wire.Attr{
		Inode: uint64(i.Id), Type: wire.FileType(i.Typ), Mode: i.Mode, Uid: i.Uid, Gid: i.Gid, Nlink: i.Nlink,
		Size: uint64(i.Size), Generation: uint64(i.Generation), Atime: i.Atime, Mtime: i.Mtime, Ctime: i.Ctime,
		Parent: uint64(i.Parent), Tenant: uint32(i.Tenant), Level: uint32(i.Level), Target: i.Target,
		Stored: uint64(i.Stored), Degraded: i.Degraded, Clean: i.Clean(), Evicted: i.Evicted != 0, Object: uint64(i.Object),
		Sealed: i.Sealed, Rdev: i.Rdev, Inline: uint64(i.Inline),
	}
}

// Count adds a table of the file to the file's sums.
func (i *Inode) Count(h TableHead) {
	i.Stored += h.Bytes
	i.Evicted += h.Evicted
	i.Inline += h.Inline
}

// Uncount removes a table of the file from the file's sums.
func (i *Inode) Uncount(h TableHead) {
	i.Stored -= h.Bytes
	i.Evicted -= h.Evicted
	i.Inline -= h.Inline
}

// Snapshot reports whether the inode is a directory of a snapshot.
func (i *Inode) Snapshot() bool {
	return i.Sealed && i.Typ == TypeDirectory && i.Step == (StepID{})
}

// CommittedStep reports whether the inode is the directory of a committed checkpoint.
func (i *Inode) CommittedStep() bool { return i.Step != (StepID{}) && i.Name != "" }

// Safety returns the level of a file's bytes. A file without bytes is at nvme, and at object once it
// was flushed.
func (i *Inode) Safety() moraine.Level {
	if i.Content == 0 {
		return max(i.Level, moraine.NVMe)
	}
	return i.Level
}

// Clean reports whether an object has the whole present generation.
func (i *Inode) Clean() bool { return i.Object != 0 && i.ObjectGen == i.Generation }

// DropContent makes the file empty and returns its former content, which the caller must discard.
func (i *Inode) DropContent() (old uint64) {
	old = i.Content
	i.Content, i.Refs, i.LastEnd, i.Size = 0, 0, 0, 0
	i.Stored, i.Evicted, i.Inline = 0, 0, 0
	return old
}

// Detach records that no directory names the inode any more.
func (i *Inode) Detach() { i.Parent, i.Name = 0, "" }

// Dentry is an entry of a directory.
type Dentry struct {
	Inode moraine.InodeID
	Typ   uint8
}

const DentryVersion = 1

// Encode returns the stored value. It takes 19 ns, and 23 ns through a codec.
func (e Dentry) Encode() []byte {
	return putFixed64(append(newValue(DentryVersion, 10), e.Typ), uint64(e.Inode))
}

// DecodeDentry decodes an entry of a directory.
func DecodeDentry(b []byte) (Dentry, error) {
	d := Dec{B: b}
	d.Version(DentryVersion)
	e := Dentry{Typ: d.Byte()}
	e.Inode = moraine.InodeID(d.Fixed64())
	return e, d.End("dentry")
}

// LastU64 returns the number at the end of a key.
func LastU64(key []byte) uint64 { return binary.BigEndian.Uint64(key[len(key)-8:]) }

// Lease returns the inode whose cache lease covers this inode's attributes; 0 for none.
func (i *Inode) Lease() moraine.InodeID {
	return moraine.InodeID(wire.LeaseOver(uint64(i.Id), uint64(i.Parent), i.Typ == TypeDirectory, i.ManyLinks))
}

// CachedAttr returns the attributes for clients that may cache them, with the lease that covers
// them and hints that save requests. Answers that the state keeps do not use it.
func (i *Inode) CachedAttr() *wire.Attr {
	a := i.Attr()
	a.ManyLinks, a.Xattrs = i.ManyLinks, i.Xattrs
	return a
}

const xattrVersion = 1

// EncodeXattr returns the stored value of an extended attribute.
func EncodeXattr(value []byte) []byte { return xattrFields(encoder(4+len(value)), &value).B }

// DecodeXattr decodes the value of an extended attribute.
func DecodeXattr(b []byte) (value []byte, err error) {
	err = xattrFields(decoder(b), &value).End("extended attribute")
	return value, err
}

func xattrFields(c *codec, value *[]byte) *codec {
	c.version(xattrVersion)
	c.bytes(value)
	return c
}
