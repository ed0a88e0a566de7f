package state

import (
	"math"
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
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
func (t *tx) directory(id moraine.InodeID) (*record.Inode, error) {
	dir, err := t.named(id)
	if err != nil {
		return nil, err
	}
	if dir.Typ != record.TypeDirectory {
		return nil, fail(moraine.NotDirectory, "directory", id.String(), "")
	}
	if dir.Nlink == 0 {
		return nil, fail(moraine.NotFound, "directory", id.String(), "it was removed")
	}
	t.mindHold(dir.Id)
	return dir, nil
}

// makeInode issues a number for i, unless it has one, sets its times and writes it.
// A file starts with an empty content of the first generation.
func (m *Machine) makeInode(t *tx, i record.Inode) (*record.Inode, error) {
	id := moraine.ID(i.Id)
	if id == 0 {
		var err error
		if id, err = t.nextID(record.CInode); err != nil {
			return nil, err
		}
	}
	n := &i
	n.Id = moraine.InodeID(id)
	n.Mode &= 0o7777
	n.Atime, n.Mtime, n.Ctime = t.now, t.now, t.now
	if n.Typ == record.TypeFile {
		n.Generation = moraine.Generation(uint64(id.Incarnation())<<56 | 1)
	}
	t.remember(n)
	t.insert(t.k.inode(n.Id), n.Encode())
	t.count[record.CInodes]++
	return n, nil
}

// link enters child in dir as name, which must be free, and makes dir its
// parent. The caller counts child.nlink, and writes child.
func (m *Machine) link(t *tx, dir *record.Inode, name string, child *record.Inode) {
	t.put(t.k.dentry(dir.Id, name), record.Dentry{Inode: child.Id, Typ: child.Typ}.Encode())
	child.Parent = dir.Id
	child.Name = t.hint(name)
	if child.ManyLinks {
		t.put(t.k.name(child.Id, dir.Id, name), []byte{record.DentryVersion})
	}
	t.touchEntry(dir, name, child, Added)
	dir.Entries++
	if child.Typ == record.TypeDirectory {
		dir.Nlink++
	}
	m.changed(t, dir)
}

// unlink takes the entry name, which is child, out of dir. The caller says what
// becomes of child, and writes it.
func (m *Machine) unlink(t *tx, dir *record.Inode, name string, child *record.Inode) {
	t.unname(dir, name, child)
	if child.Typ == record.TypeDirectory {
		dir.Nlink--
	}
	m.changed(t, dir)
}

// unname takes the entry out of dir's records, which the caller writes.
func (t *tx) unname(dir *record.Inode, name string, child *record.Inode) {
	t.del(t.k.dentry(dir.Id, name))
	t.touchEntry(dir, name, child, Removed)
	dir.Entries--
	if child.ManyLinks {
		t.del(t.k.name(child.Id, dir.Id, name))
	}
}

// changed stamps and writes a directory whose entries changed.
func (m *Machine) changed(t *tx, dir *record.Inode) {
	dir.Mtime, dir.Ctime = t.now, t.now
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
	e, ok, err := t.lookup(dir.Id, op.GetName())
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
	n.Id, n.Tenant, n.Parent = moraine.InodeID(op.GetInode()), tenant, dir.Id
	n.Name = t.hint(op.GetName())
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
	case typ != record.TypeFile && typ != record.TypeDirectory && typ != record.TypeSymlink:
		return fail(moraine.InvalidArgument, "create", op.GetName(), "file type %d", typ)
	case typ == record.TypeSymlink && op.GetTarget() == "":
		return fail(moraine.InvalidArgument, "create", op.GetName(), "a symbolic link needs a target")
	case len(op.GetTarget()) > moraine.MaxSymlinkLen:
		return fail(moraine.NameTooLong, "create", op.GetName(), "a target of %d bytes, %d at most", len(op.GetTarget()), moraine.MaxSymlinkLen)
	case op.GetUnlinked() && (typ != record.TypeFile || op.GetName() != ""):
		return fail(moraine.InvalidArgument, "create", op.GetName(), "only a regular file is made without a name")
	case op.GetInode() != 0 && (op.GetUnlinked() || typ != record.TypeFile || !op.GetExclusive()):
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
func newInode(sc scope, op *wire.Create) record.Inode {
	n := record.Inode{Typ: uint8(op.GetType()), Mode: op.GetMode(), Uid: sc.squashed(op.GetUid()), Gid: sc.squashed(op.GetGid()), Nlink: 1}
	switch n.Typ {
	case record.TypeDirectory:
		n.Nlink = 2
	case record.TypeSymlink:
		n.Target = op.GetTarget()
		n.Mode = 0o777
	}
	return n
}

// existing answers a create whose name is taken.
func (t *tx) existing(op *wire.Create, e record.Dentry) (*wire.MetaResponse, error) {
	switch {
	case op.GetExclusive() || uint8(op.GetType()) == record.TypeSymlink:
		return nil, fail(moraine.Exists, "create", op.GetName(), "")
	case e.Typ == record.TypeDirectory && uint8(op.GetType()) != record.TypeDirectory:
		return nil, fail(moraine.IsDirectory, "create", op.GetName(), "")
	case e.Typ != uint8(op.GetType()):
		return nil, fail(moraine.Exists, "create", op.GetName(), "as something else")
	}
	i, err := t.inode(e.Inode)
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
	n.Nlink, n.Tenant, n.Owner = 0, dir.Tenant, t.session.Id
	child, err := m.makeInode(t, n)
	if err != nil {
		return nil, err
	}
	t.insert(t.k.sessionInode(t.session.Id, child.Id), []byte{record.SessionVersion})
	return entryReply(child), nil
}

// tenantOf returns the tenant of what op makes in dir. It is inherited; only a
// directory made in the root may name one, which exists from then on.
func (m *Machine) tenantOf(t *tx, dir *record.Inode, op *wire.Create) (moraine.Tenant, error) {
	name := op.GetTenant()
	if name == "" {
		return dir.Tenant, nil
	}
	if dir.Id != t.k.top() || uint8(op.GetType()) != record.TypeDirectory {
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
		d := record.Dec{B: b}
		d.Version(record.TenantVersion)
		id := moraine.Tenant(d.U32())
		return id, d.End("tenant")
	}
	if t.count[record.CTenant] >= math.MaxUint32 {
		return 0, fail(moraine.NoSpace, "create", name, "there are no numbers of tenants left")
	}
	id := moraine.Tenant(t.next(record.CTenant))
	t.insert(t.k.tenantName(name), record.PutUvarint([]byte{record.TenantVersion}, uint64(id)))
	t.insert(t.k.tenant(id), record.PutString([]byte{record.TenantVersion}, name))
	return id, nil
}

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
	case op.GetDirectory() && child.Typ != record.TypeDirectory:
		return nil, fail(moraine.NotDirectory, "remove", op.GetName(), "")
	case !op.GetDirectory() && child.Typ == record.TypeDirectory:
		return nil, fail(moraine.IsDirectory, "remove", op.GetName(), "")
	case child.Typ == record.TypeDirectory && child.Sealed:
		return nil, t.immutable(child)
	}
	if err := m.removeFromStep(t, dir, child); err != nil {
		return nil, err
	}
	if err := expected("remove", op.GetName(), op.GetExpect(), child); err != nil {
		return nil, err
	}
	m.unlink(t, dir, op.GetName(), child)
	if op.GetKeep() && child.Typ != record.TypeDirectory && child.Nlink == 1 {
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
func expected(op, name string, want *wire.Expect, have *record.Inode) error {
	switch {
	case want == nil:
		return nil
	case want.GetInode() != 0 && want.GetInode() != uint64(have.Id):
		return fail(moraine.Conflict, op, name, "inode %s has the name, not %s", have.Id, moraine.InodeID(want.GetInode()))
	case want.GetGeneration() != 0 && want.GetGeneration() != uint64(have.Generation):
		return fail(moraine.Conflict, op, name, "inode %s has generation %d, not %d", have.Id, have.Generation, want.GetGeneration())
	case want.GetCtime() != 0 && want.GetCtime() != have.Ctime:
		return fail(moraine.Conflict, op, name, "inode %s has changed", have.Id)
	}
	return nil
}

func removeReply(i *record.Inode) *wire.MetaResponse {
	return &wire.MetaResponse{Result: &wire.MetaResponse_Remove{Remove: &wire.RemoveReply{Inode: uint64(i.Id)}}}
}

// entry returns a directory and what it has as name.
func (m *Machine) entry(t *tx, op string, parent uint64, name string) (dir, child *record.Inode, err error) {
	if err := checkName(op, name); err != nil {
		return nil, nil, err
	}
	if dir, err = t.directory(moraine.InodeID(parent)); err != nil {
		return nil, nil, err
	}
	e, ok, err := t.lookup(dir.Id, name)
	if err != nil {
		return nil, nil, err
	}
	if !ok {
		return nil, nil, fail(moraine.NotFound, op, name, "")
	}
	child, err = t.inode(e.Inode)
	return dir, child, err
}

// dropName takes one name from child, whose entry is gone already. What has no
// name left dies; a directory must be empty.
func (m *Machine) dropName(t *tx, child *record.Inode, ref string) error {
	if child.Typ == record.TypeDirectory {
		if child.Entries != 0 {
			return fail(moraine.NotEmpty, "remove", ref, "")
		}
		return t.delInode(child)
	}
	child.Nlink--
	if child.Nlink > 0 {
		if err := t.rehome(child); err != nil {
			return err
		}
		child.Ctime = t.now
		t.putInode(child)
		return nil
	}
	return m.dropFile(t, child)
}

// dropFile takes away a file or link that nobody names any more, and its
// content: at once where it is small, else by a job.
func (m *Machine) dropFile(t *tx, i *record.Inode) error {
	if i.Owner != 0 {
		t.del(t.k.sessionInode(i.Owner, i.Id))
	}
	if err := t.delInode(i); err != nil {
		return err
	}
	return m.discard(t, i.Content)
}
