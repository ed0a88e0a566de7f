package vfs

import (
	"io"
	"io/fs"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// Mem is a file system in memory that knows which of its bytes and names a
// power cut would leave (crash.go). It follows the rules of the package comment
// exactly. A sync of a file does not keep its name, and a sync of a directory
// does not keep its files' bytes.
//
// All methods may be called concurrently. One lock guards the whole tree, so that
// Crash is a single moment.
type Mem struct {
	mu       sync.RWMutex
	root     *node
	pending  []*nameOp // changes of names that no SyncDir has kept, oldest first
	locked   map[string]bool
	used     int64 // bytes of allocated blocks
	capacity int64
	rng      *rand.Rand
}

// memCapacity is the size that a Mem reports until SetCapacity.
const memCapacity = 1 << 40

// NewMem returns an empty file system. seed drives the choices of Crash(nil).
func NewMem(seed uint64) *Mem {
	return &Mem{
		root:     newDir(),
		locked:   map[string]bool{},
		capacity: memCapacity,
		rng:      rand.New(rand.NewPCG(seed, 0)),
	}
}

// SetCapacity sets the size of the disk in bytes; exceeding it fails with ENOSPC.
func (m *Mem) SetCapacity(bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.capacity = bytes
}

// node is a file or a directory. A file may have several names.
type node struct {
	dir      bool
	children map[string]*node // directory: the current names
	kept     map[string]*node // directory: the names that are durable

	links    int     // current names
	size     int64   // file: current
	keptSize int64   // file: durable
	live     []*page // file: current blocks; nil is a hole
	durable  []*page // file: durable blocks
	dirty    []int   // file: indexes of blocks where live and durable differ
}

func newDir() *node {
	return &node{dir: true, children: map[string]*node{}, kept: map[string]*node{}}
}

// nameOp is one atomic change of names: a create, link, removal or rename.
type nameOp struct{ changes []nameChange }

// nameChange says that name in dir now means to; nil: nothing.
type nameChange struct {
	dir  *node
	name string
	to   *node
}

func pathError(op, name string, err error) error {
	return &fs.PathError{Op: op, Path: name, Err: err}
}

// split returns the components of name, from the root.
func split(name string) []string {
	clean := path.Clean("/" + name)
	if clean == "/" {
		return nil
	}
	return strings.Split(clean[1:], "/")
}

// walk returns the node of name, or nil and an errno.
func (m *Mem) walk(parts []string) (*node, error) {
	n := m.root
	for _, part := range parts {
		if !n.dir {
			return nil, syscall.ENOTDIR
		}
		next, ok := n.children[part]
		if !ok {
			return nil, syscall.ENOENT
		}
		n = next
	}
	return n, nil
}

// parent returns the directory that name is in, and its last component.
func (m *Mem) parent(name string) (*node, string, error) {
	parts := split(name)
	if len(parts) == 0 {
		return nil, "", syscall.EINVAL
	}
	dir, err := m.walk(parts[:len(parts)-1])
	if err == nil && !dir.dir {
		err = syscall.ENOTDIR
	}
	return dir, parts[len(parts)-1], err
}

// change makes an op take effect now; it is not durable yet.
func (m *Mem) change(changes ...nameChange) {
	for _, c := range changes {
		if old := c.dir.children[c.name]; old != nil {
			old.links--
			m.release(old)
			delete(c.dir.children, c.name)
		}
		if c.to != nil {
			c.to.links++
			c.dir.children[c.name] = c.to
		}
	}
	m.pending = append(m.pending, &nameOp{changes: changes})
}

// release frees the space of a file that has lost its last name.
func (m *Mem) release(n *node) {
	if n.links > 0 || n.dir {
		return
	}
	for _, p := range n.live {
		if p != nil {
			m.used -= blockSize
		}
	}
}

// Open implements FS.
func (m *Mem) Open(name string, flag OpenFlag) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir, base, err := m.parent(name)
	if err != nil {
		return nil, pathError("open", name, err)
	}
	n := dir.children[base]
	switch {
	case n == nil && flag&Create == 0:
		return nil, pathError("open", name, syscall.ENOENT)
	case n != nil && flag&Create != 0 && flag&Exclusive != 0:
		return nil, pathError("open", name, syscall.EEXIST)
	case n != nil && n.dir:
		return nil, pathError("open", name, syscall.EISDIR)
	case n == nil:
		n = &node{}
		m.change(nameChange{dir, base, n})
	case flag&Truncate != 0:
		m.truncate(n, 0)
	}
	return &memFile{
		mem: m, node: n, name: name,
		write:  flag&(Write|Create|Truncate) != 0,
		direct: flag&Direct != 0,
	}, nil
}

// Rename implements FS. It survives a power cut whole or not at all.
func (m *Mem) Rename(oldName, newName string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	fail := func(err error) error { return pathError("rename", oldName, err) }
	from, oldBase, err := m.parent(oldName)
	if err != nil {
		return fail(err)
	}
	to, newBase, err := m.parent(newName)
	if err != nil {
		return fail(err)
	}
	n, target := from.children[oldBase], to.children[newBase]
	switch {
	case n == nil:
		return fail(syscall.ENOENT)
	case n == target:
		return nil
	case n.dir && strings.HasPrefix(path.Clean("/"+newName)+"/", path.Clean("/"+oldName)+"/"):
		return fail(syscall.EINVAL)
	case target != nil && target.dir && !n.dir:
		return fail(syscall.EISDIR)
	case target != nil && !target.dir && n.dir:
		return fail(syscall.ENOTDIR)
	case target != nil && len(target.children) > 0:
		return fail(syscall.ENOTEMPTY)
	}
	n.links++ // so that removing the old name does not free it
	m.change(nameChange{from, oldBase, nil}, nameChange{to, newBase, n})
	n.links--
	return nil
}

// Link implements FS.
func (m *Mem) Link(oldName, newName string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	fail := func(err error) error { return pathError("link", newName, err) }
	n, err := m.walk(split(oldName))
	if err != nil {
		return fail(err)
	}
	dir, base, err := m.parent(newName)
	switch {
	case err != nil:
		return fail(err)
	case n.dir:
		return fail(syscall.EPERM)
	case dir.children[base] != nil:
		return fail(syscall.EEXIST)
	}
	m.change(nameChange{dir, base, n})
	return nil
}

// Remove implements FS.
func (m *Mem) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir, base, err := m.parent(name)
	if err != nil {
		return pathError("remove", name, err)
	}
	n := dir.children[base]
	switch {
	case n == nil:
		return pathError("remove", name, syscall.ENOENT)
	case n.dir && len(n.children) > 0:
		return pathError("remove", name, syscall.ENOTEMPTY)
	}
	m.change(nameChange{dir, base, nil})
	return nil
}

// RemoveAll implements FS. A power cut may leave any part of the tree.
func (m *Mem) RemoveAll(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir, base, err := m.parent(name)
	if err == syscall.ENOENT {
		return nil
	}
	if err != nil {
		return pathError("remove", name, err)
	}
	if n := dir.children[base]; n != nil {
		m.removeBelow(n)
		m.change(nameChange{dir, base, nil})
	}
	return nil
}

func (m *Mem) removeBelow(n *node) {
	for _, name := range sortedNames(n.children) {
		m.removeBelow(n.children[name])
		m.change(nameChange{n, name, nil})
	}
}

// MkdirAll implements FS.
func (m *Mem) MkdirAll(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.root
	for _, part := range split(name) {
		next := n.children[part]
		if next == nil {
			next = newDir()
			m.change(nameChange{n, part, next})
		}
		if !next.dir {
			return pathError("mkdir", name, syscall.ENOTDIR)
		}
		n = next
	}
	return nil
}

// List implements FS.
func (m *Mem) List(dir string) ([]string, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	n, err := m.walk(split(dir))
	if err == nil && !n.dir {
		err = syscall.ENOTDIR
	}
	if err != nil {
		return nil, pathError("list", dir, err)
	}
	return sortedNames(n.children), nil
}

func sortedNames(children map[string]*node) []string {
	names := make([]string, 0, len(children))
	for name := range children {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Stat implements FS.
func (m *Mem) Stat(name string) (Info, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	n, err := m.walk(split(name))
	if err != nil {
		return Info{}, pathError("stat", name, err)
	}
	info := Info{Size: n.size, Dir: n.dir}
	for _, p := range n.live {
		if p != nil {
			info.Bytes += blockSize
		}
	}
	return info, nil
}

// SyncDir implements FS. It keeps every pending change of dir, and those on which
// they depend.
func (m *Mem) SyncDir(dir string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.walk(split(dir))
	if err == nil && !n.dir {
		err = syscall.ENOTDIR
	}
	if err != nil {
		return pathError("sync", dir, err)
	}
	keep := make([]bool, len(m.pending))
	for i, op := range m.pending {
		keep[i] = slices.ContainsFunc(op.changes, func(c nameChange) bool { return c.dir == n })
	}
	addForerunners(m.pending, keep)
	rest := m.pending[:0]
	for i, op := range m.pending {
		if !keep[i] {
			rest = append(rest, op)
			continue
		}
		for _, c := range op.changes {
			applyChange(c.dir.kept, c)
		}
	}
	clear(m.pending[len(rest):])
	m.pending = rest
	return nil
}

func applyChange(names map[string]*node, c nameChange) {
	if c.to == nil {
		delete(names, c.name)
	} else {
		names[c.name] = c.to
	}
}

// Lock implements FS. A crashed clone holds no locks.
func (m *Mem) Lock(name string) (io.Closer, error) {
	f, err := m.Open(name, Create)
	if err != nil {
		return nil, err
	}
	if err := f.Close(); err != nil {
		return nil, err
	}
	key := path.Clean("/" + name)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.locked[key] {
		return nil, pathError("lock", name, ErrLocked)
	}
	m.locked[key] = true
	return &memLock{mem: m, key: key}, nil
}

type memLock struct {
	mem  *Mem
	key  string
	once sync.Once
}

func (l *memLock) Close() error {
	l.once.Do(func() {
		l.mem.mu.Lock()
		defer l.mem.mu.Unlock()
		delete(l.mem.locked, l.key)
	})
	return nil
}

// Usage implements FS.
func (m *Mem) Usage(name string) (Usage, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if _, err := m.walk(split(name)); err != nil {
		return Usage{}, pathError("statfs", name, err)
	}
	return Usage{Total: uint64(m.capacity), Free: uint64(max(0, m.capacity-m.used))}, nil
}
