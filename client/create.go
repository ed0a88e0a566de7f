package client

import (
	"context"
	"errors"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/client/internal/stripeio"
	"github.com/morainefs/moraine/transport/wire"
)

// CreateOptions says how a new file is made.
type CreateOptions struct {
	// Replace lets an existing regular file of that name be replaced, at the
	// commit. Otherwise the name must be free.
	Replace bool
	// Mode holds the permission bits; 0 means 0644.
	Mode     uint32
	UID, GID uint32
	// Scheme overrides Config.Scheme unless K is 0.
	Scheme moraine.Scheme
	// Level overrides Config.Level unless it is 0.
	Level moraine.Level
	// Xattrs are extended attributes that the file has before it has its name.
	Xattrs map[string][]byte
	// Expect, with Replace, is what must have the name in the moment of the commit,
	// which fails with Conflict where that is not so. nil: anything, or nothing.
	Expect *Expect
	// Parents, unless it is nil, is called by File.Commit where the directory of the file
	// was removed since Create. It makes that again and returns its inode, in which the
	// commit is tried again.
	Parents func(ctx context.Context) (moraine.InodeID, error)
}

// Expect is a condition on what has a name: the service evaluates it in the entry of its
// log that takes the name away. A field that is 0 asks for nothing, and no field at all
// that something has the name.
type Expect struct {
	Inode      moraine.InodeID
	Generation moraine.Generation
	Ctime      int64 // wall clock, in nanoseconds
}

// wire returns the condition as it travels.
func (e *Expect) wire() *wire.Expect {
	if e == nil {
		return nil
	}
	return &wire.Expect{Inode: uint64(e.Inode), Generation: uint64(e.Generation), Ctime: e.Ctime}
}

// Create begins a file that Commit will give the name path. Its directory must
// exist. ctx bounds the whole life of the File: when it ends, the File fails.
func (c *Client) Create(ctx context.Context, path string, opts CreateOptions) (*File, error) {
	link, err := c.paths.linkTarget(ctx, path, opts)
	if err != nil {
		return nil, retry.Wrap("client.Create", path, err)
	}
	return c.begin(ctx, path, moraine.InodeID(link.Parent), link, opts)
}

// linkTarget returns where a file of that path is to be linked, if it may be.
func (r paths) linkTarget(ctx context.Context, path string, opts CreateOptions) (*wire.LinkTarget, error) {
	w, err := r.walk(ctx, path, false)
	switch {
	case err != nil:
		return nil, err
	case w.Name == "" || (w.Found && w.Attr.Type == wire.FileType_FILE_TYPE_DIRECTORY):
		return nil, &moraine.Error{Kind: moraine.IsDirectory}
	case w.Found && (!opts.Replace || w.Attr.Type != wire.FileType_FILE_TYPE_REGULAR):
		return nil, &moraine.Error{Kind: moraine.Exists}
	}
	return &wire.LinkTarget{Parent: w.Parent, Name: w.Name, Replace: opts.Replace, Expect: opts.Expect.wire()}, nil
}

// CreateUnlinked begins a file that Commit leaves without a name, for something
// else to link: sealing a part of a checkpoint does. It belongs to the session
// until then. parent, or the client's root if it is 0, decides tenant and policy.
func (c *Client) CreateUnlinked(ctx context.Context, parent moraine.InodeID, opts CreateOptions) (*File, error) {
	if parent == 0 {
		parent = c.Root()
	}
	return c.begin(ctx, "", parent, nil, opts)
}

// begin is create of a file that will have bytes written.
func (c *Client) begin(ctx context.Context, ref string, parent moraine.InodeID, link *wire.LinkTarget, opts CreateOptions) (*File, error) {
	f, err := c.create(ctx, ref, parent, link, opts)
	if err == nil {
		c.io.Grants.Ahead(f.sender.Key, f.Inode())
	}
	return f, err
}

func (c *Client) create(ctx context.Context, ref string, parent moraine.InodeID, link *wire.LinkTarget, opts CreateOptions) (*File, error) {
	if opts.Mode == 0 {
		opts.Mode = 0o644
	}
	if opts.Scheme.K == 0 {
		opts.Scheme = c.cfg.Scheme
	}
	if opts.Level == 0 {
		opts.Level = c.cfg.Level
	}
	if (opts.Scheme.K != 0 && !opts.Scheme.Valid()) || (opts.Level != moraine.NVMe && opts.Level != moraine.Memory) {
		return nil, &moraine.Error{Op: "client.Create", Ref: ref, Kind: moraine.InvalidArgument}
	}
	resp, s, err := c.meta.DoIn(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{
		Parent: uint64(parent), Type: wire.FileType_FILE_TYPE_REGULAR, Mode: opts.Mode,
		Uid: opts.UID, Gid: opts.GID, Unlinked: true}}})
	if err != nil {
		return nil, retry.Wrap("client.Create", ref, err)
	}
	attr := resp.GetEntry().GetAttr()
	if attr.GetInode() == 0 {
		return nil, retry.Wrap("client.Create", ref, retry.BadReply("create"))
	}
	if ref == "" {
		ref = moraine.InodeID(attr.Inode).String()
	}
	for name, value := range opts.Xattrs {
		inode := moraine.InodeID(attr.Inode)
		if err := c.Xattrs().Set(ctx, inode, name, value, XattrAny); err != nil {
			// The session would keep the file to its end.
			return nil, retry.Wrap("client.Create", ref, errors.Join(err, c.Inodes().Release(context.WithoutCancel(ctx), inode)))
		}
	}
	f := &File{c: c, ref: ref, attr: attr, link: link, parents: opts.Parents, session: s,
		sender: stripeio.Sender{Engine: c.io, Inode: moraine.InodeID(attr.Inode), Level: opts.Level,
			Key: stripeio.GrantKey{Tenant: attr.Tenant, Scheme: opts.Scheme, Dir: parent}},
		slots: make(chan struct{}, c.cfg.StripesInFlight),
		log:   commitLog{arrived: map[int][]stripeio.SentStripe{}, generation: attr.Generation}}
	f.life, f.end = context.WithCancelCause(ctx)
	c.io.Writes.Join(filling{f})
	return f, nil
}
