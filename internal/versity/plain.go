package versity

import (
	"context"

	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/versity/versitygw/backend"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"
)

// Plain answers what the library asks before every request, or before many, for buckets without
// policies, versions and locks. There is one account, which may do anything. Methods that a
// backend does not have otherwise answer NotImplemented.
type Plain struct {
	backend.BackendUnsupported
}

// GetBucketPolicy answers that there is none.
func (Plain) GetBucketPolicy(_ context.Context, bucket string) ([]byte, error) {
	return nil, s3err.GetBucketErr(s3err.ErrNoSuchBucketPolicy, bucket)
}

// GetBucketCors answers that there is none.
func (Plain) GetBucketCors(_ context.Context, bucket string) ([]byte, error) {
	return nil, s3err.GetBucketErr(s3err.ErrNoSuchCORSConfiguration, bucket)
}

// GetBucketOwnershipControls answers that the bucket's owner owns its objects.
func (Plain) GetBucketOwnershipControls(context.Context, string) (types.ObjectOwnership, error) {
	return types.ObjectOwnershipBucketOwnerEnforced, nil
}

// GetBucketVersioning answers that versioning was never turned on.
func (Plain) GetBucketVersioning(context.Context, string) (s3response.GetBucketVersioningOutput, error) {
	return s3response.GetBucketVersioningOutput{}, nil
}

// GetObjectLockConfiguration answers that there is none.
func (Plain) GetObjectLockConfiguration(_ context.Context, bucket string) ([]byte, error) {
	return nil, s3err.GetBucketErr(s3err.ErrObjectLockConfigurationNotFound, bucket)
}
