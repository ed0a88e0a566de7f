package localserver

import (
	"context"

	"github.com/aws/aws-sdk-go-v2/service/s3"
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
