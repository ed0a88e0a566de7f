package s3

import (
	"context"
	"errors"
	"path"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/transport/wire"
)

// dirMode is the mode of the directories that are made for keys.
const dirMode = 0o755

// makeDirs makes the directories above a key, below its bucket, as far as they
// are missing, and marks each as made for keys, so that it goes when the last
// key below it does.
func (b *backend) makeDirs(ctx context.Context, bucket, dir string) (*wire.Attr, error) {
	p := path.Join(b.bucketPath(bucket), dir)
	attr, err := b.cl.Stat(ctx, p)
	if err == nil {
		if attr.Type != wire.FileType_FILE_TYPE_DIRECTORY {
			err = moraine.NotDirectory
		}
		return attr, err
	}
	if !errors.Is(err, moraine.NotFound) || dir == "." || dir == "" {
		return nil, err
	}
	parent, err := b.makeDirs(ctx, bucket, path.Dir(dir))
	if err != nil {
		return nil, err
	}
	attr, err = b.cl.MkdirAt(ctx, moraine.InodeID(parent.Inode), path.Base(dir), client.NodeOptions{Mode: dirMode, Exclusive: true})
	if errors.Is(err, moraine.Exists) {
		return b.makeDirs(ctx, bucket, dir) // somebody was quicker
	}
	if err != nil {
		return nil, err
	}
	return attr, b.writeRecord(ctx, moraine.InodeID(attr.Inode), &record{Directory: dirImplied})
}

// prune removes a directory of a bucket, and those above it, as far as they were
// made for keys and are empty now. What cannot be removed stays: nothing depends
// on it.
func (b *backend) prune(ctx context.Context, bucket, dir string) {
	for dir != "." && dir != "" {
		p := path.Join(b.bucketPath(bucket), dir)
		attr, err := b.cl.Lstat(ctx, p)
		if err != nil || attr.Type != wire.FileType_FILE_TYPE_DIRECTORY {
			return
		}
		inode := moraine.InodeID(attr.Inode)
		if empty, err := b.emptyDir(ctx, inode); err != nil || !empty {
			return
		}
		r, err := b.readRecord(ctx, inode)
		if err != nil || r.Directory != dirImplied {
			return
		}
		if err := b.cl.Remove(ctx, p); err != nil {
			return
		}
		dir = path.Dir(dir)
	}
}

// emptyDir reports whether a directory has no entry.
func (b *backend) emptyDir(ctx context.Context, dir moraine.InodeID) (bool, error) {
	for _, err := range b.cl.ReadDirInode(ctx, dir) {
		return false, err
	}
	return true, nil
}
