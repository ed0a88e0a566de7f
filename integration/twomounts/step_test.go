package twomounts_test

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"golang.org/x/sys/unix"
)

// step is one step. It names all it needs, so that any of the steps before it can be
// left out.
type step struct {
	op    *operation
	mount int
	// stays: it uses only what its own mount has open. unseen: the other mount does not
	// look at its names.
	stays, unseen bool
	as            user
	umask         int
	// slot and slot2 are numbers of open files.
	slot, slot2 int
	path, path2 string
	name        string
	flags       int
	mode        uint32
	off, off2   int64
	n           int
	seed        uint64
}

// String returns all that a reader needs to make the calls of a step by hand.
func (s *step) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%c %s", 'A'+s.mount, s.op.name)
	for _, slot := range []int{s.slot, s.slot2}[:s.op.uses] {
		fmt.Fprintf(&b, " slot %d", slot)
	}
	for _, p := range []string{s.path, s.path2}[:s.op.paths] {
		fmt.Fprintf(&b, " %s", quote(p))
	}
	if s.op.opens {
		fmt.Fprintf(&b, " into slot %d", s.slot)
	}
	fmt.Fprintf(&b, " (flags %#x mode %#o off %d %d n %d seed %d %s", s.flags, s.mode, s.off, s.off2, s.n, s.seed, quote(s.name))
	if s.as.uid != 0 || s.umask != 0 {
		fmt.Fprintf(&b, " user %v umask %#o", s.as, s.umask)
	}
	b.WriteString(")")
	return b.String()
}

// quote shortens long names.
func quote(s string) string {
	if len(s) > 60 {
		return fmt.Sprintf("%q... (%d bytes)", s[:20], len(s))
	}
	return fmt.Sprintf("%q", s)
}

// user is who makes a call.
type user struct {
	uid, gid int
	groups   []uint32
}

var users = []user{{}, {1000, 100, []uint32{200}}, {1001, 200, nil}, {1002, 1002, []uint32{100}}}

// slots is how many files a list of steps may have open at one time.
const slots = 4

// generator makes the steps of a seed.
type generator struct {
	*rand.Rand
	dirs, leaves []string
	weights      []int
}

// oddNames are names of which a list of steps has some. The last two are not UTF-8.
var oddNames = []string{"with space", "new\nline", "größe-文件", strings.Repeat("n", 255), strings.Repeat("é", 127), "-rf", "*", "back\\slash",
	"\x01\x7f", "%s", "..x", "...", "#quote'\"", "ａ", "e\u0301", "\xff\xfe", "half \xc3"}

func stepsOf(seed uint64, n int) []step {
	g := &generator{Rand: rand.New(rand.NewPCG(seed, 77)), dirs: []string{"d0", "d1"}, leaves: []string{"a", "b", "c", "l", "d0", "d1"}}
	for range 2 {
		g.leaves = append(g.leaves, pick(g, oddNames))
	}
	for _, op := range operations { // each seed has other favorites
		w := op.weight
		if g.IntN(4) == 0 {
			w *= pick(g, []int{0, 3, 6})
		}
		g.weights = append(g.weights, w)
	}
	var list []step
	for _, d := range g.dirs {
		list = append(list, step{op: operationNamed("mkdir"), path: d, mode: pick(g, []uint32{0o777, 0o1777, 0o2775, 0o755})})
	}
	for slot := range slots { // most steps then have something to work on
		list = append(list, step{op: operationNamed("open"), mount: g.IntN(2), slot: slot, path: pick(g, g.leaves[:3]), flags: unix.O_RDWR | unix.O_CREAT, mode: 0o666})
	}
	for len(list) < n {
		list = append(list, g.step())
	}
	return list
}

func pick[T any](g *generator, of []T) T { return of[g.IntN(len(of))] }

// step makes a step. It makes all of its choices, whether the operation uses them or
// not: so a change of one operation changes no other step.
func (g *generator) step() step {
	s := step{mount: g.IntN(2), slot: g.IntN(slots), slot2: g.IntN(slots), path: g.path(), path2: g.path(), seed: g.Uint64() >> 40}
	if g.IntN(10) < 3 {
		s.as = pick(g, users)
	}
	if g.IntN(4) == 0 {
		s.umask = pick(g, []int{0o22, 0o77, 0o7})
	}
	s.mode = pick(g, []uint32{0o644, 0o755, 0o777, 0o600, 0o400, 0, 0o4755, 0o2755, 0o1777, 0o2770, 0o6711, 0o222, uint32(g.IntN(0o10000))})
	if s.mode&unix.S_ISGID != 0 { // without this right, a mount does not see who may keep the bit
		s.mode |= unix.S_IXGRP
		s.umask &^= unix.S_IXGRP
	}
	s.name = pick(g, []string{"user.a", "user.b", "user.größe", "user.", "trusted.t", "nonsense", "user." + strings.Repeat("x", 250), "user." + strings.Repeat("y", 251)})
	s.off, s.off2, s.n = g.offset(), g.offset(), g.length()
	total := 0
	for _, w := range g.weights {
		total += w
	}
	at := g.IntN(total)
	for i, w := range g.weights {
		if at -= w; at < 0 {
			s.op = &operations[i]
			break
		}
	}
	choice := g.Uint64()
	if len(s.op.flags) > 0 {
		s.flags = s.op.flags[choice%uint64(len(s.op.flags))]
	}
	return s
}

// path is a name in one of the directories, or a path that is wrong in some way.
func (g *generator) path() string {
	var p string
	for range []int{0, 0, 0, 0, 1, 1, 1, 2}[g.IntN(8)] {
		p += pick(g, g.dirs) + "/"
	}
	switch g.IntN(120) {
	case 0:
		return p + strings.Repeat("n", 256)
	case 1:
		return p + pick(g, g.leaves) + "/"
	case 2:
		return p + "."
	case 3:
		return p + ".."
	case 4:
		return p + pick(g, g.leaves) + "/x"
	case 5:
		return p + "l/" + pick(g, g.leaves)
	case 6:
		return ""
	case 7:
		return strings.Repeat("d0/../", 700) + "a" // more than PATH_MAX
	case 8, 9, 10, 11:
		return pick(g, g.dirs)
	}
	return p + pick(g, g.leaves)
}

// offset is a place in a small file, often near the end of a page, a chunk or a stripe.
func (g *generator) offset() int64 {
	at := pick(g, []int64{0, 0, 0, 1, 100, 4096, 8192, 12288, 64 << 10, 128 << 10, 192 << 10, 256 << 10, 700_000})
	return max(0, at+pick(g, []int64{0, 0, 0, 0, -1, 1, 7, -100, 4096, 5000}))
}

func (g *generator) length() int {
	return pick(g, []int{0, 1, 10, 100, 1000, 4096, 4097, 8192, 20_000, 65_536, 70_000, 131_072, 300_000})
}

// openFlags are flags of open, with which a file is often made.
var openFlags = func() (all []int) {
	for _, access := range []int{unix.O_RDWR, unix.O_RDWR, unix.O_RDONLY, unix.O_WRONLY} {
		for _, more := range []int{0, 0, unix.O_CREAT, unix.O_CREAT, unix.O_CREAT, unix.O_CREAT | unix.O_EXCL, unix.O_CREAT | unix.O_TRUNC,
			unix.O_CREAT | unix.O_APPEND, unix.O_APPEND, unix.O_TRUNC, unix.O_NOFOLLOW, unix.O_DIRECTORY, unix.O_CREAT | unix.O_SYNC,
			unix.O_CREAT | unix.O_DSYNC | unix.O_APPEND, unix.O_CREAT | unix.O_NOFOLLOW, unix.O_CREAT | unix.O_DIRECTORY, unix.O_NOATIME,
			unix.O_CREAT | unix.O_EXCL | unix.O_TRUNC | unix.O_APPEND} {
			all = append(all, access|more)
		}
	}
	return all
}()
