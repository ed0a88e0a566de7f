package s3

import (
	"context"
	"errors"
	"path"
	"sync"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	versity "github.com/versity/versitygw/backend"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"
	"golang.org/x/sync/errgroup"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
)

// deletesAtOnce limits the concurrent deletions of one DeleteObjects.
const deletesAtOnce = 16

// DeleteObject removes an object. A missing object is no error.
func (b *backend) DeleteObject(rc context.Context, in *s3.DeleteObjectInput) (*s3.DeleteObjectOutput, error) {
	dir, err := b.deleteObject(b.life, in)
	if err == nil {
		b.prune(b.life, str(in.Bucket), dir)
	}
	return &s3.DeleteObjectOutput{}, b.answer(rc, "DeleteObject", err)
}

// DeleteObjects removes objects, each by itself: some may be removed while others
// fail. A checkpoint is removed with its index, and its other files only after
// that. So indexes go first.
func (b *backend) DeleteObjects(rc context.Context, in *s3.DeleteObjectsInput) (s3response.DeleteResult, error) {
	var (
		mu   sync.Mutex // guards out and dirs
		out  s3response.DeleteResult
		dirs = map[string]bool{}
	)
	var indexes, others []types.ObjectIdentifier
	for _, o := range in.Delete.Objects {
		if path.Base(str(o.Key)) == ckpt.IndexName {
			indexes = append(indexes, o)
		} else {
			others = append(others, o)
		}
	}
	for _, objects := range [][]types.ObjectIdentifier{indexes, others} {
		var g errgroup.Group
		g.SetLimit(deletesAtOnce)
		for _, o := range objects {
			g.Go(func() error {
				dir, err := b.deleteObject(b.life, &s3.DeleteObjectInput{Bucket: in.Bucket, Key: o.Key, VersionId: o.VersionId,
					IfMatch: o.ETag, IfMatchSize: o.Size, IfMatchLastModifiedTime: o.LastModifiedTime})
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					out.Error = append(out.Error, s3err.ObjectDeleteError(o.Key, o.VersionId, b.answer(b.life, "DeleteObjects", err)))
					return nil
				}
				dirs[dir] = true
				if in.Delete.Quiet != nil && *in.Delete.Quiet {
					return nil
				}
				out.Deleted = append(out.Deleted, types.DeletedObject{Key: o.Key})
				return nil
			})
		}
		_ = g.Wait() // out has the errors
	}
	for dir := range dirs {
		b.prune(b.life, str(in.Bucket), dir)
	}
	return out, nil
}

// deleteObject removes an object and returns its directory.
func (b *backend) deleteObject(ctx context.Context, in *s3.DeleteObjectInput) (dir string, err error) {
	k, err := parseKey(str(in.Bucket), str(in.Key))
	if err != nil {
		return "", err
	}
	if v := str(in.VersionId); v != "" && v != "null" {
		return "", s3err.GetInvalidArgumentErr(s3err.InvalidArgVersionId, v)
	}
	cond := versity.ObjectDeletePreconditions{IfMatch: in.IfMatch, IfMatchLastModTime: in.IfMatchLastModifiedTime, IfMatchSize: in.IfMatchSize}
	if cond.IfMatch != nil && unquote(*cond.IfMatch) == "*" {
		cond.IfMatch = nil
	}
	dir = path.Dir(path.Clean(k.key))
	if k.isDir() || cond != (versity.ObjectDeletePreconditions{}) {
		o, err := b.find(ctx, k)
		if errors.Is(err, moraine.NotFound) {
			return dir, nil
		}
		if err == nil {
			err = versity.EvaluateObjectDeletePreconditions(etag(o.attr), o.mtime(), o.size(), cond)
		}
		if err != nil {
			return dir, err
		}
		if o.isDir() {
			return path.Clean(k.key), b.deleteDir(ctx, o)
		}
		return dir, b.removeFile(ctx, k, &client.Expect{Inode: o.inode(), Generation: moraine.Generation(o.attr.Generation)})
	}
	return dir, b.removeFile(ctx, k, nil)
}

// removeFile removes the file at the path of a key, unless it is a directory.
// expect, if not nil, is the object whose conditions were true.
func (b *backend) removeFile(ctx context.Context, k objectKey, expect *client.Expect) error {
	parent, err := b.cl.Stat(ctx, path.Dir(b.path(k)))
	if err == nil {
		_, err = b.cl.Inodes().Remove(ctx, moraine.InodeID(parent.Inode), path.Base(k.key), client.RemoveOptions{Expect: expect})
	}
	if err == nil {
		return nil
	}
	switch moraine.KindOf(err) {
	case moraine.Conflict:
		return s3err.GetPreconditionFailedErr(s3err.ConditionIfMatch)
	case moraine.NotFound, moraine.NotDirectory, moraine.IsDirectory:
		return nil // no such object
	}
	return err
}

// deleteDir turns a directory that was put as an object into an implied one. It is
// removed if it is empty, and stays invisible otherwise.
func (b *backend) deleteDir(ctx context.Context, o *object) error {
	return b.writeRecord(ctx, o.inode(), &record{Directory: dirImplied})
}
