package disk

import (
	"encoding/binary"
	"fmt"
	"path"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/internal/vfs"
)

// The format of a segment's first block; docs/formats/segment.md describes it.
const (
	segmentMagic   = "MRNSEGMT"
	segmentVersion = 1
	segmentSuffix  = ".seg"
)

// segment is one file of the log. Records are appended to the active one; the
// others are sealed.
type segment struct {
	number uint64
	path   string
	size   int64 // bytes, as allocated

	// Guarded by appender.mu while the segment is active, and fixed once it is
	// sealed and ops is 0.
	end     int64  // where the next record goes
	lastSeq uint64 // of the records appended
	ops     int    // records appended whose operation is not over
	sealed  bool

	// complete says that the index knows all that the segment's records say, and
	// that the space of what they made dead has durably been given back; settled,
	// that the index knows so durably: the segment need not be scanned when the
	// device is opened, nor be there. Only the reclaimer writes them.
	complete, settled bool

	live atomic.Int64 // bytes of records that the index names
	dead atomic.Int64 // bytes of dead records whose space is not given back yet

	syncs syncGroup

	mu      sync.Mutex // guards what follows; held while the file is opened
	file    vfs.File   // nil until used
	refs    int
	retired bool // removed from the directory
}

func newSegment(dir string, number uint64) *segment {
	return &segment{number: number, path: path.Join(dir, segmentsDir, segmentName(number)), syncs: newSyncGroup()}
}

func segmentName(number uint64) string { return fmt.Sprintf("%016x%s", number, segmentSuffix) }

// parseSegmentName returns the number of a segment file.
func parseSegmentName(name string) (uint64, bool) {
	hex, ok := strings.CutSuffix(name, segmentSuffix)
	if !ok || len(hex) != 16 {
		return 0, false
	}
	n, err := strconv.ParseUint(hex, 16, 64)
	return n, err == nil && n != 0
}

// acquire returns the segment's file, open until release, opening it on first
// use. ok is false where the segment has been removed.
func (s *segment) acquire(fsys vfs.FS) (f vfs.File, ok bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.retired {
		return nil, false, nil
	}
	if s.file == nil {
		if s.file, err = fsys.Open(s.path, vfs.Write|vfs.Direct); err != nil {
			return nil, true, err
		}
	}
	s.refs++
	return s.file, true, nil
}

func (s *segment) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refs--
	s.closeIfUnused()
}

// retire closes the file as soon as nobody uses it.
func (s *segment) retire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retired = true
	s.closeIfUnused()
}

func (s *segment) closeIfUnused() {
	if s.retired && s.refs == 0 && s.file != nil {
		// Nothing that was written through it depends on this close: what was
		// acknowledged is synced.
		_ = s.file.Close()
		s.file = nil
	}
}

// segmentHead is what the first block of a segment says. It repeats the
// device's identity, so that either can be told from the other if one is lost.
type segmentHead struct {
	identity Identity
	number   uint64
	size     int64
}

func (h *segmentHead) encode(dst []byte) {
	clear(dst)
	copy(dst, segmentMagic)
	le := binary.LittleEndian
	le.PutUint16(dst[8:], segmentVersion)
	copy(dst[16:], h.identity.Cluster[:])
	copy(dst[32:], h.identity.Device[:])
	copy(dst[48:], h.identity.salt[:])
	le.PutUint64(dst[64:], h.number)
	le.PutUint64(dst[72:], uint64(h.size))
	le.PutUint32(dst[stampSumAt:], crc.Sum(dst[:stampSumAt]))
}

func decodeSegmentHead(p []byte) (segmentHead, error) {
	var h segmentHead
	if err := checkStamp(p, segmentMagic, segmentVersion); err != nil {
		return h, err
	}
	h.identity.Cluster = moraine.UUID(p[16:32])
	h.identity.Device = moraine.UUID(p[32:48])
	h.identity.salt = [saltSize]byte(p[48:64])
	h.number = binary.LittleEndian.Uint64(p[64:])
	h.size = int64(binary.LittleEndian.Uint64(p[72:]))
	return h, nil
}
