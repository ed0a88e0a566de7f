package localserver

import (
	"context"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"
)

// ListBuckets lists the one bucket.
func (b *backend) ListBuckets(_ context.Context, in s3response.ListBucketsInput) (out s3response.ListAllMyBucketsResult, err error) {
	out.Owner = s3response.CanonicalUser{ID: in.Owner}
	out.Buckets.Bucket = []s3response.ListAllMyBucketsEntry{{Name: b.bucket, CreationDate: b.made}}
	return out, nil
}

// HeadBucket reports whether the bucket exists.
func (b *backend) HeadBucket(_ context.Context, in *s3.HeadBucketInput) (*s3.HeadBucketOutput, error) {
	return &s3.HeadBucketOutput{}, b.has(str(in.Bucket))
}

// CreateBucket answers that the bucket exists.
func (b *backend) CreateBucket(_ context.Context, in *s3.CreateBucketInput, _ []byte) error {
	if str(in.Bucket) == b.bucket {
		return s3err.GetBucketErr(s3err.ErrBucketAlreadyOwnedByYou, b.bucket)
	}
	return s3err.GetAPIError(s3err.ErrNotImplemented)
}

// GetBucketAcl answers that there is none; the library calls it first.
func (b *backend) GetBucketAcl(_ context.Context, in *s3.GetBucketAclInput) ([]byte, error) {
	return nil, b.has(str(in.Bucket))
}

// GetBucketPolicy answers that there is none.
func (b *backend) GetBucketPolicy(_ context.Context, bucket string) ([]byte, error) {
	return nil, s3err.GetBucketErr(s3err.ErrNoSuchBucketPolicy, bucket)
}

// GetBucketCors answers that there is none.
func (b *backend) GetBucketCors(_ context.Context, bucket string) ([]byte, error) {
	return nil, s3err.GetBucketErr(s3err.ErrNoSuchCORSConfiguration, bucket)
}

// GetBucketOwnershipControls answers that the bucket's owner owns its objects.
func (b *backend) GetBucketOwnershipControls(context.Context, string) (types.ObjectOwnership, error) {
	return types.ObjectOwnershipBucketOwnerEnforced, nil
}

// GetBucketVersioning answers that versioning was never turned on.
func (b *backend) GetBucketVersioning(context.Context, string) (s3response.GetBucketVersioningOutput, error) {
	return s3response.GetBucketVersioningOutput{}, nil
}

// GetObjectLockConfiguration answers that there is none.
func (b *backend) GetObjectLockConfiguration(_ context.Context, bucket string) ([]byte, error) {
	return nil, s3err.GetBucketErr(s3err.ErrObjectLockConfigurationNotFound, bucket)
}
