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
// else: a history is checked one arena at a time. Its state is the node of each of
// the six names (slots). For an existing directory it is also the node of each of
// its two names (children, which are no directories). Names of one file share a
// node. Nodes are immutable.
type arena struct {
	at     [places]*node // the slots, and then the children of each slot
	doomed []uint64      // directories that were removed with their contents, in order
	kept   []keep        // by inode number
}

// keep is a file without a name that a client's session keeps. It dies with the
// session; the model knows only that no session ends while nothing fails.
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
	id     uint64 // 0: made by an operation with an unknown answer, and not seen since
	dir    bool
	mode   uint32
	owner  owner
	target string // of a symbolic link
	cells  []cell
	xattr  string // of user.x
	marked bool   // it has user.x
}

// owner is the owner of an inode: root at first.
type owner struct{ uid, gid uint32 }

// cell is the contents of a unit of a file; the zero cell is a hole.
type cell struct {
	stripe uint64
	at     uint64
}

// verb is the kind of an operation.
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
	in, toIn   uint64 // the directory whose child it is; 0: one of the arena
	id, source uint64 // of an inode; of save: the file without a name, and its clone source, if any
	second     uint64 // of concat: the other source
	consume    uint64 // of concat: a directory that is consumed; 0: none
	dir        int
	byPath     bool // of lookup
	exclusive  bool
	noReplace  bool
	exchange   bool
	mode       uint32
	owner      owner
	owns       wire.SetAttrField // of chown: which part of the owner is set
	size       int
	value      string // of setxattr; of symlink its target
	create     bool   // of setxattr
	replace    bool   // of setxattr, and of save
	remove     bool
	commit     wire.CommitMode
	offset     int
	stripe     uint64
	length     int
	keep       bool // of unlink, rename and save: a file that loses its last name is kept
	by         int  // the client
	calm       bool // no session ends
}

// output is the answer to an operation.
type output struct {
	unknown bool   // no answer, or an uninformative one
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

// The informative errors of an answer.
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

// swap makes every name of one node mean another.
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

// children are the places of a slot's children.
func (a *arena) children(slot int) []*node {
	first := slots + slot*kidsOfDir
	return a.at[first : first+kidsOfDir]
}

// full reports whether a place has a directory that is not empty.
func (a arena) full(i int) bool {
	return i < slots && slices.ContainsFunc(a.children(i), func(n *node) bool { return n != nil })
}

// place returns the place of a name: a slot of the arena, or a child of a
// directory; -1 if that does not exist.
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

// without is the state with a place emptied. A directory takes its contents with
// it; the service still knows it by its number for a while.
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

// nobody is the holder of a file that lingers after its removal, and that no client keeps.
const nobody = -1

// keeping is the state in which the node at place i stays without a name, if in takes its last one: a
// client keeps it, or a file lingers. No operation uses the children of an arena's directory by
// number.
func (a arena) keeping(i int, in input) arena {
	n, by := a.at[i], nobody
	if in.keep {
		by = in.by
	}
	if i >= slots || n.dir || n.id == 0 || a.links(n) > 1 || by == nobody && n.target != "" {
		return a
	}
	at, _ := slices.BinarySearchFunc(a.kept, n.id, func(k keep, id uint64) int { return cmp.Compare(k.n.id, id) })
	a.kept = slices.Insert(slices.Clone(a.kept), at, keep{n, by})
	return a
}

// held returns a file that is kept, and its holder; nil if there is none.
func (a arena) held(id uint64) (n *node, by int) {
	for _, k := range a.kept {
		if k.n.id == id {
			return k.n, k.by
		}
	}
	return nil, 0
}

// let is the state in which a file is no longer kept.
func (a arena) let(n *node) arena {
	a.kept = slices.DeleteFunc(slices.Clone(a.kept), func(k keep) bool { return k.n == n })
	return a
}

// isDoomed reports whether a directory was removed with its contents. Nothing can
// be made in it, or get its name. Until all of it is gone, the model makes no claim
// about the service's answers for it and its contents.
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
