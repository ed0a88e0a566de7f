package s3

import (
	"context"
	"errors"
	"path"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"

	"github.com/morainefs/moraine"
)

// buckets makes, lists and removes buckets, which are directories of the root.
type buckets struct {
	tree          *tree
	region, owner string // of each bucket
}

// ListBuckets lists the directories of the root that can be buckets.
func (b *backend) ListBuckets(rc context.Context, in s3response.ListBucketsInput) (s3response.ListAllMyBucketsResult, error) {
	out, err := b.buckets.list(b.life, in)
	return out, b.requests.answer(rc, "ListBuckets", err)
}

func (bs *buckets) list(ctx context.Context, in s3response.ListBucketsInput) (s3response.ListAllMyBucketsResult, error) {
	out := s3response.ListAllMyBucketsResult{Owner: s3response.CanonicalUser{ID: in.Owner}, Prefix: in.Prefix}
	var buckets []s3response.ListAllMyBucketsEntry
	for e, err := range bs.tree.cl.ReadDir(ctx, "/") {
		if err != nil {
			return out, err
		}
		if !e.Attr.IsDir() || !usableBucket(e.Name) ||
			!strings.HasPrefix(e.Name, in.Prefix) || e.Name <= in.ContinuationToken {
			continue
		}
		if in.MaxBuckets > 0 && len(buckets) == int(in.MaxBuckets) {
			out.ContinuationToken = buckets[len(buckets)-1].Name
			break
		}
		buckets = append(buckets, s3response.ListAllMyBucketsEntry{Name: e.Name, BucketRegion: bs.region, CreationDate: e.Attr.ChangeTime().UTC()})
	}
	out.Buckets.Bucket = buckets
	return out, nil
}

// ListBucketsAndOwners is ListBuckets for the library's administration.
func (b *backend) ListBucketsAndOwners(rc context.Context) ([]s3response.Bucket, error) {
	all, err := b.ListBuckets(rc, s3response.ListBucketsInput{IsAdmin: true})
	var out []s3response.Bucket
	for _, e := range all.Buckets.Bucket {
		out = append(out, s3response.Bucket{Name: e.Name, Owner: b.buckets.owner})
	}
	return out, err
}

// HeadBucket reports whether the bucket exists.
func (b *backend) HeadBucket(rc context.Context, in *s3.HeadBucketInput) (*s3.HeadBucketOutput, error) {
	err := b.tree.mustBucket(b.life, str(in.Bucket))
	return &s3.HeadBucketOutput{BucketRegion: &b.buckets.region}, b.requests.answer(rc, "HeadBucket", err)
}

// CreateBucket makes a bucket's directory.
func (b *backend) CreateBucket(rc context.Context, in *s3.CreateBucketInput, _ []byte) error {
	return b.requests.answer(rc, "CreateBucket", b.buckets.create(b.life, in))
}

func (bs *buckets) create(ctx context.Context, in *s3.CreateBucketInput) error {
	bucket := str(in.Bucket)
	if !properBucket(bucket) {
		return s3err.GetBucketErr(s3err.ErrInvalidBucketName, bucket)
	}
	if lock := in.ObjectLockEnabledForBucket; lock != nil && *lock {
		return s3err.GetAPIError(s3err.ErrNotImplemented)
	}
	if c := in.CreateBucketConfiguration; c != nil && len(c.Tags) > 0 {
		return s3err.GetAPIError(s3err.ErrNotImplemented)
	}
	_, err := bs.tree.cl.Mkdir(ctx, bucketPath(bucket), dirMode)
	if errors.Is(err, moraine.Exists) {
		return s3err.GetBucketErr(s3err.ErrBucketAlreadyOwnedByYou, bucket)
	}
	return err
}

// DeleteBucket removes a bucket whose directory has nothing but unfinished uploads.
func (b *backend) DeleteBucket(rc context.Context, bucket string) error {
	return b.requests.answer(rc, "DeleteBucket", b.buckets.remove(b.life, bucket))
}

func (bs *buckets) remove(ctx context.Context, bucket string) error {
	attr, err := bs.tree.findBucket(ctx, bucket)
	if err != nil {
		return err
	}
	p := bucketPath(bucket)
	empty, err := bs.tree.sweep(ctx, p, attr.Inode())
	if err != nil {
		return err
	}
	if !empty {
		return s3err.GetBucketErr(s3err.ErrBucketNotEmpty, bucket)
	}
	if err := bs.tree.cl.RemoveAll(ctx, path.Join(p, uploadsDir)); err != nil {
		return err
	}
	if err := bs.tree.cl.Remove(ctx, p); errors.Is(err, moraine.NotEmpty) {
		return s3err.GetBucketErr(s3err.ErrBucketNotEmpty, bucket)
	} else if err != nil {
		return err
	}
	return nil
}

// The library calls the methods below for every request, or for many. There is one
// account, which may do anything, so they have nothing to decide.

// GetBucketAcl answers that a bucket has no access list. The library calls it
// first, so it also reports whether the bucket exists.
func (b *backend) GetBucketAcl(rc context.Context, in *s3.GetBucketAclInput) ([]byte, error) {
	return nil, b.requests.answer(rc, "GetBucketAcl", b.tree.mustBucket(b.life, str(in.Bucket)))
}

// GetBucketTagging answers that there are no tags.
func (b *backend) GetBucketTagging(_ context.Context, bucket string) (map[string]string, error) {
	return nil, s3err.GetBucketErr(s3err.ErrBucketTaggingNotFound, bucket)
}
