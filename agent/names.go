package agent

import (
	"context"
	"errors"
	"path"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt/agentproto/fileproto"
)

// mkdir makes a directory that belongs to the peer's user.
func (c *conn) mkdir(ctx context.Context, fc *client.Client, req *fileproto.Mkdir) (*fileproto.Entry, error) {
	name := path.Clean("/" + string(req.Path))
	if req.Parents {
		if err := c.makeParents(ctx, fc, name); err != nil {
			return nil, err
		}
	}
	a, err := c.makeDir(ctx, fc, name, req.Exclusive)
	if err != nil {
		return nil, err
	}
	e := entryOf(path.Base(name), a)
	return &e, nil
}

// makeParents makes the directories above a path that are missing.
func (c *conn) makeParents(ctx context.Context, fc *client.Client, name string) error {
	up := path.Dir(path.Clean("/" + name))
	a, err := fc.Stat(ctx, up)
	switch {
	case err == nil && !a.IsDir():
		return &moraine.Error{Op: "agent.Mkdir", Ref: up, Kind: moraine.NotDirectory}
	case err == nil || moraine.KindOf(err) != moraine.NotFound:
		return err
	}
	if err := c.makeParents(ctx, fc, up); err != nil {
		return err
	}
	_, err = c.makeDir(ctx, fc, up, false)
	return err
}

// makeDir makes one directory. Without exclusive one may be there, or a link to one.
func (c *conn) makeDir(ctx context.Context, fc *client.Client, name string, exclusive bool) (client.Attr, error) {
	up, err := fc.Stat(ctx, path.Dir(name))
	if err != nil {
		return client.Attr{}, err
	}
	var a client.Attr
	if name == "/" {
		a, err = up, &moraine.Error{Op: "agent.Mkdir", Ref: name, Kind: moraine.Exists}
	} else {
		a, err = fc.Inodes().Mkdir(ctx, up.Inode(), path.Base(name), client.NodeOptions{Mode: 0o755, UID: c.uid, GID: c.gid, Exclusive: exclusive})
	}
	if !exclusive && err != nil && moraine.KindOf(err) == moraine.Exists {
		if there, serr := fc.Stat(ctx, name); serr == nil && there.IsDir() {
			return there, nil
		}
	}
	return a, err
}

func remove(ctx context.Context, fc *client.Client, req *fileproto.Remove) (*fileproto.RemoveReply, error) {
	if !req.Tree {
		return &fileproto.RemoveReply{}, fc.Remove(ctx, string(req.Path))
	}
	if _, err := fc.Lstat(ctx, string(req.Path)); err != nil { // RemoveAll finds a missing name good
		return nil, err
	}
	return &fileproto.RemoveReply{}, fc.RemoveAll(ctx, string(req.Path))
}

func rename(ctx context.Context, fc *client.Client, req *fileproto.Rename) (*fileproto.RenameReply, error) {
	return &fileproto.RenameReply{}, fc.Rename(ctx, string(req.From), string(req.To), client.RenameOptions{NoReplace: req.Exclusive})
}

// clone makes a clone that belongs to the peer's user.
func (c *conn) clone(ctx context.Context, fc *client.Client, req *fileproto.Clone) (*fileproto.Entry, error) {
	src, err := fc.Stat(ctx, string(req.From))
	if err != nil {
		return nil, err
	}
	if src.IsDir() {
		return nil, &moraine.Error{Op: "agent.Clone", Ref: string(req.From), Kind: moraine.IsDirectory, Err: errors.New("clone its files one by one")}
	}
	if req.Parents {
		if err := c.makeParents(ctx, fc, string(req.To)); err != nil {
			return nil, err
		}
	}
	a, err := fc.CloneFile(ctx, src.Inode(), string(req.To), client.CreateOptions{Replace: !req.Exclusive, UID: c.uid, GID: c.gid})
	if err != nil {
		return nil, err
	}
	e := entryOf(path.Base(path.Clean("/"+string(req.To))), a)
	return &e, nil
}
