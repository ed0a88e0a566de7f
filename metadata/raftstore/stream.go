package raftstore

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"path/filepath"
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
)

// A snapshot is sent as a stream of the files of a pebble checkpoint. docs/formats/snapshot.md
// describes it.
const (
	streamMagic   = "MRNSNAP1"
	streamVersion = 1
	streamEnd     = "MRNSEND1"
	streamFrame   = 1 << 20
	streamFiles   = 1 << 20 // most files that a reader accepts
	streamHeader  = 8 + 2 + 2 + 16 + 8 + 4 + 4
	streamTrailer = 8 + 8 + 4
)

// streamInfo is the header of a stream.
type streamInfo struct {
	cluster moraine.UUID
	applied uint64 // index of the state
	files   uint32
}

func (i streamInfo) encode() []byte {
	le := binary.LittleEndian
	out := append([]byte(nil), streamMagic...)
	out = le.AppendUint16(out, streamVersion)
	out = le.AppendUint16(out, 0)
	out = append(out, i.cluster[:]...)
	out = le.AppendUint64(out, i.applied)
	out = le.AppendUint32(out, i.files)
	return le.AppendUint32(out, crc32.Checksum(out, castagnoli))
}

// checkpointFile is one file of a checkpoint.
type checkpointFile struct {
	name string
	size int64
}

func (f checkpointFile) encode() []byte {
	le := binary.LittleEndian
	out := le.AppendUint16(nil, uint16(len(f.name)))
	out = append(out, f.name...)
	out = le.AppendUint64(out, uint64(f.size))
	return le.AppendUint32(out, crc32.Checksum(out, castagnoli))
}

func encodeStreamEnd(total int64) []byte {
	out := append([]byte(nil), streamEnd...)
	out = binary.LittleEndian.AppendUint64(out, uint64(total))
	return binary.LittleEndian.AppendUint32(out, crc32.Checksum(out, castagnoli))
}

// streamSize returns the length of the stream of files.
func streamSize(files []checkpointFile) int64 {
	n := int64(streamHeader + streamTrailer)
	for _, f := range files {
		frames := (f.size + streamFrame - 1) / streamFrame
		n += int64(len(f.encode())) + f.size + 8*frames
	}
	return n
}

// checkpointFiles lists the files of a checkpoint.
func checkpointFiles(fsys vfs.FS, dir string) ([]checkpointFile, error) {
	names, err := fsys.List(dir)
	if err != nil {
		return nil, err
	}
	var files []checkpointFile
	for _, name := range names {
		info, err := fsys.Stat(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		if info.Dir {
			return nil, corruptf("checkpoint %s has a directory %s", dir, name)
		}
		files = append(files, checkpointFile{name: name, size: info.Size})
	}
	return files, nil
}

// writeStream writes the stream of the checkpoint in dir.
func writeStream(w io.Writer, fsys vfs.FS, dir string, cluster moraine.UUID, applied uint64, files []checkpointFile) error {
	info := streamInfo{cluster: cluster, applied: applied, files: uint32(len(files))}
	if _, err := w.Write(info.encode()); err != nil {
		return err
	}
	var total int64
	buf := make([]byte, 8+streamFrame)
	for _, f := range files {
		if _, err := w.Write(f.encode()); err != nil {
			return err
		}
		if err := writeStreamFile(w, fsys, filepath.Join(dir, f.name), f.size, buf); err != nil {
			return err
		}
		total += f.size
	}
	_, err := w.Write(encodeStreamEnd(total))
	return err
}

func writeStreamFile(w io.Writer, fsys vfs.FS, name string, size int64, buf []byte) error {
	f, err := fsys.Open(name, vfs.Read)
	if err != nil {
		return err
	}
	defer f.Close()
	for off := int64(0); off < size; {
		data := buf[8 : 8+min(streamFrame, size-off)]
		if n, err := f.ReadAt(data, off); n < len(data) {
			return fmt.Errorf("%s ends at %d of %d: %w", name, off+int64(n), size, err)
		}
		binary.LittleEndian.PutUint32(buf, uint32(len(data)))
		binary.LittleEndian.PutUint32(buf[4:], crc32.Checksum(data, castagnoli))
		if _, err := w.Write(buf[:8+len(data)]); err != nil {
			return err
		}
		off += int64(len(data))
	}
	return nil
}

// streamReader decodes a stream. It checks every byte before it returns it.
type streamReader struct {
	r    *bufio.Reader
	info streamInfo
}

// newStreamReader reads the header. Wrong bytes are Corrupt, a newer format is NewerFormat, a
// stream of another cluster is WrongCluster.
func newStreamReader(r io.Reader, cluster moraine.UUID) (*streamReader, error) {
	s := &streamReader{r: bufio.NewReaderSize(r, 256<<10)}
	p, err := s.checked(streamHeader)
	if err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	version := le.Uint16(p[8:])
	switch {
	case string(p[:8]) != streamMagic || version == 0:
		return nil, corruptf("not a snapshot")
	case version > streamVersion:
		return nil, &moraine.Error{Op: "raftstore", Kind: moraine.NewerFormat,
			Err: fmt.Errorf("the snapshot has format %d, but this build reads up to %d", version, streamVersion)}
	}
	copy(s.info.cluster[:], p[12:])
	s.info.applied = le.Uint64(p[28:])
	s.info.files = le.Uint32(p[36:])
	switch {
	case s.info.cluster != cluster:
		return nil, &moraine.Error{Op: "raftstore", Kind: moraine.WrongCluster,
			Err: fmt.Errorf("the snapshot belongs to cluster %s", s.info.cluster)}
	case s.info.files > streamFiles:
		return nil, corruptf("snapshot of %d files", s.info.files)
	}
	return s, nil
}

// checked reads n bytes, of which the last four are the CRC of the others.
func (s *streamReader) checked(n int) ([]byte, error) {
	p := make([]byte, n)
	if _, err := io.ReadFull(s.r, p); err != nil {
		return nil, streamError(err)
	}
	if crc32.Checksum(p[:n-4], castagnoli) != binary.LittleEndian.Uint32(p[n-4:]) {
		return nil, corruptf("snapshot: a header's checksum is wrong")
	}
	return p, nil
}

// streamError makes a stream that ends early Corrupt.
func streamError(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return corruptf("the snapshot ends early")
	}
	return err
}

// each calls begin for each file, then data with its bytes in order, then done.
func (s *streamReader) each(begin func(f checkpointFile) error, data func(p []byte) error, done func() error) error {
	var total int64
	last := ""
	buf := make([]byte, streamFrame)
	for range s.info.files {
		f, err := s.file()
		if err != nil {
			return err
		}
		if f.name <= last {
			return corruptf("snapshot: file %q after %q", f.name, last)
		}
		last = f.name
		if err := begin(f); err != nil {
			return err
		}
		for rest := f.size; rest > 0; {
			p, err := s.frame(buf, rest)
			if err != nil {
				return err
			}
			if err := data(p); err != nil {
				return err
			}
			rest -= int64(len(p))
		}
		if err := done(); err != nil {
			return err
		}
		total += f.size
	}
	return s.end(total)
}

func (s *streamReader) file() (checkpointFile, error) {
	p, err := s.r.Peek(2)
	if err != nil {
		return checkpointFile{}, streamError(err)
	}
	n := int(binary.LittleEndian.Uint16(p))
	if p, err = s.checked(2 + n + 8 + 4); err != nil {
		return checkpointFile{}, err
	}
	f := checkpointFile{name: string(p[2 : 2+n]), size: int64(binary.LittleEndian.Uint64(p[2+n:]))}
	if f.name == "" || f.name == "." || f.name == ".." || strings.ContainsAny(f.name, "/\x00") || f.size < 0 {
		return checkpointFile{}, corruptf("snapshot: file %q of %d bytes", f.name, f.size)
	}
	return f, nil
}

// frame reads one frame of a file with rest bytes missing.
func (s *streamReader) frame(buf []byte, rest int64) ([]byte, error) {
	var head [8]byte
	if _, err := io.ReadFull(s.r, head[:]); err != nil {
		return nil, streamError(err)
	}
	n := int64(binary.LittleEndian.Uint32(head[:]))
	if n != min(rest, streamFrame) {
		return nil, corruptf("snapshot: a frame of %d bytes where %d are left", n, rest)
	}
	p := buf[:n]
	if _, err := io.ReadFull(s.r, p); err != nil {
		return nil, streamError(err)
	}
	if crc32.Checksum(p, castagnoli) != binary.LittleEndian.Uint32(head[4:]) {
		return nil, corruptf("snapshot: a frame's checksum is wrong")
	}
	return p, nil
}

func (s *streamReader) end(total int64) error {
	p, err := s.checked(streamTrailer)
	if err != nil {
		return err
	}
	if string(p[:8]) != streamEnd || int64(binary.LittleEndian.Uint64(p[8:])) != total {
		return corruptf("snapshot: wrong end")
	}
	if _, err := s.r.ReadByte(); err != io.EOF {
		return corruptf("snapshot: bytes after its end")
	}
	return nil
}

// extract writes the files of a stream into dir, which must not exist, and makes them durable there
// (except dir's own name). It then reads them back: a bit that flipped on the way to the disk is
// Corrupt.
func (s *streamReader) extract(fsys vfs.FS, dir string) (err error) {
	if err := fsys.MkdirAll(dir); err != nil {
		return err
	}
	var f vfs.File
	var off int64
	var sum uint32
	defer func() {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	begin := func(file checkpointFile) (err error) {
		off, sum = 0, 0
		f, err = fsys.Open(filepath.Join(dir, file.name), vfs.Create|vfs.Exclusive)
		return err
	}
	data := func(p []byte) error {
		sum = crc32.Update(sum, castagnoli, p)
		n, err := f.WriteAt(p, off)
		off += int64(n)
		return err
	}
	done := func() error {
		err := f.Sync()
		if err == nil {
			err = readBack(f, off, sum)
		}
		err = errors.Join(err, f.Close())
		f = nil
		return err
	}
	if err := s.each(begin, data, done); err != nil {
		return err
	}
	return fsys.SyncDir(dir)
}

// readBack checks that the size bytes of f have this CRC.
func readBack(f vfs.File, size int64, sum uint32) error {
	back := crc32.New(castagnoli)
	if _, err := io.Copy(back, io.NewSectionReader(f, 0, size)); err != nil {
		return err
	}
	if back.Sum32() != sum {
		return corruptf("snapshot: a file of it is read back as something else")
	}
	return nil
}

// verify reads a stream to its end, checking it.
func (s *streamReader) verify() error {
	return s.each(
		func(checkpointFile) error { return nil },
		func([]byte) error { return nil },
		func() error { return nil },
	)
}
