// Package localserver is a small S3-compatible store on a directory of this
// machine: the object tier of a laptop, of `moraine dev-cluster` and of tests,
// where no bucket is named. Package localstore keeps the objects: what was answered
// survives a loss of power.
//
// The versitygw library speaks the protocol; it allows one server in a process, so it
// is run as a process of its own (`moraine object-server`). It is no store for what
// must outlive this machine.
package localserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"time"

	"github.com/versity/versitygw/embedgw"
	"github.com/versity/versitygw/s3api"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/versity"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers/object"
	"github.com/morainefs/moraine/tiers/object/localstore"
)

// Config is what an operator may write.
type Config struct {
	// Dir holds everything: the objects, and the keys. It is made where it is missing.
	Dir string
	// Listen is the address, HOST:PORT.
	Listen string
	// Bucket is the name of the one bucket.
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
	// headerTimeout is how long headers may take to come, transferTimeout a whole body or
	// answer: a flush may be held to a low rate.
	headerTimeout, transferTimeout = 30 * time.Second, time.Hour
)

// Run serves until ctx ends, and returns after the requests under way. It may run once
// in a process at a time.
func Run(ctx context.Context, cfg Config) error {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return &moraine.Error{Op: "object-server", Kind: moraine.InvalidArgument, Err: err}
	}
	if err := versity.Check(); err != nil {
		return &moraine.Error{Op: "object-server", Kind: moraine.Internal, Err: err}
	}
	keys, err := object.LoadKeys(cfg.KeysFile)
	if err != nil {
		return err
	}
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return err
	}
	store, err := localstore.Open(vfs.OS{}, filepath.Join(dir, "store"), localstore.Options{})
	if err != nil {
		return err
	}
	defer store.Close()
	places := versity.NewPlaces(maxConnections)
	return embedgw.RunVersityGW(ctx, &backend{store: store, bucket: cfg.Bucket, made: time.Now(), places: places}, &embedgw.Config{
		RootUserAccess: keys.Access, RootUserSecret: keys.Secret, Ports: []string{cfg.Listen},
		MaxConnections: maxConnections, MaxRequests: maxRequests, MultipartMaxParts: maxParts,
		Quiet: true, KeepAlive: true, HealthPath: HealthPath, DisableACLs: true,
		IAMService: versity.NewAccount(keys.Access, keys.Secret),
		S3Options:  []s3api.Option{versity.Bound(headerTimeout, transferTimeout, places)},
	})
}

// HealthPath answers without a signature once the server serves.
const HealthPath = "/healthz"
