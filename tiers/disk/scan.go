package disk

import (
	"bytes"
	"errors"
	"io"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/bufpool"
	"github.com/morainefs/moraine/internal/vfs"
)

// Windows of a scan: small while the scan jumps from head to head, growing while it
// walks block by block.
const (
	minWindow = 4 * block
	maxWindow = 256 * block
)

// scanner finds the records of one segment, in order.
type scanner struct {
	f      vfs.File
	number uint64
	salt   []byte
	size   int64
	pos    int64 // where the next record may begin

	window     []byte // aligned memory of maxWindow
	have       []byte // the part of window that was read
	haveAt     int64  // the file offset where have begins
	nextWindow int64

	// used is the end of the last block that is not empty.
	used int64
	// strayBlocks counts blocks that belong to no record and are not zeros. They
	// are torn or corrupt, or the data of a record with a torn or corrupt head.
	strayBlocks int64
}

// scanBuffer lends the window of a scan.
func scanBuffer(heads *bufpool.Pool, dir string) (*bufpool.Buffer, error) {
	if buf := heads.TryGet(maxWindow); buf != nil {
		return buf, nil
	}
	return nil, &moraine.Error{Op: "disk.scan", Ref: dir, Kind: moraine.Unavailable,
		Err: errors.New("no buffer to scan with: the buffer pool is too small")}
}

// newScanner scans f from its second block. window is aligned memory of at least
// maxWindow bytes.
func newScanner(f vfs.File, number uint64, salt, window []byte) (*scanner, error) {
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	return &scanner{f: f, number: number, salt: salt, size: size / block * block, pos: block,
		window: window[:maxWindow], nextWindow: minWindow}, nil
}

var zeroBlock [block]byte

// next returns the next record. tableErr reports a damaged table; the rest of the
// record is good. The end of the segment is io.EOF. Other errors are those of the
// file, or moraine.NewerFormat.
func (s *scanner) next() (r record, tableErr, err error) {
	for s.pos+block <= s.size {
		p, err := s.peek(block)
		if err != nil {
			return record{}, nil, err
		}
		r, headSize, tableSize, err := decodeHead(p, extent{segment: s.number, off: s.pos}, s.salt)
		if err == errNoRecord || err == nil && s.pos+r.at.size > s.size {
			if !bytes.Equal(p[:block], zeroBlock[:]) {
				s.strayBlocks++
				s.used = s.pos + block
			}
			s.pos += block
			continue
		}
		if err != nil {
			return record{}, nil, err
		}
		head, err := s.peek(headSize)
		if err != nil {
			return record{}, nil, err
		}
		tableErr = decodeTable(&r, head, tableSize)
		s.pos += r.at.size
		s.used = s.pos
		return r, tableErr, nil
	}
	return record{}, nil, io.EOF
}

// peek returns the n bytes at pos, which must lie within the file.
func (s *scanner) peek(n int64) ([]byte, error) {
	if off := s.pos - s.haveAt; off >= 0 && off+n <= int64(len(s.have)) {
		return s.have[off : off+n], nil
	}
	if s.pos == s.haveAt+int64(len(s.have)) {
		s.nextWindow = min(s.nextWindow*4, maxWindow)
	} else {
		s.nextWindow = minWindow
	}
	want := min(max(s.nextWindow, n), s.size-s.pos)
	got, err := s.f.ReadAt(s.window[:want], s.pos)
	if int64(got) < n {
		return nil, errors.Join(io.ErrUnexpectedEOF, err)
	}
	s.have, s.haveAt = s.window[:got], s.pos
	return s.have[:n], nil
}

// readData reads the data of a chunk's record and verifies it against the record's
// table. intact is false on a mismatch.
func readData(f vfs.File, r *record, window []byte) (intact bool, err error) {
	e := entry{header: r.header}
	off := r.at.off + r.at.size - int64(len(r.sums))*block
	for first := int64(0); first < r.header.Length; first += maxWindow {
		n := min(maxWindow, int64(len(r.sums))*block-first)
		got, err := f.ReadAt(window[:n], off+first)
		if int64(got) < n {
			if errors.Is(err, io.EOF) {
				return false, nil
			}
			return false, err
		}
		if err := verify(&e, window[:n], r.sums, first); err != nil {
			if errors.Is(err, moraine.Corrupt) {
				return false, nil
			}
			return false, err
		}
	}
	return true, nil
}
