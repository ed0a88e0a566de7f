package names

import (
	"math"
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/layout"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// CheckName checks a new entry's name against the rules for names.
func CheckName(op, name string) error {
	switch {
	case name == "" || name == "." || name == "..":
		return kvtx.Fail(moraine.InvalidArgument, op, name, "a name must not be empty, . or ..")
	case len(name) > moraine.MaxNameLen:
		return kvtx.Fail(moraine.NameTooLong, op, name, "the name has %d bytes, %d at most", len(name), moraine.MaxNameLen)
	case strings.IndexByte(name, '/') >= 0 || strings.IndexByte(name, 0) >= 0:
		return kvtx.Fail(moraine.InvalidArgument, op, name, "a name must not contain / or NUL")
	}
	return nil
}

// MakeInode issues a number for i, sets its times and writes it. A file starts empty at the first
// generation.
func MakeInode(t *kvtx.Tx, i record.Inode) (*record.Inode, error) {
	id, err := t.NextID(record.CInode)
	if err != nil {
		return nil, err
	}
	n := &i
	n.Id = moraine.InodeID(id)
	n.Mode &= 0o7777
	n.Atime, n.Mtime, n.Ctime = t.Now, t.Now, t.Now
	if n.Typ == record.TypeFile {
		n.Generation = moraine.Generation(uint64(id.Incarnation())<<56 | 1)
	}
	tree.Remember(t, n)
	t.Insert(t.K.Inode(n.Id), n.Encode())
	t.Count[record.CInodes]++
	return n, nil
}

// Link adds child to dir as name, which must be free, and makes dir its parent. The caller updates
// child.Nlink and writes child.
func Link(t *kvtx.Tx, dir *record.Inode, name string, child *record.Inode) {
	t.Put(t.K.Dentry(dir.Id, name), record.Dentry{Inode: child.Id, Typ: child.Typ}.Encode())
	child.Parent = dir.Id
	child.Name = name
	if child.ManyLinks {
		t.Put(t.K.Name(child.Id, dir.Id, name), []byte{record.DentryVersion})
	}
	tree.TouchEntry(t, dir, name, child, kvtx.Added)
	dir.Entries++
	if child.Typ == record.TypeDirectory {
		dir.Nlink++
	}
	changed(t, dir)
}

// Unlink removes the entry name, which is child, from dir. The caller decides what happens to child
// and writes it.
func Unlink(t *kvtx.Tx, dir *record.Inode, name string, child *record.Inode) {
	unname(t, dir, name, child)
	if child.Typ == record.TypeDirectory {
		dir.Nlink--
	}
	changed(t, dir)
}

// unname removes the entry from dir's records. The caller writes dir.
func unname(t *kvtx.Tx, dir *record.Inode, name string, child *record.Inode) {
	t.Del(t.K.Dentry(dir.Id, name))
	tree.TouchEntry(t, dir, name, child, kvtx.Removed)
	dir.Entries--
	if child.ManyLinks {
		t.Del(t.K.Name(child.Id, dir.Id, name))
	}
}

// changed updates the times of a directory whose entries changed, and writes it.
func changed(t *kvtx.Tx, dir *record.Inode) {
	dir.Mtime, dir.Ctime = t.Now, t.Now
	tree.PutInode(t, dir)
}

// Create creates a file, a directory or a symbolic link.
func Create(t *kvtx.Tx, op *wire.Create) (*wire.MetaResponse, error) {
	if err := checkCreate(op); err != nil {
		return nil, err
	}
	if op.GetUnlinked() {
		return createUnlinked(t, op)
	}
	dir, err := tree.Directory(t, moraine.InodeID(op.GetParent()))
	if err != nil {
		return nil, err
	}
	e, ok, err := tree.Lookup(&t.View, dir.Id, op.GetName())
	if err != nil {
		return nil, err
	}
	if ok {
		return existing(t, op, e)
	}
	tenant, err := tenantOf(t, dir, op)
	if err != nil {
		return nil, err
	}
	n := newInode(t.Scope, op)
	n.Tenant, n.Parent = tenant, dir.Id
	n.Name = op.GetName()
	child, err := MakeInode(t, n)
	if err != nil {
		return nil, err
	}
	Link(t, dir, op.GetName(), child)
	putXattrs(t, child, op.GetXattrs())
	return tree.EntryReply(child), nil
}

func checkCreate(op *wire.Create) error {
	typ := uint8(op.GetType())
	switch {
	case typ != record.TypeFile && typ != record.TypeDirectory && typ != record.TypeSymlink:
		return kvtx.Fail(moraine.InvalidArgument, "create", op.GetName(), "file type %d is unknown", typ)
	case typ == record.TypeSymlink && op.GetTarget() == "":
		return kvtx.Fail(moraine.InvalidArgument, "create", op.GetName(), "a symbolic link needs a target")
	case len(op.GetTarget()) > moraine.MaxSymlinkLen:
		return kvtx.Fail(moraine.NameTooLong, "create", op.GetName(), "the target of the symbolic link has %d bytes, %d at most", len(op.GetTarget()), moraine.MaxSymlinkLen)
	case op.GetUnlinked() && (typ != record.TypeFile || op.GetName() != ""):
		return kvtx.Fail(moraine.InvalidArgument, "create", op.GetName(), "only a regular file can be created without a name")
	case op.GetUnlinked() && len(op.GetXattrs()) > 0:
		return kvtx.Fail(moraine.InvalidArgument, "create", op.GetName(), "a create without a name cannot set extended attributes: send SetXattr afterwards")
	case op.GetUnlinked():
		return nil
	}
	if err := checkXattrs(op.GetXattrs()); err != nil {
		return err
	}
	return CheckName("create", op.GetName())
}

// newInode returns the inode that op requests, without the fields that depend on the parent.
func newInode(sc kvtx.Scope, op *wire.Create) record.Inode {
	n := record.Inode{Typ: uint8(op.GetType()), Mode: op.GetMode(), Uid: squashed(sc, op.GetUid()), Gid: squashed(sc, op.GetGid()), Nlink: 1}
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
func existing(t *kvtx.Tx, op *wire.Create, e record.Dentry) (*wire.MetaResponse, error) {
	switch {
	case op.GetExclusive() || uint8(op.GetType()) == record.TypeSymlink:
		return nil, kvtx.Fail(moraine.Exists, "create", op.GetName(), "")
	case e.Typ == record.TypeDirectory && uint8(op.GetType()) != record.TypeDirectory:
		return nil, kvtx.Fail(moraine.IsDirectory, "create", op.GetName(), "")
	case e.Typ != uint8(op.GetType()):
		return nil, kvtx.Fail(moraine.Exists, "create", op.GetName(), "the name belongs to an entry of another type")
	}
	i, err := tree.Inode(t, e.Inode)
	if err != nil {
		return nil, err
	}
	return tree.EntryReply(i), nil
}

// createUnlinked creates a file without a name. The session owns it until a commit links it; it is
// removed with the session. The parent, if given, determines its tenant.
func createUnlinked(t *kvtx.Tx, op *wire.Create) (*wire.MetaResponse, error) {
	place := moraine.InodeID(op.GetParent())
	if place == 0 {
		place = t.Scope.Root
	}
	dir, err := tree.Directory(t, place)
	if err != nil {
		return nil, err
	}
	n := newInode(t.Scope, op)
	n.Nlink, n.Tenant, n.Owner = 0, dir.Tenant, t.Session.Id
	child, err := MakeInode(t, n)
	if err != nil {
		return nil, err
	}
	t.Insert(t.K.SessionInode(t.Session.Id, child.Id), []byte{record.SessionVersion})
	return tree.EntryReply(child), nil
}

// tenantOf returns the tenant of a new inode in dir. It is inherited. Only a directory created in
// the root may name another tenant, which is created if necessary.
func tenantOf(t *kvtx.Tx, dir *record.Inode, op *wire.Create) (moraine.Tenant, error) {
	name := op.GetTenant()
	if name == "" {
		return dir.Tenant, nil
	}
	if dir.Id != t.K.Top() || uint8(op.GetType()) != record.TypeDirectory {
		return 0, kvtx.Fail(moraine.InvalidArgument, "create", op.GetName(), "only a new directory in the root can name a tenant")
	}
	if name == defaultTenant {
		return 0, nil
	}
	if len(name) > moraine.MaxNameLen {
		return 0, kvtx.Fail(moraine.NameTooLong, "create", name, "the name of the tenant has %d bytes, %d at most", len(name), moraine.MaxNameLen)
	}
	b, ok, err := t.Get(t.K.TenantName(name))
	if err != nil {
		return 0, err
	}
	if ok {
		return record.DecodeNumber[moraine.Tenant](record.TenantVersion, b, "tenant")
	}
	if t.Count[record.CTenant] >= math.MaxUint32 {
		return 0, kvtx.Fail(moraine.NoSpace, "create", name, "the cluster has issued all tenant numbers")
	}
	id := moraine.Tenant(t.Next(record.CTenant))
	t.Insert(t.K.TenantName(name), record.EncodeNumber(record.TenantVersion, id))
	t.Insert(t.K.Tenant(id), record.EncodeText(record.TenantVersion, name))
	return id, nil
}

// defaultTenant is the name of tenant 0.
const defaultTenant = "default"

// Expected checks the inode that has a name against the condition of the request that replaces it;
// nil is no condition.
func Expected(op, name string, want *wire.Expect, have *record.Inode) error {
	switch {
	case want == nil:
		return nil
	case want.GetInode() != 0 && want.GetInode() != uint64(have.Id):
		return kvtx.Fail(moraine.Conflict, op, name, "the name belongs to inode %s, but the request expects %s", have.Id, moraine.InodeID(want.GetInode()))
	case want.GetGeneration() != 0 && want.GetGeneration() != uint64(have.Generation):
		return kvtx.Fail(moraine.Conflict, op, name, "inode %s has generation %d, but the request expects %d", have.Id, have.Generation, want.GetGeneration())
	case want.GetCtime() != 0 && want.GetCtime() != have.Ctime:
		return kvtx.Fail(moraine.Conflict, op, name, "inode %s has changed since the client read it", have.Id)
	}
	return nil
}

// Entry returns a directory and the inode under a name in it.
func Entry(t *kvtx.Tx, op string, parent uint64, name string) (dir, child *record.Inode, err error) {
	if err := CheckName(op, name); err != nil {
		return nil, nil, err
	}
	if dir, err = tree.Directory(t, moraine.InodeID(parent)); err != nil {
		return nil, nil, err
	}
	e, ok, err := tree.Lookup(&t.View, dir.Id, name)
	if err != nil {
		return nil, nil, err
	}
	if !ok {
		return nil, nil, kvtx.Fail(moraine.NotFound, op, name, "")
	}
	child, err = tree.Inode(t, e.Inode)
	return dir, child, err
}

// DropName removes one name from child, whose entry is already gone. An inode without names is
// removed; a directory must be empty.
func DropName(t *kvtx.Tx, child *record.Inode, ref string) error {
	if child.Typ == record.TypeDirectory {
		if child.Entries != 0 {
			return kvtx.Fail(moraine.NotEmpty, "remove", ref, "")
		}
		return delInode(t, child)
	}
	child.Nlink--
	if child.Nlink > 0 {
		if err := rehome(t, child); err != nil {
			return err
		}
		child.Ctime = t.Now
		tree.PutInode(t, child)
		return nil
	}
	return DropFile(t, child)
}

// DropFile removes a file or link without a name, and its content: at once if it is small,
// otherwise by a job.
func DropFile(t *kvtx.Tx, i *record.Inode) error {
	if i.Owner != 0 {
		t.Del(t.K.SessionInode(i.Owner, i.Id))
	}
	if err := delInode(t, i); err != nil {
		return err
	}
	return layout.Discard(t, i.Content)
}

// Adopt prepares an unlinked file of a session or job for a name. The caller links and writes it.
func Adopt(t *kvtx.Tx, i *record.Inode) {
	if i.Owner != 0 {
		t.Del(t.K.SessionInode(i.Owner, i.Id))
	}
	i.Owner, i.Nlink = 0, 1
}

// DropSessionInodes removes unlinked files of an ended session.
func DropSessionInodes(t *kvtx.Tx, id moraine.SessionID, budget int) (int, error) {
	keys, err := t.KeysUnder(t.K.SessionInodes(id), (budget+7)/8)
	if err != nil {
		return 0, err
	}
	before := len(t.Order)
	for n, key := range keys {
		if len(t.Order)-before >= budget {
			return budget, nil
		}
		i, err := tree.Inode(t, moraine.InodeID(record.LastU64(key)))
		if err != nil {
			return n, kvtx.Damaged(err)
		}
		if err := DropFile(t, i); err != nil {
			return n, err
		}
	}
	if len(keys) == (budget+7)/8 {
		return budget, nil // there may be more
	}
	return len(t.Order) - before, nil
}
