package client

import (
	"context"
	"errors"
	"path"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
)

var errRoot = errors.New("not the root directory")

// SkipDir, returned by the function given to Walk, skips what is below the directory that the
// function was called for.
var SkipDir = errors.New("skip this directory")

// maxDepth bounds how deep Walk goes.
const maxDepth = 4096

// Walk calls fn for root and everything below it: a directory before its entries, entries in
// order of name. It does not follow symbolic links. An error of fn ends the walk and is
// returned as it is. Walk skips what is removed meanwhile.
func (c *Client) Walk(ctx context.Context, root string, fn func(path string, attr Attr) error) error {
	a, err := c.paths.find(ctx, root, false)
	if err != nil {
		return retry.Wrap("client.Walk", root, err)
	}
	err = walkTree(ctx, c, path.Clean("/"+root), Attr{a}, fn, 0)
	if errors.Is(err, SkipDir) {
		return nil
	}
	return err
}

func walkTree(ctx context.Context, c *Client, at string, a Attr, fn func(string, Attr) error, depth int) error {
	if err := fn(at, a); err != nil || !a.IsDir() {
		return err
	}
	if depth == maxDepth {
		return &moraine.Error{Op: "client.Walk", Ref: at, Kind: moraine.TooLarge}
	}
	for e, err := range c.Inodes().ReadDir(ctx, a.Inode()) {
		if retry.IsKind(err, moraine.NotFound) {
			return nil
		}
		if err != nil {
			return retry.Wrap("client.Walk", at, err)
		}
		err = walkTree(ctx, c, path.Join(at, e.Name), e.Attr, fn, depth+1)
		if err != nil && !errors.Is(err, SkipDir) {
			return err
		}
	}
	return nil
}
