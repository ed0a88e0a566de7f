package state

import (
	"math"
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// checkName holds a new entry's name against what a name may be.
func checkName(op, name string) error {
	switch {
	case name == "" || name == "." || name == "..":
		return fail(moraine.InvalidArgument, op, name, "not a name")
	case len(name) > moraine.MaxNameLen:
		return fail(moraine.NameTooLong, op, name, "%d bytes, %d at most", len(name), moraine.MaxNameLen)
	case strings.IndexByte(name, '/') >= 0 || strings.IndexByte(name, 0) >= 0:
		return fail(moraine.InvalidArgument, op, name, "a name holds neither / nor NUL")
	}
	return nil
}

// directory returns the directory id, in scope, for change.
func (t *tx) directory(id moraine.InodeID) (*inode, error) {
	dir, err := t.named(id)
	if err != nil {
		return nil, err
	}
	if dir.typ != typeDirectory {
		return nil, fail(moraine.NotDirectory, "directory", id.String(), "")
	}
	if dir.nlink == 0 {
		return nil, fail(moraine.NotFound, "directory", id.String(), "it was removed")
	}
	t.mindHold(dir.id)
	return dir, nil
}

// makeInode issues a number for i, unless it has one, sets its times and writes it.
// A file starts with an empty content of the first generation.
func (m *Machine) makeInode(t *tx, i inode) (*inode, error) {
	id := moraine.ID(i.id)
	if id == 0 {
		var err error
		if id, err = t.nextID(cInode); err != nil {
			return nil, err
		}
	}
	n := &i
	n.id = moraine.InodeID(id)
	n.mode &= 0o7777
	n.atime, n.mtime, n.ctime = t.now, t.now, t.now
	if n.typ == typeFile {
		n.generation = moraine.Generation(uint64(id.Incarnation())<<56 | 1)
	}
	t.remember(n)
	t.insert(t.k.inode(n.id), n.encode())
	t.count[cInodes]++
	return n, nil
}

// link enters child in dir as name, which must be free, and makes dir its
// parent. The caller counts child.nlink, and writes child.
func (m *Machine) link(t *tx, dir *inode, name string, child *inode) {
	t.put(t.k.dentry(dir.id, name), dentry{inode: child.id, typ: child.typ}.encode())
	child.parent = dir.id
	child.name = t.hint(name)
	if child.manyLinks {
		t.put(t.k.name(child.id, dir.id, name), []byte{dentryVersion})
	}
	t.touchEntry(dir, name, child, Added)
	dir.entries++
	if child.typ == typeDirectory {
		dir.nlink++
	}
	m.changed(t, dir)
}

// unlink takes the entry name, which is child, out of dir. The caller says what
// becomes of child, and writes it.
func (m *Machine) unlink(t *tx, dir *inode, name string, child *inode) {
	t.unname(dir, name, child)
	if child.typ == typeDirectory {
		dir.nlink--
	}
	m.changed(t, dir)
}

// unname takes the entry out of dir's records, which the caller writes.
func (t *tx) unname(dir *inode, name string, child *inode) {
	t.del(t.k.dentry(dir.id, name))
	t.touchEntry(dir, name, child, Removed)
	dir.entries--
	if child.manyLinks {
		t.del(t.k.name(child.id, dir.id, name))
	}
}

// changed stamps and writes a directory whose entries changed.
func (m *Machine) changed(t *tx, dir *inode) {
	dir.mtime, dir.ctime = t.now, t.now
	t.putInode(dir)
}

// create makes a file, a directory or a symbolic link.
func (m *Machine) create(t *tx, op *wire.Create) (*wire.MetaResponse, error) {
	op, err := t.known(op)
	if err != nil {
		return nil, err
	}
	if err := checkCreate(op); err != nil {
		return nil, err
	}
	if op.GetUnlinked() {
		return m.createUnlinked(t, op)
	}
	dir, err := t.directory(moraine.InodeID(op.GetParent()))
	if err != nil {
		return nil, err
	}
	e, ok, err := t.lookup(dir.id, op.GetName())
	if err != nil {
		return nil, err
	}
	switch {
	case ok && op.GetInode() != 0:
		return t.existingAs(op, e)
	case ok:
		return t.existing(op, e)
	case op.GetInode() != 0:
		if err := t.takeNumber(moraine.InodeID(op.GetInode())); err != nil {
			return nil, err
		}
	}
	tenant, err := m.tenantOf(t, dir, op)
	if err != nil {
		return nil, err
	}
	n := newInode(t.scope, op)
	n.id, n.tenant, n.parent = moraine.InodeID(op.GetInode()), tenant, dir.id
	n.name = t.hint(op.GetName())
	child, err := m.makeInode(t, n)
	if err != nil {
		return nil, err
	}
	m.link(t, dir, op.GetName(), child)
	t.putXattrs(child, op.GetXattrs())
	return entryReply(child), nil
}

func checkCreate(op *wire.Create) error {
	typ := uint8(op.GetType())
	switch {
	case typ != typeFile && typ != typeDirectory && typ != typeSymlink:
		return fail(moraine.InvalidArgument, "create", op.GetName(), "file type %d", typ)
	case typ == typeSymlink && op.GetTarget() == "":
		return fail(moraine.InvalidArgument, "create", op.GetName(), "a symbolic link needs a target")
	case len(op.GetTarget()) > moraine.MaxSymlinkLen:
		return fail(moraine.NameTooLong, "create", op.GetName(), "a target of %d bytes, %d at most", len(op.GetTarget()), moraine.MaxSymlinkLen)
	case op.GetUnlinked() && (typ != typeFile || op.GetName() != ""):
		return fail(moraine.InvalidArgument, "create", op.GetName(), "only a regular file is made without a name")
	case op.GetInode() != 0 && (op.GetUnlinked() || typ != typeFile || !op.GetExclusive()):
		return fail(moraine.InvalidArgument, "create", op.GetName(), "only a new file with a name is given a number")
	case op.GetUnlinked() && len(op.GetXattrs()) > 0:
		return fail(moraine.InvalidArgument, "create", op.GetName(), "a file without a name is given its attributes by SetXattr")
	case op.GetUnlinked():
		return nil
	}
	if err := checkXattrs(op.GetXattrs()); err != nil {
		return err
	}
	return checkName("create", op.GetName())
}

// newInode is the inode that op asks for, without what the place gives.
func newInode(sc scope, op *wire.Create) inode {
	n := inode{typ: uint8(op.GetType()), mode: op.GetMode(), uid: sc.squashed(op.GetUid()), gid: sc.squashed(op.GetGid()), nlink: 1}
	switch n.typ {
	case typeDirectory:
		n.nlink = 2
	case typeSymlink:
		n.target = op.GetTarget()
		n.mode = 0o777
	}
	return n
}

// existing answers a create whose name is taken.
func (t *tx) existing(op *wire.Create, e dentry) (*wire.MetaResponse, error) {
	switch {
	case op.GetExclusive() || uint8(op.GetType()) == typeSymlink:
		return nil, fail(moraine.Exists, "create", op.GetName(), "")
	case e.typ == typeDirectory && uint8(op.GetType()) != typeDirectory:
		return nil, fail(moraine.IsDirectory, "create", op.GetName(), "")
	case e.typ != uint8(op.GetType()):
		return nil, fail(moraine.Exists, "create", op.GetName(), "as something else")
	}
	i, err := t.inode(e.inode)
	if err != nil {
		return nil, err
	}
	return entryReply(i), nil
}

// createUnlinked makes a file with no name, which the session owns until a
// commit links it; it dies with the session. The parent, if given, decides its
// tenant.
func (m *Machine) createUnlinked(t *tx, op *wire.Create) (*wire.MetaResponse, error) {
	place := moraine.InodeID(op.GetParent())
	if place == 0 {
		place = t.scope.root
	}
	dir, err := t.directory(place)
	if err != nil {
		return nil, err
	}
	n := newInode(t.scope, op)
	n.nlink, n.tenant, n.owner = 0, dir.tenant, t.session.id
	child, err := m.makeInode(t, n)
	if err != nil {
		return nil, err
	}
	t.insert(t.k.sessionInode(t.session.id, child.id), []byte{sessionVersion})
	return entryReply(child), nil
}

// tenantOf returns the tenant of what op makes in dir. It is inherited; only a
// directory made in the root may name one, which exists from then on.
func (m *Machine) tenantOf(t *tx, dir *inode, op *wire.Create) (moraine.Tenant, error) {
	name := op.GetTenant()
	if name == "" {
		return dir.tenant, nil
	}
	if dir.id != t.k.top() || uint8(op.GetType()) != typeDirectory {
		return 0, fail(moraine.InvalidArgument, "create", op.GetName(), "a tenant is set on a directory in the root")
	}
	if name == defaultTenant {
		return 0, nil
	}
	if len(name) > moraine.MaxNameLen {
		return 0, fail(moraine.NameTooLong, "create", name, "as the name of a tenant")
	}
	b, ok, err := t.Get(t.k.tenantName(name))
	if err != nil {
		return 0, err
	}
	if ok {
		d := dec{b: b}
		d.version(tenantVersion)
		id := moraine.Tenant(d.u32())
		return id, d.end("tenant")
	}
	if t.count[cTenant] >= math.MaxUint32 {
		return 0, fail(moraine.NoSpace, "create", name, "there are no numbers of tenants left")
	}
	id := moraine.Tenant(t.next(cTenant))
	t.insert(t.k.tenantName(name), putUvarint([]byte{tenantVersion}, uint64(id)))
	t.insert(t.k.tenant(id), putString([]byte{tenantVersion}, name))
	return id, nil
}

const tenantVersion = 1

// defaultTenant is the name of tenant 0.
const defaultTenant = "default"

// remove takes away one entry: a file or link, or an empty directory.
func (m *Machine) remove(t *tx, op *wire.Remove) (*wire.MetaResponse, error) {
	t.ignoresQuota = true
	dir, child, err := m.entry(t, "remove", op.GetParent(), op.GetName())
	if err != nil {
		return nil, err
	}
	switch {
	case op.GetDirectory() && child.typ != typeDirectory:
		return nil, fail(moraine.NotDirectory, "remove", op.GetName(), "")
	case !op.GetDirectory() && child.typ == typeDirectory:
		return nil, fail(moraine.IsDirectory, "remove", op.GetName(), "")
	case child.typ == typeDirectory && child.sealed:
		return nil, t.immutable(child)
	}
	if err := m.removeFromStep(t, dir, child); err != nil {
		return nil, err
	}
	if err := expected("remove", op.GetName(), op.GetExpect(), child); err != nil {
		return nil, err
	}
	m.unlink(t, dir, op.GetName(), child)
	if op.GetKeep() && child.typ != typeDirectory && child.nlink == 1 {
		m.hold(t, child)
		return removeReply(child), nil
	}
	if err := m.dropName(t, child, op.GetName()); err != nil {
		return nil, err
	}
	return removeReply(child), nil
}

// expected checks what has a name against the condition of the request that takes the
// name from it; nil is no condition.
func expected(op, name string, want *wire.Expect, have *inode) error {
	switch {
	case want == nil:
		return nil
	case want.GetInode() != 0 && want.GetInode() != uint64(have.id):
		return fail(moraine.Conflict, op, name, "inode %s has the name, not %s", have.id, moraine.InodeID(want.GetInode()))
	case want.GetGeneration() != 0 && want.GetGeneration() != uint64(have.generation):
		return fail(moraine.Conflict, op, name, "inode %s has generation %d, not %d", have.id, have.generation, want.GetGeneration())
	case want.GetCtime() != 0 && want.GetCtime() != have.ctime:
		return fail(moraine.Conflict, op, name, "inode %s has changed", have.id)
	}
	return nil
}

func removeReply(i *inode) *wire.MetaResponse {
	return &wire.MetaResponse{Result: &wire.MetaResponse_Remove{Remove: &wire.RemoveReply{Inode: uint64(i.id)}}}
}

// entry returns a directory and what it has as name.
func (m *Machine) entry(t *tx, op string, parent uint64, name string) (dir, child *inode, err error) {
	if err := checkName(op, name); err != nil {
		return nil, nil, err
	}
	if dir, err = t.directory(moraine.InodeID(parent)); err != nil {
		return nil, nil, err
	}
	e, ok, err := t.lookup(dir.id, name)
	if err != nil {
		return nil, nil, err
	}
	if !ok {
		return nil, nil, fail(moraine.NotFound, op, name, "")
	}
	child, err = t.inode(e.inode)
	return dir, child, err
}

// dropName takes one name from child, whose entry is gone already. What has no
// name left dies; a directory must be empty.
func (m *Machine) dropName(t *tx, child *inode, ref string) error {
	if child.typ == typeDirectory {
		if child.entries != 0 {
			return fail(moraine.NotEmpty, "remove", ref, "")
		}
		return t.delInode(child)
	}
	child.nlink--
	if child.nlink > 0 {
		if err := t.rehome(child); err != nil {
			return err
		}
		child.ctime = t.now
		t.putInode(child)
		return nil
	}
	return m.dropFile(t, child)
}

// dropFile takes away a file or link that nobody names any more, and its
// content: at once where it is small, else by a job.
func (m *Machine) dropFile(t *tx, i *inode) error {
	if i.owner != 0 {
		t.del(t.k.sessionInode(i.owner, i.id))
	}
	if err := t.delInode(i); err != nil {
		return err
	}
	return m.discard(t, i.content)
}
