// Package localserver is a small S3-compatible store on a directory of this
// machine. It is the object tier of a laptop, of `moraine dev-cluster` and of
// tests, where no bucket is configured. It is not for data that must outlive this
// machine.
//
// One path through it: Run listens and serves. The versitygw library speaks the
// protocol and calls backend.PutObject. Package localstore keeps the object:
// everything answered survives a power loss. The library allows one server in a
// process, so the server runs as a process of its own (`moraine object-server`).
package localserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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

// Config has the settings of an operator.
type Config struct {
	// Dir holds the objects and the keys. It is made if it is missing.
	Dir string
	// Listen is the address, HOST:PORT.
	Listen string
	// Bucket is the name of the one bucket.
	Bucket string
	// KeysFile holds the access key and the secret key. It is made with new keys if
	// it is missing. Default: `keys` in Dir.
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
		return errors.New("no directory given: set Dir")
	case err != nil:
		return fmt.Errorf("listen address: %w", err)
	case c.Bucket == "" || strings.ContainsAny(c.Bucket, `/\`) || strings.HasPrefix(c.Bucket, "."):
		return fmt.Errorf("bucket %q", c.Bucket)
	}
	return nil
}

const (
	// Limits of the server: concurrent connections and requests.
	maxConnections = 4096
	maxRequests    = 2048
	maxParts       = 10_000
	// headerTimeout limits the arrival of headers, transferTimeout that of a whole
	// body or answer: a flush may run at a low rate limit.
	headerTimeout, transferTimeout = 30 * time.Second, time.Hour
)

// Run serves until ctx ends, and returns after the running requests. Only one Run
// may be active in a process. It logs the objects that are damaged.
func Run(ctx context.Context, cfg Config, log *slog.Logger) error {
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
	for _, f := range store.Damaged() {
		log.Error("the record of an object is damaged: requests for its key get BadDigest until a client puts or deletes it", "file", f.Path, "err", f.Damage)
	}
	places := versity.NewPlaces(maxConnections)
	defer context.AfterFunc(ctx, places.End)()
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
