package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/morainefs/moraine"
	"golang.org/x/sys/unix"
)

// slot is a file of the node's tmpfs that one rank's part is copied into. The trainer and the
// agent map it shared. Its length never changes. A slot belongs to one user.
type slot struct {
	name string
	uid  uint32
	// owner names the rank that had it last. pool.mu guards it.
	owner string
	file  *os.File
	mem   []byte
	// readers counts those who have it mapped to read its part. shared says that somebody may have it
	// mapped of whom this agent does not know. Agent.mu guards both.
	readers int
	shared  bool
	// lent says that a reader has it. pool.mu guards it.
	lent bool
}

// fits reports whether s suits an owner better than another usable slot does.
func (s *slot) fits(owner string, other *slot) bool {
	if mine := s.owner == owner; mine != (other.owner == owner) {
		return mine
	}
	return len(s.mem) < len(other.mem)
}

// mapSlot maps a slot's file, which it closes if that fails.
func mapSlot(f *os.File, uid uint32, n int64) (*slot, error) {
	mem, err := unix.Mmap(int(f.Fd()), 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, errors.Join(&moraine.Error{Op: "map slot", Kind: moraine.NoSpace, Err: err}, f.Close())
	}
	// Huge pages and page tables that are there already are faster; without them it works too.
	_ = unix.Madvise(mem, unix.MADV_HUGEPAGE)
	_ = unix.Madvise(mem, unix.MADV_POPULATE_WRITE)
	return &slot{name: filepath.Base(f.Name()), uid: uid, file: f, mem: mem}, nil
}

func discardAll(slots []*slot) {
	for _, s := range slots {
		// Unlinked and unmapped in any case: an error here leaves memory that a restart removes.
		_ = os.Remove(s.file.Name())
		_ = unix.Munmap(s.mem)
		_ = s.file.Close()
	}
}

// leave ends the agent's use of a slot whose file stays for the next agent. Nobody in this process may read
// or write the slot any more. A second call does nothing.
func (s *slot) leave() {
	if s.mem == nil {
		return
	}
	_ = unix.Munmap(s.mem)
	_ = s.file.Close()
	s.mem = nil
}

// empty gives the pages of a slot back to the node, for all who have it mapped: without that, memory
// that a trainer keeps mapped for its next save would be missing beside the slots of the pool. What the
// slot has afterwards is zeros.
func (s *slot) empty() {
	punch(s.file, int64(len(s.mem)))
}

// punch gives the pages of a file back. Its length stays, so nobody who has it mapped faults: a write makes
// a page again.
func punch(f *os.File, n int64) {
	// Memory that cannot be given back now is given back when the last mapping ends.
	_ = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, n)
}

// removeSlot removes a file of the arenas that no agent has mapped, and gives its pages back: a trainer may
// have them mapped.
func removeSlot(path string) error {
	// What cannot be opened has its memory until the last mapping ends.
	if f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0); err == nil {
		if st, err := f.Stat(); err == nil && st.Mode().IsRegular() {
			punch(f, st.Size())
		}
		_ = f.Close() // it goes
	}
	return os.Remove(path)
}

// whole fails if somebody has cut the slot's file short: reading its memory would end the process.
func (s *slot) whole() error {
	st, err := s.file.Stat()
	if err == nil && st.Size() != int64(len(s.mem)) {
		err = &moraine.Error{Op: "agent.Seal", Ref: s.name, Kind: moraine.Corrupt,
			Err: fmt.Errorf("the trainer has changed the length of the slot from %d to %d bytes", len(s.mem), st.Size())}
	}
	return err
}
