package histories_test

import (
	"fmt"
	"slices"
	"strings"

	"github.com/anishathalye/porcupine"

	"github.com/morainefs/moraine/transport/wire"
)

// An arena is two directories of three names each, whose operations touch nothing
// else: a history is checked one arena at a time. Its state is what each of the six
// names (slots) stands for; names of one file share a node. Nodes are never changed.
type arena [slots]*node

const (
	dirsOfArena = 2
	namesOfDir  = 3
	slots       = dirsOfArena * namesOfDir
)

var names = [namesOfDir]string{"a", "b", "c"}

// node is a file, a symbolic link, or a directory with nothing in it.
type node struct {
	id     uint64 // 0: made by an operation whose answer nobody saw, and not seen since
	dir    bool
	mode   uint32
	target string // of a symbolic link
	cells  []cell
	xattr  string // of user.x
	marked bool   // it has user.x
}

// cell is what a byte of a file is made of; the zero cell is a hole.
type cell struct {
	stripe uint64
	at     uint64
}

// verb is what an operation does.
type verb int

const (
	create verb = iota
	mkdir
	lookup
	stat
	readdir
	rename
	link
	unlink
	rmdir
	rmtree
	chmod
	truncate
	setxattr
	getxattr
	commit
	clone
	extents
	save
	symlink
	concat
	verbs
)

var verbNames = [verbs]string{"create", "mkdir", "lookup", "stat", "readdir", "rename", "link", "unlink", "rmdir",
	"rmtree", "chmod", "truncate", "setxattr", "getxattr", "commit", "clone", "extents", "save", "symlink", "concat"}

// input is one operation.
type input struct {
	verb       verb
	slot, to   int    // of a name
	id, source uint64 // of an inode; of save: the file without a name, and what it is a clone of, if anything
	second     uint64 // of concat: the other source
	consume    uint64 // of concat: a directory that goes; 0: none
	dir        int
	byPath     bool // of lookup
	exclusive  bool
	noReplace  bool
	exchange   bool
	mode       uint32
	size       int
	value      string // of setxattr; of symlink what it stands for
	create     bool   // of setxattr
	replace    bool   // of setxattr, and of save
	remove     bool
	commit     wire.CommitMode
	offset     int
	stripe     uint64
	length     int
}

// output is what an operation was answered.
type output struct {
	unknown bool   // no answer, or one that says nothing
	err     string // "" for success
	id      uint64
	dir     bool
	mode    uint32
	target  string // of a symbolic link
	nlink   uint32
	size    uint64
	value   string
	cells   []cell
	entries []output // of readdir, by name
	name    string   // of an entry
}

// The errors that an answer may have; any other says nothing.
const (
	notFound   = "not found"
	exists     = "already exists"
	isDir      = "is a directory"
	notDir     = "not a directory"
	denied     = "permission denied"
	noAttr     = "no such attribute"
	badRequest = "invalid argument"
)

// model of one arena, for porcupine.
var model = porcupine.Model{
	Init:  func() any { return arena{} },
	Step:  func(s, in, out any) (bool, any) { return s.(arena).step(in.(input), out.(output)) },
	Equal: func(a, b any) bool { return a.(arena).equal(b.(arena)) },
	DescribeOperation: func(in, out any) string {
		i, o := in.(input), out.(output)
		return fmt.Sprintf("%s %+v -> %+v", verbNames[i.verb], i, o)
	},
	DescribeState: func(s any) string {
		var b strings.Builder
		for i, n := range s.(arena) {
			if n != nil {
				fmt.Fprintf(&b, "%d/%s=%+v ", i/namesOfDir, names[i%namesOfDir], *n)
			}
		}
		return b.String()
	},
}

func (a arena) equal(b arena) bool {
	for i := range a {
		if (a[i] == nil) != (b[i] == nil) || a[i] != nil && !a[i].equal(b[i]) {
			return false
		}
		for j := range i {
			if (a[i] == a[j]) != (b[i] == b[j]) {
				return false
			}
		}
	}
	return true
}

func (n *node) equal(o *node) bool {
	return n.id == o.id && n.dir == o.dir && n.mode == o.mode && n.target == o.target && n.xattr == o.xattr && n.marked == o.marked && slices.Equal(n.cells, o.cells)
}

// find returns the node of an inode number, nil if there is none.
func (a arena) find(id uint64) *node {
	for _, n := range a {
		if n != nil && n.id == id {
			return n
		}
	}
	return nil
}

// swap has every name of one node stand for another; nil removes them.
func (a arena) swap(old, new *node) arena {
	for i := range a {
		if a[i] == old {
			a[i] = new
		}
	}
	return a
}

func (a arena) links(n *node) (count uint32) {
	for _, o := range a {
		if o == n {
			count++
		}
	}
	return count
}

// is reports whether n may be the inode id, and returns the state in which it is.
func (a arena) is(n *node, id uint64) (bool, arena, *node) {
	if n.id == id {
		return true, a, n
	}
	if n.id != 0 || a.find(id) != nil {
		return false, a, n
	}
	known := *n
	known.id = id
	return true, a.swap(n, &known), &known
}

// described reports whether the answer describes n.
func (a arena) described(n *node, out output) (bool, arena) {
	ok, a, n := a.is(n, out.id)
	if !ok || n.dir != out.dir || n.mode != out.mode || n.target != out.target {
		return false, a
	}
	return n.dir || a.links(n) == out.nlink && uint64(len(n.cells)) == out.size, a
}

// step says whether the operation may have been answered so, and what it leaves.
// One of an unknown answer is carried out whatever it would have been answered;
// that it never took effect is the same as that it did after everything else.
func (a arena) step(in input, out output) (bool, arena) {
	err, next, answer := a.apply(in, out)
	if out.unknown {
		return true, next
	}
	if err != out.err {
		return false, a
	}
	if err != "" || answer == nil {
		return true, next
	}
	return answer(next)
}

// describes is the answer that tells of n.
func describes(n *node, out output) func(arena) (bool, arena) {
	return func(a arena) (bool, arena) { return a.described(n, out) }
}

// apply carries an operation out: with which error, what it leaves, and what holds
// the answer against that.
func (a arena) apply(in input, out output) (err string, next arena, answer func(arena) (bool, arena)) {
	switch in.verb {
	case create, mkdir, symlink:
		return a.applyCreate(in, out)
	case lookup:
		if n := a[in.slot]; n != nil {
			return "", a, describes(n, out)
		}
		return notFound, a, nil
	case readdir:
		return "", a, func(a arena) (bool, arena) { return a.listed(in.dir, out.entries) }
	case rename:
		return a.applyRename(in)
	case unlink, rmdir, rmtree:
		return a.applyRemove(in, out)
	case save, concat:
		return a.applySave(in, out)
	}
	n := a.find(in.id)
	if n == nil {
		return notFound, a, nil
	}
	switch in.verb {
	case stat:
		return "", a, describes(n, out)
	case link:
		switch {
		case n.dir:
			return denied, a, nil
		case a[in.slot] != nil:
			return exists, a, nil
		}
		a[in.slot] = n
		return "", a, describes(n, out)
	case setxattr, getxattr:
		return a.applyXattr(n, in, out)
	case extents:
		return "", a, func(a arena) (bool, arena) { return slices.Equal(n.cells, out.cells), a }
	case clone:
		source := a.find(in.source)
		if source == nil {
			return notFound, a, nil
		}
		return a.changed(n, out, func(n *node) {
			if in.commit == wire.CommitMode_COMMIT_MODE_REPLACE {
				n.cells = nil
			}
			n.cells = append(slices.Clip(n.cells), source.cells...)
		})
	}
	return a.changed(n, out, func(n *node) {
		switch in.verb {
		case chmod:
			n.mode = in.mode
		case truncate:
			n.resize(in.size)
		case commit:
			n.lay(in)
		}
	})
}

// changed is the state with n as change leaves it.
func (a arena) changed(n *node, out output, change func(*node)) (string, arena, func(arena) (bool, arena)) {
	other := *n
	change(&other)
	return "", a.swap(n, &other), describes(&other, out)
}

func (n *node) resize(size int) {
	cells := make([]cell, size)
	copy(cells, n.cells)
	n.cells = cells
}

// lay lays one extent over a file.
func (n *node) lay(in input) {
	at := in.offset
	switch in.commit {
	case wire.CommitMode_COMMIT_MODE_REPLACE:
		n.cells, at = nil, 0
	case wire.CommitMode_COMMIT_MODE_APPEND:
		at = len(n.cells)
	}
	n.resize(max(len(n.cells), at+in.length))
	for i := range in.length {
		n.cells[at+i] = cell{in.stripe, uint64(i)}
	}
}

func (a arena) applyCreate(in input, out output) (string, arena, func(arena) (bool, arena)) {
	have, dir := a[in.slot], in.verb == mkdir
	switch {
	case have == nil:
		n := &node{id: out.id, dir: dir, mode: in.mode}
		if in.verb == symlink {
			n.mode, n.target = 0o777, in.value
		}
		a[in.slot] = n
		return "", a, describes(n, out)
	case in.exclusive || in.verb == symlink:
		return exists, a, nil
	case have.dir && !dir:
		return isDir, a, nil
	case have.dir != dir || have.target != "":
		return exists, a, nil
	}
	return "", a, describes(have, out)
}

// applySave gives a file that has no name yet its content and its name. Such a file
// dies with its session, of which the model knows nothing: that it is not there is
// always a possible answer, and nothing is changed then.
func (a arena) applySave(in input, out output) (string, arena, func(arena) (bool, arena)) {
	if out.err == notFound {
		return notFound, a, nil
	}
	switch have := a[in.slot]; {
	case have != nil && have.dir:
		return isDir, a, nil
	case have != nil && (!in.replace || have.target != ""):
		return exists, a, nil
	}
	n := &node{id: in.id, mode: in.mode}
	if in.source == 0 {
		n.lay(in)
	}
	for _, id := range []uint64{in.source, in.second, in.consume} {
		source := a.find(id)
		switch {
		case id == 0:
		case source == nil:
			return notFound, a, nil
		case id == in.consume:
			a = a.swap(source, nil)
		default:
			n.cells = append(slices.Clip(n.cells), source.cells...)
		}
	}
	a[in.slot] = n
	return "", a, describes(n, out)
}

func (a arena) applyRename(in input) (string, arena, func(arena) (bool, arena)) {
	from, to := a[in.slot], a[in.to]
	switch {
	case from == nil:
		return notFound, a, nil
	case from == to:
		return "", a, nil
	case to != nil && in.noReplace:
		return exists, a, nil
	case in.exchange && to == nil:
		return notFound, a, nil
	case in.exchange:
		a[in.slot], a[in.to] = to, from
		return "", a, nil
	case to != nil && to.dir && !from.dir:
		return isDir, a, nil
	case to != nil && !to.dir && from.dir:
		return notDir, a, nil
	}
	a[in.slot], a[in.to] = nil, from
	return "", a, nil
}

func (a arena) applyRemove(in input, out output) (string, arena, func(arena) (bool, arena)) {
	n := a[in.slot]
	switch {
	case n == nil:
		return notFound, a, nil
	case in.verb == unlink && n.dir:
		return isDir, a, nil
	case in.verb != unlink && !n.dir:
		return notDir, a, nil
	}
	if in.verb != rmtree && !out.unknown {
		// The answer names the inode, which may have been unknown so far.
		ok, known, _ := a.is(n, out.id)
		a = known
		a[in.slot] = nil
		return "", a, func(a arena) (bool, arena) { return ok, a }
	}
	a[in.slot] = nil
	return "", a, nil
}

func (a arena) applyXattr(n *node, in input, out output) (string, arena, func(arena) (bool, arena)) {
	switch {
	case in.verb == getxattr && !n.marked:
		return noAttr, a, nil
	case in.verb == getxattr:
		return "", a, func(a arena) (bool, arena) { return n.xattr == out.value, a }
	case in.create && n.marked:
		return exists, a, nil
	case (in.replace || in.remove) && !n.marked:
		return noAttr, a, nil
	}
	other := *n
	other.marked, other.xattr = !in.remove, in.value
	if in.remove {
		other.xattr = ""
	}
	return "", a.swap(n, &other), nil
}

// listed reports whether entries are those of a directory.
func (a arena) listed(dir int, entries []output) (bool, arena) {
	i := 0
	for slot := dir * namesOfDir; slot < (dir+1)*namesOfDir; slot++ {
		if a[slot] == nil {
			continue
		}
		if i == len(entries) || entries[i].name != names[slot%namesOfDir] {
			return false, a
		}
		var ok bool
		if ok, a = a.described(a[slot], entries[i]); !ok {
			return false, a
		}
		i++
	}
	return i == len(entries), a
}
