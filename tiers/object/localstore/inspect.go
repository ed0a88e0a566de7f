package localstore

import (
	"fmt"
	"io"
	"path"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/internal/vfs"
)

// FileInfo is what Inspect found in one file of a store.
type FileInfo struct {
	// Path is the file, below the store's directory.
	Path string
	// Record is nil if it could not be read; Damage says why.
	Record *Record
	Damage error
}

// Inspect reads the record of each object and part of a store that no server has
// open. With data set it reads their bytes too. It changes nothing.
func Inspect(files vfs.FS, dir string, data bool, each func(FileInfo)) error {
	for _, top := range []string{objectsDir, uploadsDir} {
		if err := inspectDir(files, dir, top, data, each); err != nil {
			return err
		}
	}
	return nil
}

func inspectDir(files vfs.FS, dir, below string, data bool, each func(FileInfo)) error {
	names, err := files.List(path.Join(dir, below))
	if err != nil {
		return err
	}
	for _, name := range names {
		p := path.Join(below, name)
		info, err := files.Stat(path.Join(dir, p))
		if err != nil {
			return err
		}
		if info.Dir {
			if err := inspectDir(files, dir, p, data, each); err != nil {
				return err
			}
			continue
		}
		found := FileInfo{Path: p}
		s := &Store{fs: files}
		if found.Record, found.Damage = s.readRecord(path.Join(dir, p)); found.Damage == nil && data {
			found.Damage = verifyBytes(files, path.Join(dir, p), found.Record)
		}
		each(found)
	}
	return nil
}

// verifyBytes verifies the bytes of a file against their record.
func verifyBytes(files vfs.FS, p string, r *Record) error {
	f, err := files.Open(p, vfs.Read)
	if err != nil {
		return err
	}
	defer f.Close()
	buf, sum := make([]byte, 256<<10), uint32(0)
	for off := int64(0); off < r.Size; {
		n, err := f.ReadAt(buf[:min(int64(len(buf)), r.Size-off)], off)
		if err != nil && err != io.EOF || n == 0 {
			return fmt.Errorf("read at %d: %w", off, err)
		}
		sum = crc.Combine(sum, crc.Sum(buf[:n]), int64(n))
		off += int64(n)
	}
	if sum != r.CRC {
		return &moraine.Error{Op: "localstore.inspect", Ref: r.Key, Kind: moraine.Corrupt, Err: fmt.Errorf("CRC32C %08x, want %08x", sum, r.CRC)}
	}
	return nil
}
