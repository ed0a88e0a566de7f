package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"golang.org/x/sync/errgroup"
)

// S3Server is an S3 endpoint.
type S3Server struct {
	// URL is http://HOST:PORT or https://HOST:PORT.
	URL string
	// AccessKey and SecretKey sign requests. Default: those of the environment,
	// AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.
	AccessKey, SecretKey string
}

func (s *S3Server) dial() (*minio.Client, error) {
	u, err := url.Parse(s.URL)
	if err != nil {
		return nil, err
	}
	keys := credentials.NewEnvAWS()
	if s.AccessKey != "" {
		keys = credentials.NewStaticV4(s.AccessKey, s.SecretKey, "")
	}
	return minio.New(u.Host, &minio.Options{Creds: keys, Secure: u.Scheme == "https", Region: "us-east-1"})
}

// environ is an environment with the keys.
func (s *S3Server) environ() []string {
	if s.AccessKey == "" {
		return os.Environ()
	}
	return append(os.Environ(), "AWS_ACCESS_KEY_ID="+s.AccessKey, "AWS_SECRET_ACCESS_KEY="+s.SecretKey, "AWS_SESSION_TOKEN=")
}

// s3Part is how much one request of a large object moves, s3InFlight how many
// requests of one object run concurrently. They are the usual settings of S3
// transfer managers for large files.
const (
	s3Part     = 32 << 20
	s3InFlight = 4
)

// S3 measures the same as Write and Read, through an S3 endpoint.
func S3(ctx context.Context, e *Env) ([]Line, error) {
	if e.S3 == nil {
		return nil, errors.New("bench: no S3 endpoint: leave out --endpoint and --path, or name one with --s3-endpoint")
	}
	m := *e
	m.Prefix = "s3-"
	m.Worker = append(e.Worker[:len(e.Worker):len(e.Worker)], "--s3-endpoint", e.S3.URL)
	m.Open = func(context.Context) (Target, error) { return S3Target(e.S3) }
	lines, _, err := writeDurably(ctx, &m)
	if err != nil {
		return nil, err
	}
	m.written = !m.rotates()
	read, err := readCold(ctx, &m)
	return append(lines, read...), err
}

// S3Target works through an S3 endpoint: the first element of a path is the bucket.
func S3Target(s *S3Server) (Target, error) {
	c, err := s.dial()
	return s3Target{c}, err
}

type s3Target struct{ c *minio.Client }

func split(name string) (bucket, key string) {
	bucket, key, _ = strings.Cut(strings.TrimPrefix(name, "/"), "/")
	return bucket, key
}

// Write implements Target.
func (t s3Target) Write(ctx context.Context, name string, total int64, source []byte) error {
	bucket, key := split(name)
	return s3Put(ctx, t.c, bucket, key, total, source)
}

// Read implements Target.
func (t s3Target) Read(ctx context.Context, name string, buf []byte) (int64, error) {
	bucket, key := split(name)
	return s3Get(ctx, t.c, bucket, key, buf)
}

// s3Put stores an object of total bytes from source, repeated, in parts.
func s3Put(ctx context.Context, c *minio.Client, bucket, key string, total int64, source []byte) error {
	_, err := c.PutObject(ctx, bucket, key, io.NewSectionReader(repeated(source), 0, total), total,
		minio.PutObjectOptions{PartSize: s3Part, NumThreads: s3InFlight})
	return err
}

// s3Get reads a whole object by ranges into buf, which it reuses.
func s3Get(ctx context.Context, c *minio.Client, bucket, key string, buf []byte) (int64, error) {
	info, err := c.StatObject(ctx, bucket, key, minio.StatObjectOptions{})
	if err != nil {
		return 0, err
	}
	core := minio.Core{Client: c}
	g, ctx := errgroup.WithContext(ctx)
	for i := range s3InFlight {
		piece := buf[i*len(buf)/s3InFlight : (i+1)*len(buf)/s3InFlight]
		piece = piece[:min(len(piece), s3Part)]
		if len(piece) == 0 {
			return 0, fmt.Errorf("bench: %d bytes of memory are too few for a read", len(buf))
		}
		g.Go(func() error {
			step := int64(s3InFlight * len(piece))
			for off := int64(i * len(piece)); off < info.Size; off += step {
				p := piece[:min(int64(len(piece)), info.Size-off)]
				if err := s3GetRange(ctx, core, bucket, key, p, off); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return info.Size, g.Wait()
}

func s3GetRange(ctx context.Context, c minio.Core, bucket, key string, p []byte, off int64) error {
	var opts minio.GetObjectOptions
	if err := opts.SetRange(off, off+int64(len(p))-1); err != nil {
		return err
	}
	body, _, _, err := c.GetObject(ctx, bucket, key, opts)
	if err != nil {
		return err
	}
	_, err = io.ReadFull(body, p)
	return errors.Join(err, body.Close())
}

// repeated is source repeated without an end.
type repeated []byte

// ReadAt implements io.ReaderAt.
func (r repeated) ReadAt(p []byte, off int64) (int, error) {
	for n := 0; n < len(p); {
		n += copy(p[n:], r[(off+int64(n))%int64(len(r)):])
	}
	return len(p), nil
}

// Mkdir implements Target: it makes the bucket. Directories need no object.
func (t s3Target) Mkdir(ctx context.Context, name string) error {
	bucket, _ := split(name)
	err := t.c.MakeBucket(ctx, bucket, minio.MakeBucketOptions{})
	if minio.ToErrorResponse(err).Code == minio.BucketAlreadyOwnedByYou {
		return nil
	}
	return err
}

// Small implements Target. S3 has no rename, and a commit needs the client.
func (t s3Target) Small(ctx context.Context, op Op, name, _ string) error {
	bucket, key := split(name)
	var err error
	switch op {
	case OpCreate:
		_, err = t.c.PutObject(ctx, bucket, key, strings.NewReader(""), 0, minio.PutObjectOptions{})
	case OpStat:
		_, err = t.c.StatObject(ctx, bucket, key, minio.StatObjectOptions{})
	case OpReadDir:
		for o := range t.c.ListObjects(ctx, bucket, minio.ListObjectsOptions{Prefix: key + "/"}) {
			if o.Err != nil {
				return o.Err
			}
		}
	case OpUnlink:
		err = t.c.RemoveObject(ctx, bucket, key, minio.RemoveObjectOptions{})
	default:
		err = fmt.Errorf("bench: S3 does not support %s", op)
	}
	return err
}

// Help implements Target. The reads of the endpoint are not known here.
func (s3Target) Help() ReadHelp { return ReadHelp{} }

// Close implements Target.
func (s3Target) Close() error { return nil }
