package s3

import (
	"context"

	"github.com/versity/versitygw/s3err"
)

// GetObjectTagging returns an object's tags.
func (b *backend) GetObjectTagging(rc context.Context, bucket, key, version string) (map[string]string, error) {
	o, err := b.objects.tagged(b.life, bucket, key, version)
	if err != nil {
		return nil, b.requests.answer(rc, "GetObjectTagging", err)
	}
	return o.record.Tags, nil
}

// PutObjectTagging replaces an object's tags. Of two concurrent calls, or of one
// beside a PUT of the object, the record of one stays.
func (b *backend) PutObjectTagging(rc context.Context, bucket, key, version string, tags map[string]string) error {
	o, err := b.objects.tagged(b.life, bucket, key, version)
	if err == nil {
		o.record.Tags = tags
		err = b.tree.writeRecord(b.life, o.inode(), &o.record)
	}
	return b.requests.answer(rc, "PutObjectTagging", err)
}

// DeleteObjectTagging removes an object's tags.
func (b *backend) DeleteObjectTagging(rc context.Context, bucket, key, version string) error {
	return b.PutObjectTagging(rc, bucket, key, version, nil)
}

func (objs *objects) tagged(ctx context.Context, bucket, key, version string) (*object, error) {
	if version != "" && version != "null" {
		return nil, s3err.GetInvalidArgumentErr(s3err.InvalidArgVersionId, version)
	}
	k, err := parseKey(bucket, key)
	if err != nil {
		return nil, err
	}
	return objs.tree.find(ctx, k)
}
