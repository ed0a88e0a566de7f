package chunkserver

import (
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"path"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/transport/wire"
)

// scrubFile is where a device stores the position of its scrub. It is never synced.
// If a power cut loses or tears it, the scrub repeats a pass; no stored data
// depends on it.
const scrubFile = "scrub"

// scrubState is the progress of the scrub of a device.
type scrubState struct {
	now  chan struct{} // a person requested it
	rate uint64

	mu    sync.Mutex // guards the fields below
	asked bool
	rec   scrubRecord
}

// scrubRecord is the state stored on the device. Times are seconds of the wall
// clock.
type scrubRecord struct {
	since              int64 // first use of the device
	lastDone           int64
	lastBytes, lastBad uint64
	started            int64 // of the running pass; 0: none
	next               moraine.StripeID
	chunks, bytes, bad uint64
}

func newScrubState(rate int64) *scrubState {
	return &scrubState{now: make(chan struct{}, 1), rate: uint64(max(rate, 0))}
}

// start makes a pass begin now.
func (s *scrubState) start() {
	select {
	case s.now <- struct{}{}:
	default:
	}
}

// ask notes that a person requested a pass.
func (s *scrubState) ask() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = true
}

// due reports whether a pass must begin or continue. A device that was never
// scrubbed waits for a part of the interval that its UUID determines. A new cluster
// therefore does not read all its devices at once.
func (s *scrubState) due(now time.Time, interval time.Duration, uuid moraine.UUID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asked || s.rec.started != 0 {
		return true
	}
	if interval <= 0 {
		return false
	}
	at := time.Unix(s.rec.lastDone, 0).Add(interval)
	if s.rec.lastDone == 0 {
		part := time.Duration(binary.BigEndian.Uint16(uuid[:2])) * (interval / (1 << 16))
		at = time.Unix(s.rec.since, 0).Add(part)
	}
	return !now.Before(at)
}

// begin begins a pass, or continues the running one, and returns its position.
func (s *scrubState) begin(now time.Time) moraine.StripeID {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = false
	if s.rec.started == 0 {
		s.rec.started, s.rec.next, s.rec.chunks, s.rec.bytes, s.rec.bad = now.Unix(), 0, 0, 0, 0
	}
	return s.rec.next
}

func (s *scrubState) advance(next moraine.StripeID, chunks, bytes, bad uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &s.rec
	r.next, r.chunks, r.bytes, r.bad = next, r.chunks+chunks, r.bytes+bytes, r.bad+bad
}

func (s *scrubState) end(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &s.rec
	r.lastDone, r.lastBytes, r.lastBad = now.Unix(), r.bytes, r.bad
	r.started, r.next = 0, 0
}

// describe describes the state for the metadata service.
func (s *scrubState) describe() *wire.Scrub {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &s.rec
	return &wire.Scrub{LastDone: r.lastDone, LastBytes: r.lastBytes, LastBad: r.lastBad, Running: r.started != 0, Started: r.started,
		Chunks: r.chunks, Bytes: r.bytes, Bad: r.bad, BytesPerSecond: s.rate}
}

// The file: magic, version, then the fields of scrubRecord, little-endian, 8 bytes
// each, and the CRC32C of everything before it.
const (
	scrubMagic   = "MRSC"
	scrubVersion = 1
	scrubSize    = 4 + 4 + 9*8 + 4
)

func (r *scrubRecord) encode() []byte {
	le := binary.LittleEndian
	b := append(make([]byte, 0, scrubSize), scrubMagic...)
	b = le.AppendUint32(b, scrubVersion)
	for _, v := range []uint64{uint64(r.since), uint64(r.lastDone), r.lastBytes, r.lastBad, uint64(r.started), uint64(r.next), r.chunks, r.bytes, r.bad} {
		b = le.AppendUint64(b, v)
	}
	return le.AppendUint32(b, crc.Sum(b))
}

var errScrubFile = errors.New("not a scrub file, or a damaged one")

// decode decodes what encode wrote; on error r is unchanged.
func (r *scrubRecord) decode(b []byte) error {
	le := binary.LittleEndian
	if len(b) != scrubSize || string(b[:4]) != scrubMagic || le.Uint32(b[4:]) != scrubVersion ||
		crc.Sum(b[:scrubSize-4]) != le.Uint32(b[scrubSize-4:]) {
		return errScrubFile
	}
	at := func(i int) uint64 { return le.Uint64(b[8+8*i:]) }
	*r = scrubRecord{since: int64(at(0)), lastDone: int64(at(1)), lastBytes: at(2), lastBad: at(3), started: int64(at(4)),
		next: moraine.StripeID(at(5)), chunks: at(6), bytes: at(7), bad: at(8)}
	return nil
}

// load reads the state of a device; a missing or damaged one starts from the
// beginning.
func (s *scrubState) load(fsys vfs.FS, dir string, now time.Time) {
	rec := scrubRecord{since: now.Unix()}
	if f, err := fsys.Open(path.Join(dir, scrubFile), vfs.Read); err == nil {
		b := make([]byte, scrubSize)
		if n, err := f.ReadAt(b, 0); n == scrubSize && (err == nil || errors.Is(err, io.EOF)) {
			_ = rec.decode(b) // damaged: start from the beginning
		}
		_ = f.Close()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rec = rec
}

// save stores the state, if the device accepts it.
func (s *scrubState) save(fsys vfs.FS, dir string, log *slog.Logger) {
	s.mu.Lock()
	b := s.rec.encode()
	s.mu.Unlock()
	name := path.Join(dir, scrubFile)
	f, err := fsys.Open(name+".new", vfs.Create|vfs.Write|vfs.Truncate)
	if err == nil {
		_, err = f.WriteAt(b, 0)
		err = errors.Join(err, f.Close())
	}
	if err == nil {
		err = fsys.Rename(name+".new", name)
	}
	if err != nil {
		log.Warn("scrub position write failed", "device", dir, "err", err)
	}
}
