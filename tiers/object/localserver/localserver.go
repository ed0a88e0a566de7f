// Package localserver is a small S3-compatible store on a directory of this
// machine: the object tier of a laptop, of `moraine dev-cluster` and of tests,
// where no bucket is named. Objects are plain files under their keys.
//
// It is versitygw with its file backend, and that allows one server in a
// process, which must not mind that the process's working directory is changed:
// it is run as a process of its own (`moraine object-server`). It is no store
// for what must outlive this machine.
package localserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/tiers/object"
)

// Config is what an operator may write.
type Config struct {
	// Dir holds everything: a directory for each bucket, the keys, and what the
	// server keeps beside them. It is made where it is missing.
	Dir string
	// Listen is the address, HOST:PORT.
	Listen string
	// Bucket is made where it is missing.
	Bucket string
	// KeysFile holds the access key and the secret key, and is made with new
	// ones where it is missing. Default: `keys` in Dir.
	KeysFile string
}

func (c *Config) setDefaults() {
	if c.KeysFile == "" && c.Dir != "" {
		c.KeysFile = filepath.Join(c.Dir, "keys")
	}
}

func (c *Config) validate() error {
	_, _, err := net.SplitHostPort(c.Listen)
	switch {
	case c.Dir == "":
		return errors.New("no directory is named")
	case err != nil:
		return fmt.Errorf("the address to listen at: %w", err)
	case c.Bucket == "" || strings.ContainsAny(c.Bucket, `/\`) || strings.HasPrefix(c.Bucket, "."):
		return fmt.Errorf("bucket %q", c.Bucket)
	}
	return nil
}

const (
	// Bounds of the server: connections and requests at a time.
	maxConnections = 4096
	maxRequests    = 2048
	maxParts       = 10_000
	maxCopy        = 5 << 30
)

// Run serves until ctx ends, and returns after the requests under way. It
// changes the process's working directory, and may run once in a process at a
// time.
func Run(ctx context.Context, cfg Config) error {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return &moraine.Error{Op: "object-server", Kind: moraine.InvalidArgument, Err: err}
	}
	keys, err := object.LoadKeys(cfg.KeysFile)
	if err != nil {
		return err
	}
	buckets, err := filepath.Abs(filepath.Join(cfg.Dir, "buckets"))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(buckets, cfg.Bucket), 0o700); err != nil {
		return err
	}
	backend, err := openBackend(cfg.Dir, buckets)
	if err != nil {
		return err
	}
	return embedgw.RunVersityGW(ctx, backend, &embedgw.Config{
		RootUserAccess: keys.Access, RootUserSecret: keys.Secret, Ports: []string{cfg.Listen},
		MaxConnections: maxConnections, MaxRequests: maxRequests, MultipartMaxParts: maxParts,
		Quiet: true, KeepAlive: true, HealthPath: HealthPath,
	})
}

// openBackend keeps attributes (ETags, user metadata) in those of the files,
// where they appear together with the object; on a file system that has none,
// in files beside, which a crash may part from it.
func openBackend(dir, buckets string) (*posix.Posix, error) {
	if err := (meta.XattrMeta{}).Test(buckets); err == nil {
		return posix.New(buckets, meta.XattrMeta{}, posix.PosixOpts{CopyObjectThreshold: maxCopy})
	}
	attributes, err := filepath.Abs(filepath.Join(dir, "attributes"))
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(attributes, 0o700); err != nil {
		return nil, err
	}
	storer, err := meta.NewSideCar(attributes)
	if err != nil {
		return nil, err
	}
	return posix.New(buckets, storer, posix.PosixOpts{SideCarDir: attributes, CopyObjectThreshold: maxCopy})
}

// HealthPath answers without a signature once the server serves.
const HealthPath = "/healthz"
