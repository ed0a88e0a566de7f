package disk

import (
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"path"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/internal/vfs"
)

// A device remembers the newest incarnation of the metadata that its host received.
// After a restart, the host therefore rejects servers of an older incarnation.
// docs/formats/device.md describes the file.
const (
	incarnationFile    = "incarnation"
	incarnationMagic   = "MRNINCAR"
	incarnationVersion = 1
)

// ReadIncarnation returns what WriteIncarnation wrote for the device in dir, or
// zero if it never did. Errors are *moraine.Error.
func ReadIncarnation(fsys vfs.FS, dir string) (moraine.MarkedIncarnation, error) {
	f, err := fsys.Open(path.Join(dir, incarnationFile), vfs.Read)
	if errors.Is(err, fs.ErrNotExist) {
		return moraine.MarkedIncarnation{}, nil
	}
	if err != nil {
		return moraine.MarkedIncarnation{}, wrap("disk.ReadIncarnation", dir, err)
	}
	defer f.Close()
	p := make([]byte, stampSize)
	if _, err := f.ReadAt(p, 0); err != nil && !errors.Is(err, io.EOF) {
		return moraine.MarkedIncarnation{}, wrap("disk.ReadIncarnation", dir, err)
	}
	h, err := decodeIncarnation(p)
	if err != nil {
		return h, wrap("disk.ReadIncarnation", path.Join(dir, incarnationFile), err)
	}
	return h, nil
}

// WriteIncarnation durably records the newest incarnation that the host of the
// device in dir received. If it fails or the power is cut, the previous record
// stays.
func WriteIncarnation(fsys vfs.FS, dir string, newest moraine.MarkedIncarnation) error {
	if err := writeIncarnation(fsys, dir, encodeIncarnation(newest)); err != nil {
		return wrap("disk.WriteIncarnation", dir, err)
	}
	return nil
}

func writeIncarnation(fsys vfs.FS, dir string, p []byte) error {
	next := path.Join(dir, incarnationFile+".tmp")
	f, err := fsys.Open(next, vfs.Create|vfs.Truncate)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(p, 0)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	// COMMIT POINT: the rename, once the directory is synced.
	if err := fsys.Rename(next, path.Join(dir, incarnationFile)); err != nil {
		return err
	}
	return fsys.SyncDir(dir)
}

func encodeIncarnation(h moraine.MarkedIncarnation) []byte {
	p := make([]byte, stampSize)
	copy(p, incarnationMagic)
	binary.LittleEndian.PutUint16(p[8:], incarnationVersion)
	p[16] = byte(h.Number)
	copy(p[32:], h.Mark[:])
	binary.LittleEndian.PutUint32(p[stampSumAt:], crc.Sum(p[:stampSumAt]))
	return p
}

func decodeIncarnation(p []byte) (h moraine.MarkedIncarnation, err error) {
	if err := checkStamp(p, incarnationMagic, incarnationVersion); err != nil {
		return h, err
	}
	return moraine.MarkedIncarnation{Number: moraine.Incarnation(p[16]), Mark: moraine.UUID(p[32:48])}, nil
}
