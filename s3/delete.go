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
	dir, err := b.objects.remove(b.life, in)
	if err == nil {
		b.tree.prune(b.life, str(in.Bucket), dir)
	}
	return &s3.DeleteObjectOutput{}, b.requests.answer(rc, "DeleteObject", err)
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
				dir, err := b.objects.remove(b.life, &s3.DeleteObjectInput{Bucket: in.Bucket, Key: o.Key, VersionId: o.VersionId,
					IfMatch: o.ETag, IfMatchSize: o.Size, IfMatchLastModifiedTime: o.LastModifiedTime})
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					out.Error = append(out.Error, s3err.ObjectDeleteError(o.Key, o.VersionId, b.requests.answer(b.life, "DeleteObjects", err)))
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
		b.tree.prune(b.life, str(in.Bucket), dir)
	}
	return out, nil
}

// remove removes an object and returns its directory.
func (objs *objects) remove(ctx context.Context, in *s3.DeleteObjectInput) (dir string, err error) {
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
		o, err := objs.tree.find(ctx, k)
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
			return path.Clean(k.key), objs.tree.deleteDir(ctx, o)
		}
		return dir, objs.tree.removeFile(ctx, k, &client.Expect{Inode: o.inode(), Generation: o.attr.Generation()})
	}
	return dir, objs.tree.removeFile(ctx, k, nil)
}
