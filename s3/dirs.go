package s3

import (
	"context"
	"errors"
	"fmt"
	"path"

	"github.com/versity/versitygw/s3err"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
)

// dirMode is the mode of directories made for keys.
const dirMode = 0o755

// dirTries limits how often the directories above a key are made again after
// deletions of other keys remove them.
const dirTries = 100

// dirsGone is the error of a key whose directories were removed dirTries times.
func dirsGone(key string) error {
	return &moraine.Error{Op: "s3", Ref: key, Kind: moraine.Conflict,
		Err: fmt.Errorf("deletions of other keys removed the directories above it %d times: try again", dirTries)}
}

// makeDirs makes the missing directories above a key, below its bucket. It marks
// each as made for keys, so that it is removed with the last key below it.
func (t *tree) makeDirs(ctx context.Context, bucket, dir string) (client.Attr, error) {
	for range dirTries {
		attr, err := t.makeDirsOnce(ctx, bucket, dir)
		if !errors.Is(err, moraine.NotFound) {
			return attr, err
		}
	}
	return client.Attr{}, dirsGone(dir)
}

// makeDirsOnce is one attempt of makeDirs. It returns NotFound if somebody removes
// a directory before makeDirsOnce creates the next one in it.
func (t *tree) makeDirsOnce(ctx context.Context, bucket, dir string) (client.Attr, error) {
	attr, err := t.cl.Stat(ctx, path.Join(bucketPath(bucket), dir))
	switch {
	case err == nil && !attr.IsDir():
		return client.Attr{}, moraine.NotDirectory
	case !errors.Is(err, moraine.NotFound):
		return attr, err
	case dir == "." || dir == "":
		return client.Attr{}, s3err.GetBucketErr(s3err.ErrNoSuchBucket, bucket)
	}
	parent, err := t.makeDirsOnce(ctx, bucket, path.Dir(dir))
	if err != nil {
		return client.Attr{}, err
	}
	mark, err := (&record{Directory: dirImplied}).encode()
	if err != nil {
		return client.Attr{}, err
	}
	attr, err = t.cl.Inodes().Mkdir(ctx, parent.Inode(), path.Base(dir),
		client.NodeOptions{Mode: dirMode, Exclusive: true, Xattrs: map[string][]byte{recordXattr: mark}})
	if errors.Is(err, moraine.Exists) {
		return t.madeBefore(ctx, path.Join(bucketPath(bucket), dir))
	}
	return attr, err
}

// madeBefore returns the directory that another request made first, or NotFound if
// it is gone again. The name may also belong to a link that leads nowhere, or in a
// circle.
func (t *tree) madeBefore(ctx context.Context, p string) (client.Attr, error) {
	attr, err := t.cl.Lstat(ctx, p)
	if err == nil && !attr.IsDir() {
		return client.Attr{}, moraine.NotDirectory
	}
	return attr, err
}

// prune removes a directory of a bucket, and those above it, as far as they were
// made for keys and are now empty. It ignores failures: nothing depends on the
// removal.
func (t *tree) prune(ctx context.Context, bucket, dir string) {
	for dir != "." && dir != "" {
		if !t.removeImplied(ctx, path.Join(bucketPath(bucket), dir)) {
			return
		}
		dir = path.Dir(dir)
	}
}

// removeImplied removes an empty directory that was made for keys, and reports
// whether it did. A directory that has changed since the check stays: a client may
// have put it as an object.
func (t *tree) removeImplied(ctx context.Context, p string) bool {
	attr, err := t.cl.Lstat(ctx, p)
	if err != nil || !attr.IsDir() {
		return false
	}
	inode := attr.Inode()
	if empty, err := t.emptyDir(ctx, inode); err != nil || !empty {
		return false
	}
	if r, err := t.readRecord(ctx, inode); err != nil || r.Directory != dirImplied {
		return false
	}
	parent, err := t.cl.Stat(ctx, path.Dir(p))
	if err != nil {
		return false
	}
	_, err = t.cl.Inodes().Remove(ctx, parent.Inode(), path.Base(p),
		client.RemoveOptions{Directory: true, Expect: &client.Expect{Inode: inode, Ctime: attr.ChangeTime().UnixNano()}})
	return err == nil
}

// sweep removes what interrupted requests left below a directory: directories made
// for keys, without any key. It reports whether the directory is then empty, except
// for the parts of uploads.
func (t *tree) sweep(ctx context.Context, p string, dir moraine.InodeID) (bool, error) {
	for e, err := range t.cl.Inodes().ReadDir(ctx, dir) {
		if err != nil {
			return false, err
		}
		if e.Name == uploadsDir {
			continue
		}
		if !e.Attr.IsDir() {
			return false, nil
		}
		below := path.Join(p, e.Name)
		empty, err := t.sweep(ctx, below, e.Attr.Inode())
		if err != nil || !empty || !t.removeImplied(ctx, below) {
			return false, err
		}
	}
	return true, nil
}

// emptyDir reports whether a directory has no entry.
func (t *tree) emptyDir(ctx context.Context, dir moraine.InodeID) (bool, error) {
	for _, err := range t.cl.Inodes().ReadDir(ctx, dir) {
		return false, err
	}
	return true, nil
}

// moved reports whether a directory of a bucket is no longer the one it was.
func (t *tree) moved(ctx context.Context, bucket, dir string, was client.Attr) bool {
	now, err := t.cl.Stat(ctx, path.Join(bucketPath(bucket), dir))
	return errors.Is(err, moraine.NotFound) || err == nil && now.Inode() != was.Inode()
}
