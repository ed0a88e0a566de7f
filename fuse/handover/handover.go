// Package handover has the state of a mount that outlives its daemon: what the next daemon needs to
// go on with the same kernel. It is a file without a name, in memory, that the supervisor keeps open
// and gives to each daemon. It decides nothing.
//
// The file has a header, and then slots of a fixed size. A slot is written by one call within one
// page, so a daemon that is killed leaves it whole. RFC 0032 says what the slots mean.
//
// One path through it: the supervisor calls Create -> a daemon calls Open, which returns the slots of
// the daemon before it -> while it runs it calls Put and Drop -> the next daemon opens the file.
package handover

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/morainefs/moraine"
	"golang.org/x/sys/unix"
)

// version is that of the file. A daemon refuses another one: the mount must be unmounted.
const version = 1

// Header is the part of the state that the whole mount has.
type Header struct {
	Version uint32
	// InitLen and ReplyLen are the bytes used of Init, the kernel's first request, and of Reply, the
	// answer to it. The kernel sends that request only once.
	InitLen, ReplyLen uint32
	_                 uint32
	Init, Reply       [256]byte
	// Life counts the daemons that have begun, from 1.
	Life uint64
	// Nonce finds the session at the service, Session is its number.
	Nonce   [16]byte
	Session uint64
}

// Kind says what a slot describes.
type Kind uint32

const (
	// Free is an unused slot.
	Free Kind = iota
	// OpenFile is an open file: Inode, Handle, Flags, and Unique of the request that opened it.
	OpenFile
	// Kept is a file that may have lost its last name while it was open. The session owns it.
	Kept
	// Paged is a file of which the kernel may have pages.
	Paged
	// Dirty is a file with written bytes that may not be committed.
	Dirty
	// Lock is a locked range of a file, through Handle.
	Lock
)

// The flags of a slot.
const (
	Writes   uint32 = 1 << iota // OpenFile: opened for writing
	Direct                      // OpenFile: reads go past the pages
	HasPages                    // OpenFile: mappings or reads fill pages
	Sync                        // OpenFile: opened with O_SYNC or O_DSYNC
	Flock                       // Lock: by flock
	Write                       // Lock: excludes all others
)

// Slot is one record.
type Slot struct {
	Kind          Kind
	Flags         uint32
	Inode, Handle uint64
	Unique        uint64
	Owner         uint64
	Start, End    uint64
	PID           uint32
	_             uint32
}

const (
	headerBytes = 4096
	slotBytes   = 64 // a divisor of the page
)

// Create makes a state for a mount. The file is in memory.
func Create(h Header) (*os.File, error) {
	fd, err := unix.MemfdCreate("moraine-mount", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), "state of a mount")
	h.Version = version
	if err := writeHeader(f, h); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func writeHeader(f *os.File, h Header) error {
	var b bytes.Buffer
	if err := binary.Write(&b, binary.LittleEndian, h); err != nil {
		return err
	}
	_, err := f.WriteAt(b.Bytes(), 0)
	return err
}

// ReadHeader reads the header.
func ReadHeader(f *os.File) (h Header, err error) {
	b := make([]byte, binary.Size(h))
	if _, err := f.ReadAt(b, 0); err != nil {
		return h, fmt.Errorf("the state of the mount: %w", err)
	}
	if err := binary.Read(bytes.NewReader(b), binary.LittleEndian, &h); err != nil {
		return h, err
	}
	if h.Version != version || h.InitLen > uint32(len(h.Init)) || h.ReplyLen > uint32(len(h.Reply)) {
		return h, &moraine.Error{Op: "handover", Kind: moraine.Unimplemented, Err: fmt.Errorf(
			"the mount was made by a version whose state this one does not read (%d, not %d): unmount it, and mount it again", h.Version, version)}
	}
	return h, nil
}

// Update changes the header. Only one process at a time may do so.
func Update(f *os.File, change func(*Header)) error {
	h, err := ReadHeader(f)
	if err != nil {
		return err
	}
	change(&h)
	return writeHeader(f, h)
}

// State is the slots, for the daemon that serves now. A nil State, of a mount without a supervisor,
// keeps nothing. Safe for concurrent use.
type State struct {
	file *os.File

	mu     sync.Mutex // guards the fields below
	free   []int64    // offsets
	end    int64      // offset after the last slot
	failed error      // the first error of a write
}

// Place is where a slot is; 0: nowhere.
type Place int64

// At is a slot with its place.
type At struct {
	Slot
	Place Place
}

// Open reads the slots that the daemon before has left.
func Open(f *os.File) (*State, []At, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	s := &State{file: f, end: headerBytes}
	var all []At
	b := make([]byte, max(0, st.Size()-headerBytes)/slotBytes*slotBytes)
	if _, err := f.ReadAt(b, headerBytes); len(b) > 0 && err != nil {
		return nil, nil, fmt.Errorf("the state of the mount: %w", err)
	}
	for ; len(b) >= slotBytes; b = b[slotBytes:] {
		var slot Slot
		if err := binary.Read(bytes.NewReader(b[:slotBytes]), binary.LittleEndian, &slot); err != nil {
			return nil, nil, err
		}
		if slot.Kind == Free {
			s.free = append(s.free, s.end)
		} else {
			all = append(all, At{slot, Place(s.end)})
		}
		s.end += slotBytes
	}
	return s, all, nil
}

// Put writes a slot, and returns where.
func (s *State) Put(slot Slot) Place {
	if s == nil {
		return 0
	}
	s.mu.Lock()
	at := s.end
	if n := len(s.free); n > 0 {
		at, s.free = s.free[n-1], s.free[:n-1]
	} else {
		s.end += slotBytes
	}
	s.mu.Unlock()
	s.write(at, slot)
	return Place(at)
}

// Drop frees a slot. Place 0 does nothing.
func (s *State) Drop(p Place) {
	if s == nil || p == 0 {
		return
	}
	s.write(int64(p), Slot{})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = append(s.free, int64(p))
}

func (s *State) write(at int64, slot Slot) {
	var b [slotBytes]byte
	n := binary.LittleEndian
	n.PutUint32(b[0:], uint32(slot.Kind))
	n.PutUint32(b[4:], slot.Flags)
	for i, v := range []uint64{slot.Inode, slot.Handle, slot.Unique, slot.Owner, slot.Start, slot.End} {
		n.PutUint64(b[8+8*i:], v)
	}
	n.PutUint32(b[56:], slot.PID)
	if _, err := s.file.WriteAt(b[:], at); err != nil { // there is no memory
		s.mu.Lock()
		defer s.mu.Unlock()
		s.failed = cmp.Or(s.failed, err)
	}
}

// Err returns the first error of a write: what the next daemon finds is then incomplete.
func (s *State) Err() error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}
