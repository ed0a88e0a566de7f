package names

import (
	"math"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/layout"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// Create creates a file, a directory, a symbolic link or a special file.
func Create(t *kvtx.Tx, op *wire.Create) (*wire.MetaResponse, error) { return CreateAs(t, op, 0) }

// CreateAs is Create with a reserved inode number. The name must then be free. 0: the next number.
func CreateAs(t *kvtx.Tx, op *wire.Create, id moraine.InodeID) (*wire.MetaResponse, error) {
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
	if ok && id != 0 {
		return nil, kvtx.Fail(moraine.Exists, "create", op.GetName(), "")
	}
	if ok {
		return existing(t, op, e)
	}
	tenant, err := tenantOf(t, dir, op)
	if err != nil {
		return nil, err
	}
	n := newInode(t.Scope, op)
	inheritGroup(&n, dir)
	n.Id, n.Tenant, n.Parent = id, tenant, dir.Id
	n.Name = op.GetName()
	inherited, err := inheritACL(t, &n, dir, op.GetUmask())
	if err != nil {
		return nil, err
	}
	xattrs := append(inherited, op.GetXattrs()...)
	if err := fitXattrs(xattrs); err != nil {
		return nil, err
	}
	child, err := MakeInode(t, n)
	if err != nil {
		return nil, err
	}
	Link(t, dir, op.GetName(), child)
	putXattrs(t, child, xattrs)
	if err := putContent(t, child, op.GetContent()); err != nil {
		return nil, err
	}
	return tree.EntryReply(child), nil
}

// putContent gives a new file its content, which the state keeps.
func putContent(t *kvtx.Tx, i *record.Inode, content []byte) error {
	if len(content) == 0 {
		return nil
	}
	e, err := layout.TakeInline(t, "create", i, content)
	if err != nil {
		return err
	}
	if err := layout.AppendExtents(t, i, []moraine.Extent{e}); err != nil {
		return err
	}
	i.Size = e.Length
	if err := RaiseGeneration(t, i); err != nil {
		return err
	}
	i.Level = moraine.NVMe
	tree.PutInode(t, i)
	return FlushOnCommit(t, i)
}

func checkCreate(op *wire.Create) error {
	typ := uint8(op.GetType())
	switch {
	case typ < record.TypeFile || typ > record.TypeBlock || op.GetType() > wire.FileType_FILE_TYPE_BLOCK_DEVICE:
		return kvtx.Fail(moraine.InvalidArgument, "create", op.GetName(), "file type %d is unknown", typ)
	case typ == record.TypeSymlink && op.GetTarget() == "":
		return kvtx.Fail(moraine.InvalidArgument, "create", op.GetName(), "a symbolic link needs a target")
	case typ != record.TypeChar && typ != record.TypeBlock && op.GetRdev() != 0:
		return kvtx.Fail(moraine.InvalidArgument, "create", op.GetName(), "only a device node names a device")
	case len(op.GetTarget()) > moraine.MaxSymlinkLen:
		return kvtx.Fail(moraine.NameTooLong, "create", op.GetName(), "the target of the symbolic link has %d bytes, %d at most", len(op.GetTarget()), moraine.MaxSymlinkLen)
	case op.GetUnlinked() && (typ != record.TypeFile || op.GetName() != ""):
		return kvtx.Fail(moraine.InvalidArgument, "create", op.GetName(), "only a regular file can be created without a name")
	case len(op.GetContent()) > 0 && (typ != record.TypeFile || !op.GetExclusive()):
		return kvtx.Fail(moraine.InvalidArgument, "create", op.GetName(), "only an exclusive create of a regular file can bring content")
	case len(op.GetContent()) > moraine.MaxInline:
		return kvtx.Fail(moraine.TooLarge, "create", op.GetName(), "the metadata keeps %d bytes of a file at most, and the create has %d", moraine.MaxInline, len(op.GetContent()))
	}
	if err := checkXattrs(op.GetXattrs()); err != nil || op.GetUnlinked() {
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
	case record.TypeChar, record.TypeBlock:
		n.Rdev = op.GetRdev()
	}
	return n
}

// inheritGroup gives an inode made in a directory with the setgid bit the directory's group. A new
// directory there gets the bit too.
func inheritGroup(n, dir *record.Inode) {
	if dir.Mode&setgid == 0 {
		return
	}
	n.Gid = dir.Gid
	if n.Typ == record.TypeDirectory {
		n.Mode |= setgid
	}
}

const setgid = 0o2000

// existing answers a create whose name is taken.
func existing(t *kvtx.Tx, op *wire.Create, e record.Dentry) (*wire.MetaResponse, error) {
	switch {
	case op.GetExclusive() || uint8(op.GetType()) >= record.TypeSymlink:
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
	inheritGroup(&n, dir)
	n.Nlink, n.Tenant, n.Owner = 0, dir.Tenant, t.Session.Id
	inherited, err := inheritACL(t, &n, dir, op.GetUmask())
	if err != nil {
		return nil, err
	}
	xattrs := append(inherited, op.GetXattrs()...)
	if err := fitXattrs(xattrs); err != nil {
		return nil, err
	}
	child, err := MakeInode(t, n)
	if err != nil {
		return nil, err
	}
	putXattrs(t, child, xattrs)
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
