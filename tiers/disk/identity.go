package disk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/internal/vfs"
)

// The format of the identity file; docs/formats/device.md describes it.
const (
	deviceMagic   = "MRNDEVIC"
	deviceVersion = 1
	// stampSize is the length of the checksummed part of the identity file's block
	// and of a segment's first block. Its last four bytes are the checksum.
	stampSize  = 128
	stampSumAt = stampSize - 4
	saltSize   = 16
)

// Names in a device's directory.
const (
	deviceFile  = "device"
	lockFile    = "lock"
	segmentsDir = "segments"
	indexDir    = "index"
	ballastFile = "ballast"
	rebuildFile = "rebuild-index"
)

// Identity says which device this is. Format writes it once, and it moves with the
// disk: on another host the device keeps its identity.
type Identity struct {
	Cluster moraine.UUID
	Device  moraine.UUID
	// salt is mixed into the checksum of every record; see headSum.
	salt [saltSize]byte
}

func (id *Identity) encode() []byte {
	p := make([]byte, block)
	copy(p, deviceMagic)
	binary.LittleEndian.PutUint16(p[8:], deviceVersion)
	copy(p[16:], id.Cluster[:])
	copy(p[32:], id.Device[:])
	copy(p[48:], id.salt[:])
	binary.LittleEndian.PutUint32(p[stampSumAt:], crc.Sum(p[:stampSumAt]))
	return p
}

func decodeIdentity(p []byte) (Identity, error) {
	var id Identity
	if err := checkStamp(p, deviceMagic, deviceVersion); err != nil {
		return id, err
	}
	id.Cluster = moraine.UUID(p[16:32])
	id.Device = moraine.UUID(p[32:48])
	id.salt = [saltSize]byte(p[48:64])
	return id, nil
}

// checkStamp verifies magic, checksum and version of a block that describes a
// device or a segment. Errors are *moraine.Error: Corrupt, NewerFormat.
func checkStamp(p []byte, magic string, version uint16) error {
	le := binary.LittleEndian
	switch {
	case len(p) < stampSize || !bytes.Equal(p[:8], []byte(magic)):
		return &moraine.Error{Op: "disk.decode", Kind: moraine.Corrupt, Err: fmt.Errorf("block does not begin with %q", magic)}
	case le.Uint32(p[stampSumAt:]) != crc.Sum(p[:stampSumAt]):
		return &moraine.Error{Op: "disk.decode", Kind: moraine.Corrupt, Err: errors.New("block checksum mismatch")}
	case le.Uint16(p[8:]) > version:
		return &moraine.Error{Op: "disk.decode", Kind: moraine.NewerFormat,
			Err: fmt.Errorf("format version %d; this build reads up to %d", le.Uint16(p[8:]), version)}
	}
	return nil
}

// ReadIdentity reads the identity of the device in dir. Errors are *moraine.Error:
// NotFound if dir holds no device, Corrupt, NewerFormat, IOError.
func ReadIdentity(fsys vfs.FS, dir string) (Identity, error) {
	name := path.Join(dir, deviceFile)
	f, err := fsys.Open(name, vfs.Read)
	if err != nil {
		return Identity{}, wrap("disk.ReadIdentity", dir, err)
	}
	defer f.Close()
	p := make([]byte, block)
	if _, err := f.ReadAt(p, 0); err != nil && !errors.Is(err, io.EOF) {
		return Identity{}, wrap("disk.ReadIdentity", dir, err)
	}
	id, err := decodeIdentity(p)
	if err != nil {
		return Identity{}, wrap("disk.ReadIdentity", name, err)
	}
	return id, nil
}

// Format makes dir a device of cluster, creates dir if it is missing, and returns
// the identity. random supplies UUID and salt. When Format returns nil, the device
// is durable; the caller makes the names of directories above dir's parent durable.
// A directory that is already a device returns Exists, and stays untouched. A
// directory that holds anything else stays untouched too and returns NotEmpty. One
// with segments and no identity is Corrupt. It is safe to repeat a Format that was
// interrupted.
func Format(fsys vfs.FS, dir string, cluster moraine.UUID, random io.Reader) (Identity, error) {
	id := Identity{Cluster: cluster}
	if _, err := io.ReadFull(random, id.Device[:]); err != nil {
		return id, wrap("disk.Format", dir, err)
	}
	if _, err := io.ReadFull(random, id.salt[:]); err != nil {
		return id, wrap("disk.Format", dir, err)
	}
	if err := format(fsys, dir, &id); err != nil {
		return Identity{}, wrap("disk.Format", dir, err)
	}
	return id, nil
}

// CheckBlank returns nil if Format could make dir a device; dir may be missing.
// Otherwise it returns the error that Format would return. It changes nothing.
func CheckBlank(fsys vfs.FS, dir string) error {
	err := refuseForeign(fsys, dir)
	if err == nil {
		err = blank(fsys, dir)
	}
	if err != nil {
		return wrap("disk.CheckBlank", dir, err)
	}
	return nil
}

// blank fails if dir is or was a device.
func blank(fsys vfs.FS, dir string) error {
	if _, err := fsys.Stat(path.Join(dir, deviceFile)); err == nil {
		return &moraine.Error{Op: "disk.Format", Ref: dir, Kind: moraine.Exists}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	names, err := fsys.List(path.Join(dir, segmentsDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(names) > 0 {
		return &moraine.Error{Op: "disk.Format", Ref: dir, Kind: moraine.Corrupt,
			Err: errors.New("directory has segments but no identity file: restore the identity file, or remove the segments")}
	}
	return nil
}

// refuseForeign fails if dir holds a file that no device has. Such a directory was
// given by mistake, or belongs to another program.
func refuseForeign(fsys vfs.FS, dir string) error {
	names, err := fsys.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, name := range names {
		switch name {
		case deviceFile, deviceFile + ".tmp", lockFile, segmentsDir, indexDir, ballastFile, "lost+found":
		default:
			return &moraine.Error{Op: "disk.Format", Ref: dir, Kind: moraine.NotEmpty,
				Err: fmt.Errorf("directory is no device and contains %s: name an empty directory", name)}
		}
	}
	return err
}

func format(fsys vfs.FS, dir string, id *Identity) error {
	if err := refuseForeign(fsys, dir); err != nil {
		return err
	}
	if err := fsys.MkdirAll(path.Join(dir, segmentsDir)); err != nil {
		return err
	}
	lock, err := lockDevice(fsys, dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := blank(fsys, dir); err != nil {
		return err
	}
	return writeIdentity(fsys, dir, id)
}

// writeIdentity puts the identity file in place, whole and durable, or not at all.
func writeIdentity(fsys vfs.FS, dir string, id *Identity) error {
	temp := path.Join(dir, deviceFile+".tmp")
	f, err := fsys.Open(temp, vfs.Create|vfs.Truncate)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(id.encode(), 0)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	// The directory of segments and dir itself become durable before the name that
	// declares them.
	if err := fsys.SyncDir(dir); err != nil {
		return err
	}
	if err := fsys.SyncDir(path.Dir(dir)); err != nil {
		return err
	}
	if err := fsys.Rename(temp, path.Join(dir, deviceFile)); err != nil { // COMMIT POINT
		return err
	}
	return fsys.SyncDir(dir)
}

// lockDevice takes the lock that keeps other processes away from the device.
func lockDevice(fsys vfs.FS, dir string) (io.Closer, error) {
	lock, err := fsys.Lock(path.Join(dir, lockFile))
	if errors.Is(err, vfs.ErrLocked) {
		return nil, &moraine.Error{Op: "disk.lock", Ref: dir, Kind: moraine.Busy, Err: vfs.ErrLocked}
	}
	if err != nil {
		return nil, wrap("disk.lock", dir, err)
	}
	return lock, nil
}
