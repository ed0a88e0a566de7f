package client

import (
	"cmp"
	"context"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/client/internal/stripeio"
	"github.com/morainefs/moraine/transport/wire"
)

// CreateOptions describes a new file.
type CreateOptions struct {
	// Replace lets the commit replace an existing regular file of that name. Otherwise the name
	// must be free.
	Replace bool
	// Mode holds the permission bits; 0 means 0644.
	Mode     uint32
	UID, GID uint32
	// Scheme overrides Config.Scheme unless K is 0.
	Scheme moraine.Scheme
	// Level overrides Config.Level unless it is 0.
	Level moraine.Level
	// DeferFor, with level memory, is the directory of a step that stays in memory by its policy:
	// chunkservers put off the device writes of the file until they need the memory or the step rises.
	// 0: they write at once.
	DeferFor moraine.InodeID
	// Xattrs are extended attributes of the file. It never has its name without them.
	Xattrs map[string][]byte
	// Expect, with Replace, is what must have the name at the moment of the commit. Otherwise the
	// commit fails with Conflict. nil: anything, or nothing.
	Expect *Expect
	// Parents, unless it is nil, recreates the file's directory and returns its inode.
	// File.Commit calls it if the directory was removed since Create, and then tries the commit
	// again.
	Parents func(ctx context.Context) (moraine.InodeID, error)
}

// Expect is a condition on the inode that has a name. The service evaluates it in the log entry
// that takes the name away. A field that is 0 adds no condition. With all fields 0, any inode
// may have the name, but one must.
type Expect struct {
	Inode      moraine.InodeID
	Generation moraine.Generation
	Ctime      int64 // wall clock, in nanoseconds
}

// wire returns the condition in its wire form.
func (e *Expect) wire() *wire.Expect {
	if e == nil {
		return nil
	}
	return &wire.Expect{Inode: uint64(e.Inode), Generation: uint64(e.Generation), Ctime: e.Ctime}
}

// Create begins a file to which Commit will give the name path. Its directory must exist. ctx
// bounds the whole life of the File: when it ends, the File fails. A file that is small at its Commit
// is made by it, in one entry with its content and its name.
func (c *Client) Create(ctx context.Context, path string, opts CreateOptions) (*File, error) {
	link, err := c.paths.linkTarget(ctx, path, opts)
	if err != nil {
		return nil, retry.Wrap("client.Create", path, err)
	}
	return c.begin(ctx, path, moraine.InodeID(link.Parent), link, opts)
}

// linkTarget returns where to link a file of that path, or an error if the path does not allow
// it.
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

// CreateUnlinked begins a file that Commit leaves without a name, for another request to link,
// such as the seal of a checkpoint part. Until then the session owns it. parent, or the
// client's root if it is 0, decides tenant and policy.
func (c *Client) CreateUnlinked(ctx context.Context, parent moraine.InodeID, opts CreateOptions) (*File, error) {
	if parent == 0 {
		parent = c.Root()
	}
	return c.begin(ctx, "", parent, nil, opts)
}

// begin begins a file into which the caller writes bytes. One that gets a name is made when its
// first stripe is sent, or with its commit if it needs none.
func (c *Client) begin(ctx context.Context, ref string, parent moraine.InodeID, link *wire.LinkTarget, opts CreateOptions) (*File, error) {
	f, err := newFile(c, ref, parent, link, opts)
	if err != nil {
		return nil, err
	}
	if link != nil {
		f.session = c.meta.Current()
	} else if err := f.make(ctx); err != nil {
		return nil, retry.Wrap("client.Create", ref, err)
	} else {
		c.io.Grants.Ahead(f.sender.Key, f.Inode())
	}
	begin(ctx, f)
	return f, nil
}

// create begins a file that is made, for extents of other files.
func (c *Client) create(ctx context.Context, ref string, parent moraine.InodeID, link *wire.LinkTarget, opts CreateOptions) (*File, error) {
	f, err := newFile(c, ref, parent, link, opts)
	if err != nil {
		return nil, err
	}
	if err := f.make(ctx); err != nil {
		return nil, retry.Wrap("client.Create", ref, err)
	}
	begin(ctx, f)
	return f, nil
}

// newFile returns a file that is not made and has not begun.
func newFile(c *Client, ref string, parent moraine.InodeID, link *wire.LinkTarget, opts CreateOptions) (*File, error) {
	opts.Mode = cmp.Or(opts.Mode, 0o644)
	if opts.Scheme.K == 0 {
		opts.Scheme = c.cfg.Scheme
	}
	opts.Level = cmp.Or(opts.Level, c.cfg.Level)
	if (opts.Scheme.K != 0 && !opts.Scheme.Valid()) || (opts.Level != moraine.NVMe && opts.Level != moraine.Memory) {
		return nil, &moraine.Error{Op: "client.Create", Ref: ref, Kind: moraine.InvalidArgument}
	}
	f := &File{c: c, ref: ref, link: link, parents: opts.Parents,
		node:   &wire.NewFile{Mode: opts.Mode, Uid: opts.UID, Gid: opts.GID},
		sender: stripeio.Sender{Engine: c.io, Level: opts.Level, DeferFor: opts.DeferFor, Key: stripeio.GrantKey{Scheme: opts.Scheme, Dir: parent}},
		slots:  make(chan struct{}, c.cfg.StripesInFlight),
		log:    commitLog{arrived: map[int][]stripeio.SentStripe{}}}
	for name, value := range opts.Xattrs {
		f.node.Xattrs = append(f.node.Xattrs, &wire.Xattr{Name: name, Value: value})
	}
	return f, nil
}

// begin starts the life of a file.
func begin(ctx context.Context, f *File) {
	f.life, f.end = context.WithCancelCause(ctx)
	f.c.io.Writes.Join(filling{f})
}
