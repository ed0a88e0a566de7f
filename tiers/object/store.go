package object

import "context"

// Store is what movers use of a bucket. *Bucket and the bucket of package objecttest implement it;
// the methods of Bucket document the contract.
type Store interface {
	Name() string
	Prefix() string
	Head(ctx context.Context, r Ref) (Info, error)
	Get(ctx context.Context, r Ref, off int64, dst []byte) error
	Delete(ctx context.Context, r Ref) error
	Copy(ctx context.Context, src Ref, size int64, dst string) (Info, error)
	NewUpload(ctx context.Context, key string, meta map[string]string) (string, error)
	PutPart(ctx context.Context, key, id string, number int, data []byte, crc uint32) (Part, error)
	Complete(ctx context.Context, key, id string, parts []Part, crc uint32, known bool, cond Condition) (Info, error)
	Abort(ctx context.Context, key, id string) error
	Uploads(ctx context.Context, key string) ([]string, error)
	Traits(ctx context.Context) (Traits, error)
	Known() (Traits, bool)
	URL() string
}
