// Package object speaks to an S3-compatible bucket: the object tier. It changes
// one key at a time, exactly as it is told, and says of every failure whether
// the store refused the request or may yet have carried it out.
//
// It decides nothing. Which key, when, and what to do about an answer that was
// not seen is mover's, under intents in the metadata service; who owns a
// key is the service's. Nothing is retried here: a repeat that hides the first
// outcome would hide what an intent must settle.
//
// The path of an upload: NewUpload -> PutPart for each part, with its CRC32C,
// which the store checks where it can -> Complete. Each request is signed by the
// client library, and then passes the fence (fence.go), below the signer: once
// the job's lease may be over, nothing of it leaves this process any more, not
// even a body that is half sent.
package object

import (
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

// Config is what an operator may write.
type Config struct {
	// Bucket is its name, Prefix what all keys begin with, without slashes at
	// its ends ("" for none).
	Bucket, Prefix string
	// Endpoint is the store's URL (http or https, host and port). Default: that
	// of AWS S3.
	Endpoint string
	// Region that requests are signed for. Default us-east-1.
	Region string
	// VirtualHost names the bucket in the host instead of the path. Default: as
	// AWS wants it there, the path elsewhere.
	VirtualHost bool
	// AccessKey, SecretKey and SessionToken are the credentials; without an
	// access key, requests are not signed.
	AccessKey, SecretKey, SessionToken string
	// NoChecksums sends no CRC32C with uploads, for stores that refuse what they
	// do not know.
	NoChecksums bool
	// StallTimeout is after how long without a byte of a request or its answer the request is
	// given up. It must leave a store the time to put a large object together. Default 10 min.
	StallTimeout time.Duration
	// CopyLimit is the size from which an object is copied in parts. Default 5
	// GiB, which is what S3 copies at once.
	CopyLimit int64
}

const (
	defaultEndpoint = "https://s3.amazonaws.com"
	defaultRegion   = "us-east-1"
	maxCopy         = 5 << 30
	stallTimeout    = 10 * time.Minute
)

func (c *Config) setDefaults() {
	if c.Endpoint == "" {
		c.Endpoint = defaultEndpoint
	}
	if c.Region == "" {
		c.Region = defaultRegion
	}
	if c.StallTimeout == 0 {
		c.StallTimeout = stallTimeout
	}
	if c.CopyLimit == 0 {
		c.CopyLimit = maxCopy
	}
}

func (c *Config) validate() error {
	bad := func(format string, args ...any) error {
		return &moraine.Error{Op: "object.New", Ref: c.Bucket, Kind: moraine.InvalidArgument, Err: fmt.Errorf(format, args...)}
	}
	u, err := url.Parse(c.Endpoint)
	switch {
	case c.Bucket == "":
		return bad("no bucket is named")
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || strings.Trim(u.Path, "/") != "":
		return bad("endpoint %q: write it as https://HOST:PORT", c.Endpoint)
	case strings.Trim(c.Prefix, "/") != c.Prefix || len(c.Prefix) > objectkey.MaxPrefix:
		return bad("prefix %q: %d bytes at most, no slash at its ends", c.Prefix, objectkey.MaxPrefix)
	case c.StallTimeout < 0:
		return bad("a stall timeout of %s", c.StallTimeout)
	case c.CopyLimit < minPart || c.CopyLimit > maxCopy:
		return bad("a copy limit of %d bytes", c.CopyLimit)
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
			Err: errors.New("write it as s3://BUCKET or s3://BUCKET/PREFIX")}
	}
	return bucket, prefix, nil
}

// Deps is what a test replaces; all may be left out.
type Deps struct {
	// Transport carries the signed requests.
	Transport http.RoundTripper
	Clock     clock.Clock
	Metrics   *Metrics
}

// Bucket is one bucket. Methods may be called concurrently. Errors are
// *moraine.Error: NotFound (no such key, upload or bucket), PermissionDenied,
// Conflict (a condition of the request does not hold), NoSpace, Corrupt (the
// store got other bytes than were summed), Fenced (the fence stopped it),
// Canceled and Timeout by ctx, InvalidArgument, and Unavailable for the rest.
// Refused tells whether it is certain that the request changed nothing.
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
	if deps.Clock == nil {
		deps.Clock = clock.System{}
	}
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

// newTransport is that of net/http, with room for many parts side by side.
func newTransport() http.RoundTripper {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost = 64
	t.DisableCompression = true
	t.WriteBufferSize, t.ReadBufferSize = 256<<10, 256<<10
	t.ResponseHeaderTimeout = 0 // Complete and Copy answer when they are done: staller bounds them
	return t
}

// Name returns the bucket's name, and Prefix what its keys begin with.
func (b *Bucket) Name() string   { return b.cfg.Bucket }
func (b *Bucket) Prefix() string { return b.cfg.Prefix }

// URL returns s3://BUCKET/PREFIX.
func (b *Bucket) URL() string {
	if b.cfg.Prefix == "" {
		return "s3://" + b.cfg.Bucket
	}
	return "s3://" + b.cfg.Bucket + "/" + b.cfg.Prefix
}

// Probe asks whether the bucket is there and may be used.
func (b *Bucket) Probe(ctx context.Context) error {
	return b.do(ctx, "probe", "", func(ctx context.Context) error {
		ok, err := b.core.BucketExists(ctx, b.cfg.Bucket)
		if err == nil && !ok {
			err = minio.ErrorResponse{StatusCode: http.StatusNotFound, Code: "NoSuchBucket", Message: "there is no such bucket"}
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
