package mountkills_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// unlinks: each program makes files and removes them, and has the other program's files open or
// mapped meanwhile. These stay whole.
var unlinks = operation{
	name: "unlink while open",
	program: func(p *program) (func() error, func() error, error) {
		u := &unlinker{program: p, seen: map[uint64]bool{}}
		return u.step, func() error {
			for _, h := range u.held {
				_ = p.report(event{Call: "read all"}, func(*event) error { return h.compare(0, len(h.model)) })
				u.close(h)
			}
			return nil
		}, nil
	},
	check: func(c *cell) (wrong []string) {
		for prog := range 2 {
			removed := 0
			for _, e := range c.of(prog, "read removed") {
				if e.Err == "" {
					removed++
				}
			}
			if removed == 0 {
				wrong = append(wrong, fmt.Sprintf("mount %d read no removed file", prog))
			}
		}
		return wrong
	},
}

// unlinker is the program.
type unlinker struct {
	*program
	made int64
	// names are the files that it has not removed, held are those of the other program, and seen are
	// all that it ever had open: it changes them, so their content says nothing a second time.
	names []string
	held  []*heldFile
	seen  map[uint64]bool
}

// heldFile is one that another program removes.
type heldFile struct {
	f      *os.File
	mapped []byte // nil: it is not mapped
	model  []byte
}

const (
	mostHeld  = 8
	mostNames = 3
)

func (u *unlinker) step() error {
	switch n := u.r.IntN(10); {
	case n < 3:
		u.make()
	case n < 5 && len(u.held) < mostHeld:
		return u.hold()
	case n < 6 && len(u.held) == mostHeld:
		i := u.r.IntN(mostHeld)
		u.close(u.held[i])
		u.held = append(u.held[:i], u.held[i+1:]...)
	case n < 7 && len(u.held) > 0:
		u.write(u.held[u.r.IntN(len(u.held))])
	case len(u.held) > 0:
		u.look(u.held[u.r.IntN(len(u.held))])
	}
	return nil
}

// make makes a file. One of those before loses its name, by an unlink or by the rename of the new one.
func (u *unlinker) make() {
	u.made++
	version := 2*u.made + int64(u.Prog)
	err := u.report(event{Call: "make", Writes: true, Changes: true, Made: true}, func(*event) error {
		return os.WriteFile(u.mine("new"), words(version, 0, u.Size), 0o644)
	})
	if err != nil {
		return
	}
	if len(u.names) == mostNames && u.r.IntN(2) == 0 {
		_ = u.report(event{Call: "replace", Changes: true}, func(*event) error { return unix.Rename(u.mine("new"), u.names[0]) })
		return
	}
	if len(u.names) == mostNames {
		// Its rename may be lost, with what was made in a delegated directory.
		_ = u.report(event{Call: "unlink", Changes: true, Made: true}, func(*event) error { return unix.Unlink(u.names[0]) })
		u.names = u.names[1:]
	}
	name := u.at(fmt.Sprintf("file%d-%d", u.Prog, u.made))
	if u.report(event{Call: "name", Changes: true}, func(*event) error { return unix.Rename(u.mine("new"), name) }) == nil {
		u.names = append(u.names, name)
	}
}

// hold opens a file of the other program, and reads a word of it.
func (u *unlinker) hold() error {
	var names []string
	_ = u.report(event{Call: "list"}, func(*event) (err error) {
		names, err = filepath.Glob(u.its("file") + "-*")
		return err
	})
	if len(names) == 0 {
		return nil
	}
	h := &heldFile{}
	_ = u.report(event{Call: "hold"}, func(e *event) (err error) {
		flags := []int{os.O_RDONLY, os.O_RDWR}[u.r.IntN(2)]
		if h.f, err = os.OpenFile(names[u.r.IntN(len(names))], flags, 0); err != nil {
			if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESTALE) {
				err = nil // it was removed since
			}
			return err
		}
		var st unix.Stat_t
		if err := unix.Fstat(int(h.f.Fd()), &st); err != nil || u.seen[st.Ino] {
			return errors.Join(err, h.f.Close())
		}
		u.seen[st.Ino] = true
		b := make([]byte, 8)
		if _, err := h.f.ReadAt(b, 0); err != nil {
			return wrongBytes("a file without content: " + err.Error())
		}
		if e.Low, e.High, err = versions(b, 0); err != nil {
			return err
		}
		h.model = words(e.Low, 0, u.Size)
		if flags == os.O_RDONLY && u.r.IntN(2) == 0 {
			h.mapped, err = unix.Mmap(int(h.f.Fd()), 0, int(u.Size), unix.PROT_READ, unix.MAP_SHARED)
		}
		return err
	})
	if h.model != nil {
		u.held = append(u.held, h)
	}
	return nil
}

// compare reads a range.
func (h *heldFile) compare(off, n int) error {
	b := make([]byte, n)
	if h.mapped != nil {
		copy(b, h.mapped[off:])
	} else if got, err := h.f.ReadAt(b, int64(off)); err != nil {
		return fmt.Errorf("%d of %d bytes: %w", got, n, err)
	}
	if want := h.model[off : off+n]; !bytes.Equal(b, want) {
		for i := range b {
			if b[i] != want[i] {
				return wrongBytes(fmt.Sprintf("%d of %d bytes at %d differ from %d on: %x, and not %x", n, len(h.model), off, i, b[i:min(n, i+8)], want[i:min(n, i+8)]))
			}
		}
	}
	return nil
}

// look reads a range of a file, which may be removed.
func (u *unlinker) look(h *heldFile) {
	var st unix.Stat_t
	if u.report(event{Call: "fstat"}, func(*event) error { return unix.Fstat(int(h.f.Fd()), &st) }) != nil {
		return
	}
	call := "read held"
	if st.Nlink == 0 {
		call = "read removed"
	}
	off := 8 * u.r.IntN(len(h.model)/8)
	n := 8 * (1 + u.r.IntN((len(h.model)-off)/8))
	_ = u.report(event{Call: call}, func(*event) error { return h.compare(off, n) })
}

// write changes a range of a file, and syncs it. What is lost it writes again.
func (u *unlinker) write(h *heldFile) {
	if flags, err := unix.FcntlInt(h.f.Fd(), unix.F_GETFL, 0); err != nil || flags&unix.O_ACCMODE == unix.O_RDONLY {
		return
	}
	off := 8 * u.r.IntN(len(h.model)/8)
	n := 8 * (1 + u.r.IntN((len(h.model)-off)/8))
	copy(h.model[off:], words(int64(1000+u.r.IntN(1000)), int64(off), int64(n)))
	for range 10 {
		err := u.report(event{Call: "write held"}, func(*event) error {
			_, err := h.f.WriteAt(h.model[off:off+n], int64(off))
			return err
		})
		if err == nil && u.report(event{Call: "fsync held", Writes: true}, func(*event) error { return h.f.Sync() }) == nil {
			return
		}
	}
}

func (u *unlinker) close(h *heldFile) {
	if h.mapped != nil {
		_ = unix.Munmap(h.mapped)
	}
	_ = u.report(event{Call: "close held", Writes: true}, func(*event) error { return h.f.Close() })
}
