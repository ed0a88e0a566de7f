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
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"

	"github.com/morainefs/moraine"
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
	keys, err := LoadKeys(cfg.KeysFile)
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

// Keys are the credentials of the server's one user.
type Keys struct{ Access, Secret string }

// LoadKeys reads a file of keys (two lines), which it makes with random ones
// where it is missing, readable by its owner alone. It refuses a file that
// others may read.
func LoadKeys(file string) (Keys, error) {
	if err := makeKeys(file); err != nil {
		return Keys{}, err
	}
	info, err := os.Stat(file)
	if err != nil {
		return Keys{}, err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return Keys{}, &moraine.Error{Op: "object-server", Ref: file, Kind: moraine.PermissionDenied,
			Err: errors.New("others may read the keys: chmod 600 it")}
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return Keys{}, err
	}
	lines := strings.Fields(string(data))
	if len(lines) != 2 {
		return Keys{}, &moraine.Error{Op: "object-server", Ref: file, Kind: moraine.Corrupt,
			Err: errors.New("it must hold two lines: the access key and the secret key")}
	}
	return Keys{lines[0], lines[1]}, nil
}

// makeKeys makes the file under another name and links it: a reader never sees
// half of it, and of two that make it at once one wins.
func makeKeys(file string) error {
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	random := make([]byte, 30)
	if _, err := rand.Read(random); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(file), ".keys-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = fmt.Fprintf(f, "MORAINE%s\n%s\n", strings.ToUpper(hex.EncodeToString(random[:6])), hex.EncodeToString(random[6:]))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Link(f.Name(), file); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}
