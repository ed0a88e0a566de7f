package client

import (
	"context"
	"iter"
	"path"
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/client/internal/session"
	"github.com/morainefs/moraine/transport/wire"
)

// Paths are slash separated and start at the client's root, with or without a
// leading slash. "." and ".." are resolved before the service sees them.

// paths resolves paths from the root of the session.
type paths struct{ meta *session.Conn }

// walk resolves a path up to its last component.
func (r paths) walk(ctx context.Context, p string, follow bool) (*wire.WalkReply, error) {
	return r.meta.Walk(ctx, clean(p), follow)
}

// clean returns the path without a leading slash, "" for the root.
func clean(p string) string { return strings.TrimPrefix(path.Clean("/"+p), "/") }

// find is walk for a path that must exist.
func (r paths) find(ctx context.Context, p string, follow bool) (*wire.Attr, error) {
	w, err := r.walk(ctx, p, follow)
	if err != nil {
		return nil, err
	}
	if !w.Found {
		return nil, &moraine.Error{Kind: moraine.NotFound}
	}
	return w.Attr, nil
}

// entry is walk for a name to create, move or remove, which must not be the root.
func (r paths) entry(ctx context.Context, p string) (*wire.WalkReply, error) {
	w, err := r.walk(ctx, p, false)
	if err != nil {
		return nil, err
	}
	if w.Name == "" || w.Parent == 0 {
		return nil, &moraine.Error{Kind: moraine.InvalidArgument, Err: errRoot}
	}
	return w, nil
}

// Stat returns the attributes of the inode at path; it follows symbolic links.
func (c *Client) Stat(ctx context.Context, path string) (Attr, error) {
	a, err := c.paths.find(ctx, path, true)
	return Attr{a}, retry.Wrap("client.Stat", path, err)
}

// Lstat is Stat, but does not follow a symbolic link in the last component.
func (c *Client) Lstat(ctx context.Context, path string) (Attr, error) {
	a, err := c.paths.find(ctx, path, false)
	return Attr{a}, retry.Wrap("client.Lstat", path, err)
}

// attrOf is entryOf for a caller outside.
func attrOf(resp *wire.MetaResponse, err error, op, ref string) (Attr, error) {
	a, err := entryOf(resp, err, op, ref)
	return Attr{a}, err
}

func entryOf(resp *wire.MetaResponse, err error, op, ref string) (*wire.Attr, error) {
	if err == nil && resp.GetEntry().GetAttr() == nil {
		err = retry.BadReply(op)
	}
	if err != nil {
		return nil, retry.Wrap(op, ref, err)
	}
	return resp.GetEntry().GetAttr(), nil
}

// Mkdir makes a directory. mode 0 means 0755.
func (c *Client) Mkdir(ctx context.Context, path string, mode uint32) (Attr, error) {
	w, err := c.paths.entry(ctx, path)
	if err != nil {
		return Attr{}, retry.Wrap("client.Mkdir", path, err)
	}
	if w.Found {
		return Attr{}, &moraine.Error{Op: "client.Mkdir", Ref: path, Kind: moraine.Exists}
	}
	a, err := mkdir(ctx, c.meta, path, w, mode, true)
	return Attr{a}, err
}

func mkdir(ctx context.Context, meta *session.Conn, path string, w *wire.WalkReply, mode uint32, exclusive bool) (*wire.Attr, error) {
	if mode == 0 {
		mode = 0o755
	}
	resp, err := meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{Parent: w.Parent,
		Name: w.Name, Type: wire.FileType_FILE_TYPE_DIRECTORY, Mode: mode, Exclusive: exclusive}}})
	return entryOf(resp, err, "client.Mkdir", path)
}

// MkdirAll makes a directory and the missing ones above it.
func (c *Client) MkdirAll(ctx context.Context, path string, mode uint32) (Attr, error) {
	a, err := c.mkdirAll(ctx, path, mode)
	return Attr{a}, err
}

func (c *Client) mkdirAll(ctx context.Context, path string, mode uint32) (*wire.Attr, error) {
	w, err := c.paths.walk(ctx, path, true)
	if err == nil && w.Found {
		if w.Attr.Type != wire.FileType_FILE_TYPE_DIRECTORY {
			return nil, &moraine.Error{Op: "client.MkdirAll", Ref: path, Kind: moraine.NotDirectory}
		}
		return w.Attr, nil
	}
	if retry.IsKind(err, moraine.NotFound) {
		up, last := parentOf(path)
		if last == "" {
			return nil, retry.Wrap("client.MkdirAll", path, err)
		}
		var above *wire.Attr
		if above, err = c.mkdirAll(ctx, up, mode); err != nil {
			return nil, err
		}
		w = &wire.WalkReply{Parent: above.Inode, Name: last}
	}
	if err != nil {
		return nil, retry.Wrap("client.MkdirAll", path, err)
	}
	a, err := mkdir(ctx, c.meta, path, w, mode, false)
	if err == nil && a.Type != wire.FileType_FILE_TYPE_DIRECTORY {
		err = &moraine.Error{Op: "client.MkdirAll", Ref: path, Kind: moraine.NotDirectory}
	}
	return a, err
}

// parentOf splits a path; last is empty for the root.
func parentOf(p string) (up, last string) {
	p = clean(p)
	if i := strings.LastIndexByte(p, '/'); i >= 0 {
		return p[:i], p[i+1:]
	}
	return "", p
}

// Symlink makes a symbolic link to target.
func (c *Client) Symlink(ctx context.Context, target, path string) (Attr, error) {
	w, err := c.paths.entry(ctx, path)
	if err != nil {
		return Attr{}, retry.Wrap("client.Symlink", path, err)
	}
	resp, err := c.meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{Parent: w.Parent,
		Name: w.Name, Type: wire.FileType_FILE_TYPE_SYMLINK, Mode: 0o777, Target: target, Exclusive: true}}})
	return attrOf(resp, err, "client.Symlink", path)
}

// Remove removes a file, a symbolic link or an empty directory.
func (c *Client) Remove(ctx context.Context, path string) error {
	w, err := c.paths.entry(ctx, path)
	if err == nil && !w.Found {
		err = &moraine.Error{Kind: moraine.NotFound}
	}
	if err != nil {
		return retry.Wrap("client.Remove", path, err)
	}
	_, err = c.meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: w.Parent,
		Name: w.Name, Directory: w.Attr.Type == wire.FileType_FILE_TYPE_DIRECTORY}}})
	return retry.Wrap("client.Remove", path, err)
}

// RemoveAll removes path and everything below it. A directory disappears at once; the service
// frees its content in the background. A path that does not exist is no error.
func (c *Client) RemoveAll(ctx context.Context, path string) error {
	return c.RemoveAllWith(ctx, path, RemoveAllOptions{})
}

// RemoveAllOptions says what else the removal of a tree may remove.
type RemoveAllOptions struct {
	// Checkpoints also removes a tree with committed checkpoints, and a run's last good one.
	// Without it that fails with Immutable. A checkpoint that a reader uses is Busy in either
	// case.
	Checkpoints bool
}

// RemoveAllWith is RemoveAll with options.
func (c *Client) RemoveAllWith(ctx context.Context, path string, opts RemoveAllOptions) error {
	w, err := c.paths.entry(ctx, path)
	if retry.IsKind(err, moraine.NotFound) || (err == nil && !w.Found) {
		return nil
	}
	if err != nil {
		return retry.Wrap("client.RemoveAll", path, err)
	}
	req := &wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: w.Parent, Name: w.Name}}}
	if w.Attr.Type == wire.FileType_FILE_TYPE_DIRECTORY {
		req.Op = &wire.MetaRequest_RemoveTree{RemoveTree: &wire.RemoveTree{Parent: w.Parent, Name: w.Name, Force: opts.Checkpoints}}
	}
	_, err = c.meta.Do(ctx, req)
	if retry.IsKind(err, moraine.NotFound) {
		return nil
	}
	return retry.Wrap("client.RemoveAll", path, err)
}

// RenameOptions says what a rename does if the new name is taken.
type RenameOptions struct {
	NoReplace bool // fail with Exists if the new name is taken
	Exchange  bool // swap the two entries
	// Whiteout puts a character device 0/0 of that owner at the old name, in the same step: overlay
	// file systems take it for a removed entry. Inodes.Rename only, and not with Exchange.
	Whiteout *NodeOptions
	// Keep leaves a replaced file to the session if that was its last name, as RemoveOptions.Keep
	// does. Inodes.Rename only.
	Keep bool
	// Checkpoints also moves a directory with committed checkpoints: a run, or a directory above
	// one. Rename only.
	Checkpoints bool
}

// Rename moves an entry.
func (c *Client) Rename(ctx context.Context, from, to string, opts RenameOptions) error {
	src, err := c.paths.entry(ctx, from)
	if err == nil && !src.Found {
		err = &moraine.Error{Kind: moraine.NotFound}
	}
	if err != nil {
		return retry.Wrap("client.Rename", from, err)
	}
	dst, err := c.paths.entry(ctx, to)
	if err != nil {
		return retry.Wrap("client.Rename", to, err)
	}
	_, err = c.meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_Rename{Rename: &wire.Rename{
		Parent: src.Parent, Name: src.Name, NewParent: dst.Parent, NewName: dst.Name,
		NoReplace: opts.NoReplace, Exchange: opts.Exchange, Force: opts.Checkpoints}}})
	return retry.Wrap("client.Rename", from, err)
}

// SetAttr changes the attributes of the inode at path that set names; it follows symbolic links.
func (c *Client) SetAttr(ctx context.Context, path string, set SetAttr) (Attr, error) {
	at, err := c.paths.find(ctx, path, true)
	if err != nil {
		return Attr{}, retry.Wrap("client.SetAttr", path, err)
	}
	a, err := c.Inodes().SetAttr(ctx, moraine.InodeID(at.Inode), set)
	return a, retry.Wrap("client.SetAttr", path, err)
}

// readDirPage is how many entries one request returns.
const readDirPage = 500

// ReadDir yields the entries of a directory, in order of name. It is not a snapshot: entries
// made or removed meanwhile may or may not be seen. An error is the last thing that it yields.
func (c *Client) ReadDir(ctx context.Context, path string) iter.Seq2[DirEntry, error] {
	return func(yield func(DirEntry, error) bool) {
		a, err := c.paths.find(ctx, path, true)
		if err != nil {
			yield(DirEntry{}, retry.Wrap("client.ReadDir", path, err))
			return
		}
		for e, err := range c.Inodes().ReadDir(ctx, moraine.InodeID(a.Inode)) {
			if !yield(e, retry.Wrap("client.ReadDir", path, err)) {
				return
			}
		}
	}
}
