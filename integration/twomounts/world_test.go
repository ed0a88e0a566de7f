package twomounts_test

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"unsafe"

	"golang.org/x/sys/unix"
)

// differs begins what a child says about a difference.
const differs = "DIFFERS"

// side is a tree with open files: that of a mount, or that on ext4.
type side struct {
	name string
	dir  string
	top  int // a descriptor of its root, -1 until a step needs it
	fds  [slots]int
	// opened is what the step has opened, -1 for nothing.
	opened int
}

func newSide(name, dir string) *side {
	s := &side{name: name, dir: dir + above + "top", top: -1, opened: -1}
	for i := range s.fds {
		s.fds[i] = -1
	}
	return s
}

// find opens the root. A mount that has not done so has nothing of it in its cache.
func (s *side) find() (err error) {
	if s.top < 0 {
		s.top, err = unix.Open(s.dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	}
	return err
}

// world is what the steps change. An open file is open on one mount, and on ext4.
type world struct {
	sides [3]*side // mounts A and B, and ext4
	// last is the mount whose files were last looked at or changed.
	last int
	// chosen are the open files that each step uses.
	chosen choices
}

// onExt4 is the number of that side.
const onExt4 = 2

// openedBy is the mount on which a slot is open, -1 for none.
func (w *world) openedBy(slot int) int {
	for m := range onExt4 {
		if w.sides[m].fds[slot] >= 0 {
			return m
		}
	}
	return -1
}

// take carries out a step on one mount and on ext4, and compares them.
func (w *world) take(number int, s *step) error {
	if c, ok := w.chosen[number]; ok {
		s.mount, s.slot, s.slot2 = c[0], c[1], c[2]
	} else {
		w.choose(s)
		w.chosen[number] = [3]int{s.mount, s.slot, s.slot2}
	}
	m := s.mount
	if by := w.openedBy(s.slot); s.op.uses > 0 && by >= 0 && by != m || s.op.uses == 2 && w.openedBy(s.slot2) == 1-m {
		return nil // another step that opened them is left out
	}
	for _, d := range []*side{w.sides[m], w.sides[onExt4]} {
		if err := d.find(); err != nil {
			return fmt.Errorf("%v: the root of %s: %w", s, d.name, err)
		}
	}
	fmt.Printf("step %d: %v", number, s)
	if s.op.opens && w.isSpecial(s.path) {
		fmt.Print(" (skipped: a special file)")
		return nil
	}
	if s.op.content {
		w.enter(m)
	}
	var got, want string
	s.as.do(s.umask, func() { got = careful(func() string { return s.op.do(w.sides[m], s) }) })
	s.as.do(s.umask, func() { want = s.op.do(w.sides[onExt4], s) })
	fmt.Print(": ", quote(want))
	if s.op.check != nil {
		if why := s.op.check(w.sides[m], w.sides[onExt4], s); why != "" {
			return fmt.Errorf("%v: %s", s, why)
		}
	} else if got != want && !s.retried(w.sides[m], got, want) {
		return fmt.Errorf("%v: %s: %s, ext4: %s", s, w.sides[m].name, quote(got), quote(want))
	}
	if w.sides[m].opened >= 0 {
		w.close(s.slot)
		for _, i := range []int{m, onExt4} {
			w.sides[i].fds[s.slot], w.sides[i].opened = w.sides[i].opened, -1
		}
	}
	if s.unseen {
		return nil
	}
	return w.lookFrom(1-m, s)
}

// choose makes a step that uses open files use those that are open, on one mount.
func (w *world) choose(s *step) {
	if s.op.uses == 0 {
		return
	}
	for i := range slots {
		if slot := (s.slot + i) % slots; w.openedBy(slot) >= 0 && (!s.stays || w.openedBy(slot) == s.mount) {
			s.slot, s.mount = slot, w.openedBy(slot)
			break
		}
	}
	for i := range slots {
		if slot := (s.slot2 + i) % slots; w.openedBy(slot) == s.mount && slot != s.slot {
			s.slot2 = slot
			return
		}
	}
	s.slot2 = s.slot
}

// retried repeats a call for a lock that a mount refuses and ext4 grants: a mount
// learns of the last close of a file after the close has returned.
func (s *step) retried(d *side, got, want string) bool {
	for try := 0; s.op.locks && got == unix.EAGAIN.Error() && try < 1000; try++ {
		_ = unix.Nanosleep(&unix.Timespec{Nsec: 2e6}, nil)
		got = s.op.do(d, s)
	}
	return got == want
}

// enter is called before a mount looks at or changes what files have. What the other
// mount has written, it first syncs. An open file shows that after its next stat.
func (w *world) enter(m int) {
	if w.last == m {
		return
	}
	for _, fd := range w.sides[w.last].fds {
		if fd >= 0 {
			_ = unix.Fsync(fd)
		}
	}
	w.last = m
	for _, fd := range w.sides[m].fds {
		if fd >= 0 {
			_ = unix.Fstat(fd, new(unix.Stat_t))
		}
	}
}

// inodeOf is the inode of an open file on ext4.
func (w *world) inodeOf(slot int) uint64 {
	var st unix.Stat_t
	_ = unix.Fstat(w.sides[onExt4].fds[slot], &st)
	return st.Ino
}

// isSpecial reports whether an open would wait for another process (a fifo), or is
// refused by design (a device: mounts are nodev).
func (w *world) isSpecial(path string) bool {
	var st unix.Stat_t
	if unix.Fstatat(w.sides[onExt4].top, path, &st, 0) != nil {
		return false
	}
	f := st.Mode & unix.S_IFMT
	return f == unix.S_IFIFO || f == unix.S_IFCHR || f == unix.S_IFBLK
}

// close closes an open file on both sides.
func (w *world) close(slot int) {
	for _, d := range w.sides {
		if d.fds[slot] >= 0 {
			_ = unix.Close(d.fds[slot])
			d.fds[slot] = -1
		}
	}
}

func (w *world) closeAll() {
	for slot := range slots {
		w.close(slot)
	}
}

// lookFrom compares the names of a step from the other mount. It sees each change at
// once, but for what is written and not synced.
func (w *world) lookFrom(m int, s *step) error {
	if err := w.sides[m].find(); err != nil {
		return fmt.Errorf("%v: the root of %s: %w", s, w.sides[m].name, err)
	}
	for _, p := range []string{s.path, s.path2}[:s.op.paths] {
		unsynced := false
		var st unix.Stat_t
		if unix.Fstatat(w.sides[onExt4].top, p, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
			for slot := range slots {
				unsynced = unsynced || w.openedBy(slot) == 1-m && w.inodeOf(slot) == st.Ino
			}
		}
		got, want := lstat(w.sides[m].top, p, unsynced), lstat(w.sides[onExt4].top, p, unsynced)
		if got != want {
			return fmt.Errorf("%v: then %q from %s: %s, ext4: %s", s, p, w.sides[m].name, got, want)
		}
	}
	return nil
}

// careful makes a call. Memory that a mount cannot fill is an answer too.
func careful(call func() string) (answer string) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			answer = fmt.Sprint(r)
		}
	}()
	return call()
}

// do calls fn as the user, who then is root again.
func (u user) do(umask int, fn func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	u.become()
	unix.Umask(umask)
	defer func() {
		unix.Umask(0)
		user{}.become()
	}()
	fn()
}

// become changes the thread's user. The kernel then takes away root's rights to files.
func (u user) become() {
	var groups unsafe.Pointer
	if len(u.groups) > 0 {
		groups = unsafe.Pointer(&u.groups[0])
	}
	_, _, _ = unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(u.groups)), uintptr(groups), 0)
	_, _, _ = unix.RawSyscall(unix.SYS_SETFSGID, uintptr(u.gid), 0, 0)
	_, _, _ = unix.RawSyscall(unix.SYS_SETFSUID, uintptr(u.uid), 0, 0)
}
