package s3

import (
	"context"
	"errors"
	"path"

	"github.com/versity/versitygw/s3err"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
)

// tree is the files and directories that buckets and keys are, with the records in
// their extended attributes. It has no state but the client's, and no lock.
type tree struct {
	cl *client.Client
}

// bucketPath is the directory of a bucket.
func bucketPath(bucket string) string { return path.Join("/", bucket) }

// path is the file, or directory, of a key.
func (k objectKey) path() string { return path.Join("/", k.bucket, k.key) }

// object is a file or directory found at a key.
type object struct {
	attr   client.Attr
	record record
}

func (o *object) inode() moraine.InodeID { return o.attr.Inode() }

// isDir reports whether the object is a directory.
func (o *object) isDir() bool { return o.attr.IsDir() }

// find returns the object at a key. It returns NotFound if nothing has the path, or
// for a directory that was not put as an object. It also does so if a key that ends
// in a slash names a file, or another key a directory.
func (t *tree) find(ctx context.Context, k objectKey) (*object, error) {
	attr, err := t.cl.Stat(ctx, k.path())
	if err != nil {
		return nil, missing(err)
	}
	o := &object{attr: attr}
	if o.isDir() != k.isDir() || !o.isDir() && !attr.IsRegular() {
		return nil, moraine.NotFound
	}
	if o.record, err = t.readRecord(ctx, o.inode()); err != nil {
		return nil, err
	}
	if o.isDir() && o.record.Directory != dirObject {
		return nil, moraine.NotFound
	}
	return o, nil
}

// missing turns the error of a path through a file into NotFound.
func missing(err error) error {
	if moraine.KindOf(err) == moraine.NotDirectory {
		return moraine.NotFound
	}
	return err
}

// findBucket returns the directory of a bucket.
func (t *tree) findBucket(ctx context.Context, bucket string) (client.Attr, error) {
	if !usableBucket(bucket) {
		return client.Attr{}, s3err.GetBucketErr(s3err.ErrInvalidBucketName, bucket)
	}
	attr, err := t.cl.Stat(ctx, bucketPath(bucket))
	if err != nil && !errors.Is(err, moraine.NotFound) {
		return client.Attr{}, err
	}
	if err != nil || !attr.IsDir() {
		return client.Attr{}, s3err.GetBucketErr(s3err.ErrNoSuchBucket, bucket)
	}
	return attr, nil
}

// mustBucket fails if the bucket does not exist.
func (t *tree) mustBucket(ctx context.Context, bucket string) error {
	_, err := t.findBucket(ctx, bucket)
	return err
}

// open returns the object of a key and, for a file, a Reader of the content that it
// describes.
func (t *tree) open(ctx context.Context, k objectKey) (*object, *client.Reader, error) {
	if k.isDir() {
		o, err := t.find(ctx, k)
		return o, nil, err
	}
	r, err := t.cl.OpenFile(ctx, k.path())
	switch {
	case errors.Is(err, moraine.IsDirectory), errors.Is(err, moraine.InvalidArgument):
		return nil, nil, moraine.NotFound
	case err != nil:
		return nil, nil, missing(err)
	}
	o := &object{attr: r.Attr()}
	if o.record, err = t.readRecord(ctx, o.inode()); err != nil {
		_ = r.Close()
		return nil, nil, err
	}
	return o, r, nil
}

// readRecord returns the record of an inode, or an empty one if it has none.
func (t *tree) readRecord(ctx context.Context, inode moraine.InodeID) (record, error) {
	data, err := t.cl.Xattrs().Get(ctx, inode, recordXattr)
	if errors.Is(err, moraine.NoAttribute) {
		return record{}, nil
	}
	if err != nil {
		return record{}, err
	}
	return decodeRecord(data)
}

// writeRecord sets the record of an inode.
func (t *tree) writeRecord(ctx context.Context, inode moraine.InodeID, r *record) error {
	data, err := r.encode()
	if err != nil {
		return err
	}
	return t.cl.Xattrs().Set(ctx, inode, recordXattr, data, 0)
}

// removeFile removes the file at the path of a key, unless it is a directory.
// expect, if not nil, is the object whose conditions were true.
func (t *tree) removeFile(ctx context.Context, k objectKey, expect *client.Expect) error {
	parent, err := t.cl.Stat(ctx, path.Dir(k.path()))
	if err == nil {
		_, err = t.cl.Inodes().Remove(ctx, parent.Inode(), path.Base(k.key), client.RemoveOptions{Expect: expect})
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
func (t *tree) deleteDir(ctx context.Context, o *object) error {
	return t.writeRecord(ctx, o.inode(), &record{Directory: dirImplied})
}
