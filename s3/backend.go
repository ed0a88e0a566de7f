package s3

import (
	"context"
	"path"
	"strings"

	versity "github.com/versity/versitygw/backend"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	own "github.com/morainefs/moraine/internal/versity"
	"github.com/morainefs/moraine/transport/wire"
)

// backend implements the interface of the library. Methods that this package does
// not override answer NotImplemented. Its methods are called concurrently.
type backend struct {
	versity.BackendUnsupported
	// life limits every request: the library's own contexts end only with the
	// process, and are reused while a body is still being sent.
	life   context.Context
	cfg    Config
	deps   Deps
	cl     *client.Client
	places *own.Places
}

var _ versity.Backend = (*backend)(nil)

func newBackend(life context.Context, cfg Config, deps Deps, places *own.Places) *backend {
	return &backend{life: life, cfg: cfg, deps: deps, cl: deps.Client, places: places}
}

// String names the backend to the library.
func (b *backend) String() string { return "Moraine" }

// bucketPath is the directory of a bucket.
func (b *backend) bucketPath(bucket string) string { return path.Join("/", bucket) }

// path is the file, or directory, of a key.
func (b *backend) path(k objectKey) string { return path.Join("/", k.bucket, k.key) }

// object is a file or directory found at a key.
type object struct {
	attr   *wire.Attr
	record record
}

func (o *object) inode() moraine.InodeID { return moraine.InodeID(o.attr.Inode) }

// isDir reports whether the object is a directory.
func (o *object) isDir() bool { return o.attr.Type == wire.FileType_FILE_TYPE_DIRECTORY }

// find returns the object at a key. It returns NotFound if nothing has the path, or
// for a directory that was not put as an object. It also does so if a key that ends
// in a slash names a file, or another key a directory.
func (b *backend) find(ctx context.Context, k objectKey) (*object, error) {
	attr, err := b.cl.Stat(ctx, b.path(k))
	if err != nil {
		return nil, missing(err)
	}
	o := &object{attr: attr}
	if o.isDir() != k.isDir() || !o.isDir() && attr.Type != wire.FileType_FILE_TYPE_REGULAR {
		return nil, moraine.NotFound
	}
	if o.record, err = b.readRecord(ctx, o.inode()); err != nil {
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

// str is what p points to, or "" for nil.
func str(p *string) string {
	if p == nil {
		return ""
	}
	return *p
}

// ptr returns nil for an empty string.
func ptr(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func unquote(etag string) string { return strings.Trim(etag, `"`) }
