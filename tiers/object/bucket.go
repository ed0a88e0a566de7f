// Package object accesses an S3-compatible bucket: the object tier. Each call
// changes one key. For every failure it says whether the store refused the request
// or may still have carried it out.
//
// The package makes no decisions. The mover decides which key to change and
// when, and how to treat a request whose answer was lost. It works under
// intents of the metadata service. The metadata service owns the keys. The
// package retries nothing: a retry would hide the first outcome, which the
// intent must settle.
//
// One path through it, an upload: NewUpload, then PutPart for each part with its
// CRC32C, which the store verifies where it can, then Complete. The client library
// signs each request. The request then passes the fence (fence.go). Once the job's
// lease may have expired, nothing of the request leaves this process, not even the
// rest of a body that is half sent.
package object

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/internal/objectkey"
)

// Config has the settings of an operator.
type Config struct {
	// Bucket is the bucket's name. Prefix begins all keys, without slashes at its
	// ends ("" for none).
	Bucket, Prefix string
	// Endpoint is the store's URL (http or https, host and port). Default: AWS S3.
	Endpoint string
	// Region that requests are signed for. Default us-east-1.
	Region string
	// VirtualHost puts the bucket's name into the host instead of the path.
	// Default: as AWS requires it for AWS, the path elsewhere.
	VirtualHost bool
	// AccessKey, SecretKey and SessionToken are the credentials. Without an access
	// key, requests are not signed.
	AccessKey, SecretKey, SessionToken string
	// NoChecksums omits the CRC32C of uploads, for stores that refuse unknown
	// headers.
	NoChecksums bool
	// StallTimeout is how long a request may go without a byte of it or of its
	// answer before it is cancelled. It must give a store the time to assemble a
	// large object. Default 10 min.
	StallTimeout time.Duration
	// CopyLimit is the size from which an object is copied in parts. Default 5 GiB,
	// the most that S3 copies at once.
	CopyLimit int64
}

const (
	defaultEndpoint = "https://s3.amazonaws.com"
	defaultRegion   = "us-east-1"
	maxCopy         = 5 << 30
	stallTimeout    = 10 * time.Minute
)

func (c *Config) setDefaults() {
	c.Endpoint = cmp.Or(c.Endpoint, defaultEndpoint)
	c.Region = cmp.Or(c.Region, defaultRegion)
	c.StallTimeout = cmp.Or(c.StallTimeout, stallTimeout)
	c.CopyLimit = cmp.Or(c.CopyLimit, maxCopy)
}

func (c *Config) validate() error {
	bad := func(format string, args ...any) error {
		return &moraine.Error{Op: "object.New", Ref: c.Bucket, Kind: moraine.InvalidArgument, Err: fmt.Errorf(format, args...)}
	}
	u, err := url.Parse(c.Endpoint)
	switch {
	case c.Bucket == "":
		return bad("no bucket given: name one")
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || strings.Trim(u.Path, "/") != "":
		return bad("invalid endpoint %q: write it as https://HOST:PORT", c.Endpoint)
	case strings.Trim(c.Prefix, "/") != c.Prefix || len(c.Prefix) > objectkey.MaxPrefix:
		return bad("invalid prefix %q: at most %d bytes, no slash at its ends", c.Prefix, objectkey.MaxPrefix)
	case c.StallTimeout < 0:
		return bad("stall timeout %s is out of range", c.StallTimeout)
	case c.CopyLimit < minPart || c.CopyLimit > maxCopy:
		return bad("copy limit of %d bytes is out of range", c.CopyLimit)
	}
	return nil
}

// ParseURL splits s3://BUCKET/PREFIX.
func ParseURL(s string) (bucket, prefix string, err error) {
	rest, ok := strings.CutPrefix(s, "s3://")
	bucket, prefix, _ = strings.Cut(rest, "/")
	prefix = strings.Trim(prefix, "/")
	if !ok || bucket == "" || strings.Contains(prefix, "//") {
		return "", "", &moraine.Error{Op: "bucket", Ref: s, Kind: moraine.InvalidArgument,
			Err: errors.New("invalid URL: write it as s3://BUCKET or s3://BUCKET/PREFIX")}
	}
	return bucket, prefix, nil
}

// Deps are the dependencies that a test replaces; all are optional.
type Deps struct {
	// Transport carries the signed requests.
	Transport http.RoundTripper
	Clock     clock.Clock
	Metrics   *Metrics
}

// Bucket is one bucket. Methods may be called concurrently. Errors are
// *moraine.Error. NotFound means no such key, upload or bucket. Conflict means
// that a condition of the request is false. Corrupt means that the store
// received other bytes than the checksum covers. Fenced means that the fence
// stopped it. Others are PermissionDenied, NoSpace, InvalidArgument, Canceled
// and Timeout by ctx, and Unavailable for the rest. Refused tells whether the
// request certainly changed nothing.
type Bucket struct {
	cfg     Config
	core    *minio.Core
	metrics *Metrics
	clock   clock.Clock
	probed  probed
	health  health
}

// New makes a bucket; it sends nothing.
func New(cfg Config, deps Deps) (*Bucket, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if deps.Transport == nil {
		deps.Transport = newTransport()
	}
	deps.Clock = cmp.Or[clock.Clock](deps.Clock, clock.System{})
	if deps.Metrics == nil {
		deps.Metrics = NewMetrics(nil)
	}
	u, err := url.Parse(cfg.Endpoint)
	if err != nil {
		return nil, err
	}
	lookup := minio.BucketLookupAuto
	if cfg.VirtualHost {
		lookup = minio.BucketLookupDNS
	}
	creds := credentials.NewStaticV4(cfg.AccessKey, cfg.SecretKey, cfg.SessionToken)
	if cfg.AccessKey == "" {
		creds = credentials.NewStatic("", "", "", credentials.SignatureAnonymous)
	}
	core, err := minio.NewCore(u.Host, &minio.Options{Creds: creds, Secure: u.Scheme == "https", Region: cfg.Region,
		Transport: &fence{&staller{next: deps.Transport, after: cfg.StallTimeout, timers: timersOf(deps.Clock)}}, BucketLookup: lookup, MaxRetries: 1})
	if err != nil {
		return nil, &moraine.Error{Op: "object.New", Ref: cfg.Bucket, Kind: moraine.InvalidArgument, Err: err}
	}
	return &Bucket{cfg: cfg, core: core, metrics: deps.Metrics, clock: deps.Clock}, nil
}

// newTransport is the transport of net/http, with enough connections for many
// concurrent parts.
func newTransport() http.RoundTripper {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost = 64
	t.DisableCompression = true
	t.WriteBufferSize, t.ReadBufferSize = 256<<10, 256<<10
	t.ResponseHeaderTimeout = 0 // Complete and Copy answer only when they are done: staller limits them
	return t
}

// Name returns the bucket's name, and Prefix the prefix of its keys.
func (b *Bucket) Name() string   { return b.cfg.Bucket }
func (b *Bucket) Prefix() string { return b.cfg.Prefix }

// URL returns s3://BUCKET/PREFIX.
func (b *Bucket) URL() string {
	if b.cfg.Prefix == "" {
		return "s3://" + b.cfg.Bucket
	}
	return "s3://" + b.cfg.Bucket + "/" + b.cfg.Prefix
}

// Probe checks that the bucket exists and may be used.
func (b *Bucket) Probe(ctx context.Context) error {
	return b.do(ctx, "probe", "", func(ctx context.Context) error {
		ok, err := b.core.BucketExists(ctx, b.cfg.Bucket)
		if err == nil && !ok {
			err = minio.ErrorResponse{StatusCode: http.StatusNotFound, Code: "NoSuchBucket", Message: "bucket does not exist"}
		}
		return err
	})
}

// do runs one request, and counts and translates its outcome.
func (b *Bucket) do(ctx context.Context, op, key string, fn func(ctx context.Context) error) error {
	start := b.clock.Now()
	err := translate(ctx, op, b.ref(key), fn(ctx))
	now := b.clock.Now()
	b.health.note(op, start, now, err)
	b.metrics.Requests.WithLabelValues(op, outcomeOf(err)).Inc()
	b.metrics.Seconds.WithLabelValues(op).Observe(now.Sub(start).Seconds())
	return err
}

func (b *Bucket) ref(key string) string { return "s3://" + b.cfg.Bucket + "/" + key }
