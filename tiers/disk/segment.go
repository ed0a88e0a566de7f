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

// segment is one file of the log. The device appends records to the active one; the
// others are sealed.
type segment struct {
	number uint64
	path   string
	size   int64 // bytes, as allocated

	// Guarded by appender.mu while the segment is active. Fixed once it is sealed
	// and ops is 0.
	end     int64  // where the next record goes
	lastSeq uint64 // the last of the appended records
	ops     int    // appended records whose operation still runs
	sealed  bool

	// complete means that the index knows all that the segment's records say, and
	// that the space of what they made dead is durably reclaimed. settled means
	// that the index knows this durably: Open need not scan the segment, and the
	// segment need not exist. Only the reclaimer writes them.
	complete, settled bool

	live atomic.Int64 // bytes of records that the index names
	dead atomic.Int64 // bytes of dead records whose space is not reclaimed yet

	syncs syncGroup

	mu      sync.Mutex // guards the fields below; held while the file is opened
	file    vfs.File   // nil until first use
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

// acquire returns the segment's file, open until release. It opens the file on
// first use. ok is false if the segment was removed.
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

// retire closes the file as soon as it has no users.
func (s *segment) retire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retired = true
	s.closeIfUnused()
}

func (s *segment) closeIfUnused() {
	if s.retired && s.refs == 0 && s.file != nil {
		// No write depends on this close: everything acknowledged is synced.
		_ = s.file.Close()
		s.file = nil
	}
}

// segmentHead is the contents of a segment's first block. It repeats the device's
// identity, so that the identity and the segments can each be matched if the other
// is lost.
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
