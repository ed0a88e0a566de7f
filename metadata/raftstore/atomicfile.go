package raftstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"path/filepath"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// The small files of a node (identity, log metadata, CURRENT, snapshot metadata) share one
// envelope:
//
//	magic    8 bytes
//	version  uint16   of the body's format
//	zero     uint16
//	length   uint32   of the body
//	body
//	crc      uint32   CRC32C of everything before it
//
// Integers are little-endian. These files are always replaced whole, never written in place.
const (
	envelopeHeader = 16
	envelopeMax    = 16 << 20
)

// seal wraps body. magic has 8 bytes.
func seal(magic string, version uint16, body []byte) []byte {
	out := make([]byte, 0, envelopeHeader+len(body)+4)
	out = append(out, magic...)
	out = binary.LittleEndian.AppendUint16(out, version)
	out = binary.LittleEndian.AppendUint16(out, 0)
	out = binary.LittleEndian.AppendUint32(out, uint32(len(body)))
	out = append(out, body...)
	return binary.LittleEndian.AppendUint32(out, crc32.Checksum(out, castagnoli))
}

// unseal checks the envelope and returns the body, a slice of p, and its version. A version above
// newest is NewerFormat; any other fault is Corrupt.
func unseal(magic string, newest uint16, p []byte) (body []byte, err error) {
	if len(p) < envelopeHeader+4 || string(p[:8]) != magic {
		return nil, corruptf("no %s header", magic)
	}
	version := binary.LittleEndian.Uint16(p[8:])
	n := binary.LittleEndian.Uint32(p[12:])
	if uint64(n) != uint64(len(p)-envelopeHeader-4) {
		return nil, corruptf("%s: %d bytes for a body of %d", magic, len(p), n)
	}
	sum := binary.LittleEndian.Uint32(p[len(p)-4:])
	if got := crc32.Checksum(p[:len(p)-4], castagnoli); got != sum {
		return nil, corruptf("%s: checksum %08x, expected %08x", magic, got, sum)
	}
	if version > newest {
		return nil, &moraine.Error{Op: "raftstore", Kind: moraine.NewerFormat,
			Err: fmt.Errorf("%s has format %d, but this build reads up to %d: upgrade the build", magic, version, newest)}
	}
	if version == 0 || binary.LittleEndian.Uint16(p[10:]) != 0 {
		return nil, corruptf("%s: format %d", magic, version)
	}
	return p[envelopeHeader : len(p)-4], nil
}

func corruptf(format string, args ...any) error {
	return &moraine.Error{Op: "raftstore", Kind: moraine.Corrupt, Err: fmt.Errorf(format, args...)}
}

// replaceFile makes content the durable content of dir/name. After a failure or a power cut the
// file has either the old content or the new, never a mixture.
func replaceFile(fsys vfs.FS, dir, name string, content []byte) error {
	next := filepath.Join(dir, name+".new")
	if err := writeSynced(fsys, next, content); err != nil {
		return err
	}
	// COMMIT POINT: the rename, once the directory is synced. Until then the old file is unchanged;
	// the next call overwrites a leftover name.new.
	if err := fsys.Rename(next, filepath.Join(dir, name)); err != nil {
		return err
	}
	return fsys.SyncDir(dir)
}

// writeSynced writes a new file and makes its bytes durable, but not its name.
func writeSynced(fsys vfs.FS, name string, content []byte) (err error) {
	f, err := fsys.Open(name, vfs.Create|vfs.Truncate)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.WriteAt(content, 0); err != nil {
		return err
	}
	return f.Sync()
}

// readFile returns the content of a small file; fs.ErrNotExist if it does not exist.
func readFile(fsys vfs.FS, name string) ([]byte, error) {
	f, err := fsys.Open(name, vfs.Read)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	if size > envelopeMax {
		return nil, corruptf("%s: %d bytes", name, size)
	}
	p := make([]byte, size)
	n, err := f.ReadAt(p, 0)
	if err != nil && !(err == io.EOF && n == len(p)) {
		return nil, err
	}
	return p, nil
}

// exists reports whether name exists.
func exists(fsys vfs.FS, name string) (bool, error) {
	_, err := fsys.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// reader decodes the body of an envelope. It keeps the first fault.
type reader struct {
	p   []byte
	bad bool
}

func (r *reader) take(n int) []byte {
	if r.bad || n < 0 || n > len(r.p) {
		r.bad = true
		return nil
	}
	out := r.p[:n]
	r.p = r.p[n:]
	return out
}

func (r *reader) u16() uint16 {
	if p := r.take(2); p != nil {
		return binary.LittleEndian.Uint16(p)
	}
	return 0
}

func (r *reader) u32() uint32 {
	if p := r.take(4); p != nil {
		return binary.LittleEndian.Uint32(p)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if p := r.take(8); p != nil {
		return binary.LittleEndian.Uint64(p)
	}
	return 0
}

// bytes reads a length (uint32) and that many bytes.
func (r *reader) bytes() []byte { return r.take(int(r.u32())) }

// done reports whether everything was read and nothing was missing.
func (r *reader) done() bool { return !r.bad && len(r.p) == 0 }

func appendBytes(out, p []byte) []byte {
	out = binary.LittleEndian.AppendUint32(out, uint32(len(p)))
	return append(out, p...)
}
