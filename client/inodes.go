package client

import (
	"context"
	"iter"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/transport/wire"
)

// Inodes is the namespace by inode, which a mount needs. A number names a directory; a
// directory and a name are an entry. So nothing is resolved twice, and a rename above does not
// redirect a request. For paths see namespace.go. Its methods may be called concurrently.
type Inodes struct{ c *Client }

// Inodes returns the namespace by inode.
func (c *Client) Inodes() Inodes { return Inodes{c} }

// Entry names an entry of a directory.
type Entry struct {
	Parent moraine.InodeID
	Name   string
}

// NodeOptions describes a new file or directory.
type NodeOptions struct {
	// Mode holds the permission bits; 0 means no permissions.
	Mode     uint32
	UID, GID uint32
	// Umask has the permission bits that Mode loses, unless the directory has a default access
	// control list: that bounds Mode instead.
	Umask uint32
	// Exclusive makes a taken name an error (Exists). Otherwise the call returns the existing
	// inode if it is of the same type.
	Exclusive bool
	// Xattrs are extended attributes that a new file has from the beginning; an existing one
	// keeps its own.
	Xattrs map[string][]byte
}

// Lookup returns the attributes of an entry.
func (n Inodes) Lookup(ctx context.Context, parent moraine.InodeID, name string) (Attr, error) {
	a, err := n.c.meta.LookupAt(ctx, parent, name)
	if err != nil {
		return Attr{}, retry.Wrap("client.LookupAt", name, err)
	}
	if a == nil {
		return Attr{}, &moraine.Error{Op: "client.LookupAt", Ref: name, Kind: moraine.NotFound}
	}
	return Attr{a}, nil
}

// Create makes an empty file, visible at once.
func (n Inodes) Create(ctx context.Context, parent moraine.InodeID, name string, opts NodeOptions) (Attr, error) {
	return n.create(ctx, "client.CreateAt", parent, name, wire.FileType_FILE_TYPE_REGULAR, "", opts)
}

// Mkdir makes a directory.
func (n Inodes) Mkdir(ctx context.Context, parent moraine.InodeID, name string, opts NodeOptions) (Attr, error) {
	return n.create(ctx, "client.MkdirAt", parent, name, wire.FileType_FILE_TYPE_DIRECTORY, "", opts)
}

// Symlink makes a symbolic link to target. opts.Mode and opts.Exclusive are
// ignored: every mode is 0777, and the name must be free.
func (n Inodes) Symlink(ctx context.Context, parent moraine.InodeID, name, target string, opts NodeOptions) (Attr, error) {
	opts.Mode, opts.Exclusive = 0o777, true
	return n.create(ctx, "client.SymlinkAt", parent, name, wire.FileType_FILE_TYPE_SYMLINK, target, opts)
}

// Mknod makes a fifo, a socket or a device node, under a name that must be free. rdev is the
// device that a device node names, as in stat on Linux, and 0 otherwise. opts.Exclusive is ignored.
func (n Inodes) Mknod(ctx context.Context, parent moraine.InodeID, name string, typ FileType, rdev uint32, opts NodeOptions) (Attr, error) {
	at := slices.Index(fileTypes[:], typ)
	if typ < TypeFifo || at < 0 {
		return Attr{}, &moraine.Error{Op: "client.MknodAt", Ref: name, Kind: moraine.InvalidArgument}
	}
	create := opts.wire(parent, name, wire.FileType(at))
	create.Rdev, create.Exclusive = rdev, true
	return n.send(ctx, "client.MknodAt", create)
}

func (n Inodes) create(ctx context.Context, op string, parent moraine.InodeID, name string, typ wire.FileType,
	target string, opts NodeOptions) (Attr, error) {
	create := opts.wire(parent, name, typ)
	create.Target = target
	return n.send(ctx, op, create)
}

// wire returns the request that makes the inode.
func (o NodeOptions) wire(parent moraine.InodeID, name string, typ wire.FileType) *wire.Create {
	create := &wire.Create{Parent: uint64(parent), Name: name, Type: typ, Mode: o.Mode, Umask: o.Umask, Uid: o.UID, Gid: o.GID, Exclusive: o.Exclusive}
	for name, value := range o.Xattrs {
		create.Xattrs = append(create.Xattrs, &wire.Xattr{Name: name, Value: value})
	}
	return create
}

func (n Inodes) send(ctx context.Context, op string, create *wire.Create) (Attr, error) {
	resp, err := n.c.meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: create}})
	return attrOf(resp, err, op, create.Name)
}

// CreateUnnamed makes an empty file without a name, in the tenant of a directory. The session owns it
// until Link gives it a name, or until Release. opts.Exclusive and opts.Xattrs are ignored.
func (n Inodes) CreateUnnamed(ctx context.Context, dir moraine.InodeID, opts NodeOptions) (Attr, error) {
	opts.Xattrs = nil
	create := opts.wire(dir, "", wire.FileType_FILE_TYPE_REGULAR)
	create.Unlinked = true
	return n.send(ctx, "client.CreateUnnamed", create)
}

// RemoveOptions says what Inodes.Remove removes.
type RemoveOptions struct {
	// Directory removes an empty directory; otherwise Remove removes anything else.
	Directory bool
	// Keep leaves a file whose last name this is to the session, without a name, until Release.
	// It is for a file that is open without a Handle.
	Keep bool
	// Expect is what must have the name; otherwise Remove fails with Conflict. nil: anything.
	Expect *Expect
}

// Remove removes an entry and returns the inode that it named.
func (n Inodes) Remove(ctx context.Context, parent moraine.InodeID, name string, opts RemoveOptions) (moraine.InodeID, error) {
	resp, err := n.c.meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{
		Parent: uint64(parent), Name: name, Directory: opts.Directory, Keep: opts.Keep, Expect: opts.Expect.wire()}}})
	if err == nil && resp.GetRemove() == nil {
		err = retry.BadReply("remove")
	}
	if err != nil {
		return 0, retry.Wrap("client.RemoveAt", name, err)
	}
	return moraine.InodeID(resp.GetRemove().Inode), nil
}

// Sync returns when the changes that were made in a directory before, through this client, are
// durable. It returns, once, the error of one that the service did not carry out: such a change, and
// those that need it, are lost. dir 0: it waits for those in all directories, and returns no such error.
func (n Inodes) Sync(ctx context.Context, dir moraine.InodeID) error {
	return retry.Wrap("client.Sync", dir.String(), n.c.meta.Desk.Sync(ctx, uint64(dir)))
}

// Rename moves an entry.
func (n Inodes) Rename(ctx context.Context, from, to Entry, opts RenameOptions) error {
	op := &wire.Rename{Parent: uint64(from.Parent), Name: from.Name, NewParent: uint64(to.Parent), NewName: to.Name,
		NoReplace: opts.NoReplace, Exchange: opts.Exchange, Keep: opts.Keep}
	if w := opts.Whiteout; w != nil {
		op.Whiteout, op.Uid, op.Gid = true, w.UID, w.GID
	}
	_, err := n.c.meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_Rename{Rename: op}})
	return retry.Wrap("client.RenameAt", from.Name, err)
}

// Link gives a file another name, in a directory of its tenant.
func (n Inodes) Link(ctx context.Context, inode moraine.InodeID, parent moraine.InodeID, name string) (Attr, error) {
	resp, err := n.c.meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_Link{Link: &wire.Link{
		Inode: uint64(inode), Parent: uint64(parent), Name: name}}})
	return attrOf(resp, err, "client.Link", name)
}

// SetAttr is Client.SetAttr by inode. If this client has the file open with uncommitted bytes,
// a new size cuts those too, and a new time applies after them.
func (n Inodes) SetAttr(ctx context.Context, inode moraine.InodeID, set SetAttr) (Attr, error) {
	op := set.wire(inode)
	if ct := n.c.contents.hold(inode); ct != nil {
		defer n.c.contents.letGo(ct)
		a, err := ct.setAttr(ctx, op)
		return Attr{a}, retry.Wrap("client.SetAttr", inode.String(), err)
	}
	resp, err := n.changeAttr(ctx, op)
	return attrOf(resp, err, "client.SetAttr", inode.String())
}

// Stat returns the attributes of an inode.
func (n Inodes) Stat(ctx context.Context, inode moraine.InodeID) (Attr, error) {
	a, err := n.stat(ctx, inode)
	return Attr{a}, err
}

// stat is Stat. The answer may come from the cache and is shared: it must not be changed.
func (n Inodes) stat(ctx context.Context, inode moraine.InodeID) (*wire.Attr, error) {
	a, err := n.c.meta.StatInode(ctx, inode)
	if err != nil {
		return nil, retry.Wrap("client.StatInode", inode.String(), err)
	}
	return a, nil
}

// ReadDir is Client.ReadDir by inode.
func (n Inodes) ReadDir(ctx context.Context, dir moraine.InodeID) iter.Seq2[DirEntry, error] {
	return n.ReadDirAfter(ctx, dir, "")
}

// ReadDirAfter is ReadDir of the names after the given one, which need not exist.
func (n Inodes) ReadDirAfter(ctx context.Context, dir moraine.InodeID, after string) iter.Seq2[DirEntry, error] {
	return func(yield func(DirEntry, error) bool) {
		for more := true; more; {
			page, err := n.ReadDirPage(ctx, dir, after, readDirPage)
			if err != nil {
				yield(DirEntry{}, err)
				return
			}
			for i := range page.Len() {
				e := page.Entry(i)
				after = e.Name
				if !yield(e, nil) {
					return
				}
			}
			more = page.More() && page.Len() > 0
		}
	}
}

// ReadDirPage returns up to limit entries (0: as many as the service returns at once) whose
// names come after the given one, in order. NotFound, NotDirectory: dir is no directory.
// PermissionDenied: the session may not see it. May be called concurrently.
func (n Inodes) ReadDirPage(ctx context.Context, dir moraine.InodeID, after string, limit int) (DirPage, error) {
	r, err := n.c.meta.ReadDirPage(ctx, dir, after, limit)
	if err != nil {
		return DirPage{}, retry.Wrap("client.ReadDir", dir.String(), err)
	}
	return DirPage{r}, nil
}

// CreateEmpty makes an empty file, visible at once, in a directory given by its number. It
// fails with Exists if the name is taken.
func (n Inodes) CreateEmpty(ctx context.Context, parent moraine.InodeID, name string, mode uint32) (Attr, error) {
	resp, err := n.c.meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{
		Parent: uint64(parent), Name: name, Type: wire.FileType_FILE_TYPE_REGULAR, Mode: mode, Exclusive: true}}})
	return attrOf(resp, err, "client.CreateEmpty", name)
}

// changeAttr sends a SetAttr. If a new size cuts too much for one request, it sends several,
// from the end of the file. Others may see sizes in between. If it fails in the middle, part of
// the file has been cut.
func (n Inodes) changeAttr(ctx context.Context, op *wire.SetAttr) (*wire.MetaResponse, error) {
	const size = uint32(wire.SetAttrField_SET_ATTR_SIZE)
	set := func(op *wire.SetAttr) (*wire.MetaResponse, error) {
		req := &wire.MetaRequest{Op: &wire.MetaRequest_SetAttr{SetAttr: op}}
		if op.Valid&size != 0 {
			return n.c.change(ctx, moraine.InodeID(op.Inode), req)
		}
		return n.c.meta.Do(ctx, req)
	}
	resp, err := set(op)
	if !retry.IsKind(err, moraine.TooLarge) || op.Valid&size == 0 {
		return resp, err
	}
	a, serr := n.stat(ctx, moraine.InodeID(op.Inode))
	if serr != nil {
		return nil, serr
	}
	for end := a.Size; end > op.Size; {
		step := (end - op.Size) / 2
		for ; step > 0; step /= 2 {
			if _, serr := set(&wire.SetAttr{Inode: op.Inode, Size: end - step, Valid: size}); serr == nil {
				break
			} else if !retry.IsKind(serr, moraine.TooLarge) {
				return nil, serr
			}
		}
		if step == 0 {
			return nil, err
		}
		end -= step
		if resp, err = set(op); !retry.IsKind(err, moraine.TooLarge) {
			return resp, err
		}
	}
	return nil, err
}
