package histories_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/anishathalye/porcupine"

	"github.com/morainefs/moraine/transport/wire"
)

// An arena is two directories of three names each, whose operations touch nothing
// else: a history is checked one arena at a time. Its state is what each of the six
// names (slots) stands for, and, of a directory that is there, each of its two names
// (children, which are no directories); names of one file share a node. Nodes are never
// changed.
type arena struct {
	at     [places]*node // the slots, and then the children of what each slot has
	doomed []uint64      // directories that were removed with what was in them, in order
	kept   []keep        // by inode number
}

// keep is a file that has no name any more, and that a client's session keeps. It dies
// with the session, of which the model knows only that none ends in peace.
type keep struct {
	n  *node
	by int
}

const (
	dirsOfArena = 2
	namesOfDir  = 3
	slots       = dirsOfArena * namesOfDir
	kidsOfDir   = 2
	places      = slots + slots*kidsOfDir
)

var (
	names = []string{"a", "b", "c"}
	kids  = []string{"x", "y"}
)

// node is a file, a symbolic link, or a directory.
type node struct {
	id     uint64 // 0: made by an operation whose answer nobody saw, and not seen since
	dir    bool
	mode   uint32
	owner  owner
	target string // of a symbolic link
	cells  []cell
	xattr  string // of user.x
	marked bool   // it has user.x
}

// owner is whose an inode is: root's, at first.
type owner struct{ uid, gid uint32 }

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
	cloneTree
	chown
	verbs
)

var verbNames = [verbs]string{"create", "mkdir", "lookup", "stat", "readdir", "rename", "link", "unlink", "rmdir",
	"rmtree", "chmod", "truncate", "setxattr", "getxattr", "commit", "clone", "extents", "save", "symlink", "concat", "clonetree", "chown"}

// input is one operation.
type input struct {
	verb       verb
	slot, to   int    // of a name
	in, toIn   uint64 // the directory that it is in, of which it is a child; 0: of the arena
	id, source uint64 // of an inode; of save: the file without a name, and what it is a clone of, if anything
	second     uint64 // of concat: the other source
	consume    uint64 // of concat: a directory that goes; 0: none
	dir        int
	byPath     bool // of lookup
	exclusive  bool
	noReplace  bool
	exchange   bool
	mode       uint32
	owner      owner
	owns       wire.SetAttrField // of chown: which of the owner is set
	size       int
	value      string // of setxattr; of symlink what it stands for
	create     bool   // of setxattr
	replace    bool   // of setxattr, and of save
	remove     bool
	commit     wire.CommitMode
	offset     int
	stripe     uint64
	length     int
	keep       bool // of unlink, rename and save: a file whose last name goes is kept
	by         int  // the client
	calm       bool // no session ends
}

// output is what an operation was answered.
type output struct {
	unknown bool   // no answer, or one that says nothing
	err     string // "" for success
	id      uint64
	dir     bool
	mode    uint32
	owner   owner
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
	notEmpty   = "directory not empty"
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
		for i, n := range s.(arena).at {
			switch {
			case n == nil:
			case i < slots:
				fmt.Fprintf(&b, "%d/%s=%+v ", i/namesOfDir, names[i%namesOfDir], *n)
			default:
				fmt.Fprintf(&b, "%s of %d=%+v ", kids[i%kidsOfDir], (i-slots)/kidsOfDir, *n)
			}
		}
		return b.String()
	},
}

func (a arena) equal(b arena) bool {
	for i, n := range a.at {
		o := b.at[i]
		if (n == nil) != (o == nil) || n != nil && !n.equal(o) {
			return false
		}
		if n == nil {
			continue
		}
		for j := range i {
			if (n == a.at[j]) != (o == b.at[j]) {
				return false
			}
		}
	}
	return slices.Equal(a.doomed, b.doomed) &&
		slices.EqualFunc(a.kept, b.kept, func(k, o keep) bool { return k.by == o.by && k.n.equal(o.n) })
}

func (n *node) equal(o *node) bool {
	return n.id == o.id && n.dir == o.dir && n.mode == o.mode && n.owner == o.owner && n.target == o.target && n.xattr == o.xattr && n.marked == o.marked && slices.Equal(n.cells, o.cells)
}

// find returns the node of an inode number, nil if there is none.
func (a arena) find(id uint64) *node {
	for _, n := range a.at {
		if n != nil && n.id == id {
			return n
		}
	}
	return nil
}

// swap has every name of one node stand for another.
func (a arena) swap(old, new *node) arena {
	for i := range a.at {
		if a.at[i] == old {
			a.at[i] = new
		}
	}
	for i, k := range a.kept {
		if k.n == old {
			a.kept = slices.Clone(a.kept)
			a.kept[i].n = new
		}
	}
	return a
}

func (a arena) links(n *node) (count uint32) {
	for _, o := range a.at {
		if o == n {
			count++
		}
	}
	return count
}

// children are the places of those of what a slot has.
func (a *arena) children(slot int) []*node {
	first := slots + slot*kidsOfDir
	return a.at[first : first+kidsOfDir]
}

// full reports whether a place has a directory that is not empty.
func (a arena) full(i int) bool {
	return i < slots && slices.ContainsFunc(a.children(i), func(n *node) bool { return n != nil })
}

// place returns where a name is: slot of the arena, or a child of a directory; -1 where
// that is not there.
func (a arena) place(dir uint64, slot int) int {
	if dir == 0 {
		return slot
	}
	for i, n := range a.at[:slots] {
		if n != nil && n.id == dir {
			return slots + i*kidsOfDir + slot%kidsOfDir
		}
	}
	return -1
}

// without is the state in which a place has nothing. A directory goes with what is in
// it; the service goes on to know it, for a while, by its number.
func (a arena) without(i int) arena {
	if id := a.at[i].id; a.full(i) && id != 0 {
		n, _ := slices.BinarySearch(a.doomed, id)
		a.doomed = slices.Insert(slices.Clone(a.doomed), n, id)
	}
	if i < slots {
		clear(a.children(i))
	}
	a.at[i] = nil
	return a
}

// keeping is the state in which a client keeps what is at place i, if this is its last
// name. What is in a directory of the arena nobody asks for by its number.
func (a arena) keeping(i, by int) arena {
	n := a.at[i]
	if i >= slots || n.dir || n.id == 0 || a.links(n) > 1 {
		return a
	}
	at, _ := slices.BinarySearchFunc(a.kept, n.id, func(k keep, id uint64) int { return cmp.Compare(k.n.id, id) })
	a.kept = slices.Insert(slices.Clone(a.kept), at, keep{n, by})
	return a
}

// held returns a file that is kept, and by whom; nil if there is none.
func (a arena) held(id uint64) (n *node, by int) {
	for _, k := range a.kept {
		if k.n.id == id {
			return k.n, k.by
		}
	}
	return nil, 0
}

// let is the state in which a file is not kept any more.
func (a arena) let(n *node) arena {
	a.kept = slices.DeleteFunc(slices.Clone(a.kept), func(k keep) bool { return k.n == n })
	return a
}

// isDoomed reports whether a directory was removed with what was in it. Nothing can be
// made in it, or given its name; of what the service answers of it and of what was in
// it, until all of it is gone, the model knows nothing.
func (a arena) isDoomed(dir uint64) bool { return slices.Contains(a.doomed, dir) }

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
	if !ok || n.dir != out.dir || n.mode != out.mode || n.owner != out.owner || n.target != out.target {
		return false, a
	}
	return n.dir || a.links(n) == out.nlink && uint64(len(n.cells)) == out.size, a
}
