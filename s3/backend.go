package s3

import (
	"context"
	"strings"

	versity "github.com/versity/versitygw/backend"

	own "github.com/morainefs/moraine/internal/versity"
)

// backend implements the interface of the library. Methods that this package does
// not override answer NotImplemented. Its methods are called concurrently. Each
// turns a request into calls of the parts below, and their results into an answer.
// Nothing here or in the parts changes, so none has a lock.
type backend struct {
	own.Plain
	// life limits every request: the library's own contexts end only with the
	// process, and are reused while a body is still being sent.
	life     context.Context
	requests *requests
	tree     *tree
	buckets  *buckets
	objects  *objects
	uploads  *uploads
}

var _ versity.Backend = (*backend)(nil)

func newBackend(life context.Context, cfg Config, deps Deps, places *own.Places) *backend {
	t := &tree{cl: deps.Client}
	objs := &objects{tree: t, log: deps.Log, metrics: deps.Metrics}
	return &backend{
		life: life,
		requests: &requests{life: life, cl: deps.Client, level: cfg.Level, stall: cfg.StallTimeout, places: places,
			log: deps.Log, metrics: deps.Metrics},
		tree:    t,
		buckets: &buckets{tree: t, region: cfg.Region, owner: cfg.AccessKey},
		objects: objs,
		uploads: &uploads{tree: t, objects: objs, owner: cfg.AccessKey},
	}
}

// String names the backend to the library.
func (b *backend) String() string { return "Moraine" }

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
