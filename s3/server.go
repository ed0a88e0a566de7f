// Package s3 is the S3 endpoint: buckets and objects over the directories and files
// of a cluster. The versitygw library speaks the protocol (signatures, streaming
// and trailing checksums, presigned URLs, XML). This package is the backend that
// the library calls, over package client.
//
// A bucket is a directory below the root of the client's session, an object a file,
// and a key its path. The session's certificate or client.Config.Scope confines it:
// no key, link or number leads out of it. This package decides no policy, and has
// one account, the root key.
//
// One path through it: PutObject (put.go) turns bucket and key into a path
// (keys.go), and makes the directories above it (dirs.go). It streams the body into
// a client.File, and verifies length and checksum (checksum.go). It sets the
// object's record (record.go) on the file that still has no name, and commits it.
// The object is then durable, or at the requested level (level.go), and visible
// whole.
//
// The backend has the operations of S3 as methods (backend.go). Its parts do the
// work: requests (levels, connections and errors of HTTP), tree (keys, directories
// and records), buckets, objects and uploads.
//
// GetObject (get.go) opens the file and passes its stream, which reads ahead, to
// the socket. A listing (list.go) walks directories in the order of keys (walk.go).
// A multipart upload (upload.go) is a hidden directory of parts, which its
// completion concatenates without moving a byte.
//
// An ETag consists of the inode's number and the generation of its content
// (etag.go). It costs nothing, is the same through every interface and in listings,
// and changes exactly when the content does.
package s3

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/versity/versitygw/embedgw"
	"github.com/versity/versitygw/s3api"
	"github.com/versity/versitygw/s3api/controllers"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/versity"
)

// Config has the settings of an operator. The zero value of a field means its
// default, if one is named.
type Config struct {
	// Listen are the addresses, HOST:PORT, :PORT or the path of a unix socket.
	// Required.
	Listen []string
	// AccessKey and SecretKey are the one account. Required.
	AccessKey, SecretKey string
	// CertFile and KeyFile hold a TLS certificate in PEM. Without them the
	// endpoint speaks plain HTTP.
	CertFile, KeyFile string
	// Region is the region that signatures must name. Default us-east-1.
	Region string
	// ReadOnly refuses every change.
	ReadOnly bool
	// Level is what a PUT without an AckHeader waits for: moraine.NVMe, the
	// default, or Memory.
	Level moraine.Level
	// MaxConnections limits the connections, MaxRequests the running requests.
	// Further ones are answered SlowDown. Defaults 4,096 and 1,024.
	MaxConnections, MaxRequests int
	// HeaderTimeout is how long the headers of a request may take to arrive.
	// Default 30 s.
	HeaderTimeout time.Duration
	// StallTimeout is how long a client may make no progress with the body of a
	// request, or with an answer. The content of an object has no total limit;
	// other bodies and answers do. Default 2 min.
	StallTimeout time.Duration
}

// Deps are the dependencies of a Server. Client is required. The caller owns it and
// closes it after Run.
type Deps struct {
	Client  *client.Client
	Log     *slog.Logger
	Metrics *Metrics
	// Ready, if set, is called once, when the endpoint accepts connections.
	Ready func()
}

// Server is an S3 endpoint.
type Server struct {
	cfg  Config
	deps Deps
}

// DefaultRegion is the region of an endpoint without a configured one.
const DefaultRegion = "us-east-1"

func (c *Config) setDefaults() {
	c.Region = cmp.Or(c.Region, DefaultRegion)
	c.MaxConnections = cmp.Or(c.MaxConnections, 4096)
	c.MaxRequests = cmp.Or(c.MaxRequests, min(1024, c.MaxConnections))
	c.HeaderTimeout = cmp.Or(c.HeaderTimeout, 30*time.Second)
	c.StallTimeout = cmp.Or(c.StallTimeout, 2*time.Minute)
	c.Level = cmp.Or(c.Level, moraine.NVMe)
}

func (c *Config) validate() error {
	bad := func(format string, args ...any) error {
		return &moraine.Error{Op: "s3", Kind: moraine.InvalidArgument, Err: fmt.Errorf(format, args...)}
	}
	switch {
	case len(c.Listen) == 0:
		return bad("no address to listen at")
	case c.AccessKey == "" || c.SecretKey == "":
		return bad("the root key has two halves, an access key and a secret key: set both")
	case (c.CertFile == "") != (c.KeyFile == ""):
		return bad("a TLS certificate and its key are two files: set both or none")
	case c.Level != moraine.NVMe && c.Level != moraine.Memory:
		return bad("invalid level %s for a PUT: use nvme or memory", c.Level)
	case c.HeaderTimeout < 0 || c.StallTimeout < 0:
		return bad("header timeout %v and stall timeout %v must not be negative", c.HeaderTimeout, c.StallTimeout)
	case c.MaxConnections < 1 || c.MaxRequests < 1 || c.MaxRequests > c.MaxConnections:
		return bad("%d requests over %d connections: allow at least one request, and no more requests than connections", c.MaxRequests, c.MaxConnections)
	}
	return nil
}

// New checks cfg and fills in defaults. It opens nothing.
func New(cfg Config, deps Deps) (*Server, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if err := versity.Check(); err != nil {
		return nil, &moraine.Error{Op: "s3", Kind: moraine.Internal, Err: err}
	}
	deps.Log = cmp.Or(deps.Log, slog.New(slog.DiscardHandler))
	if deps.Metrics == nil {
		deps.Metrics = NewMetrics(nil)
	}
	return &Server{cfg: cfg, deps: deps}, nil
}

// Run serves until ctx ends. A process can run one Server at a time: the library
// keeps its settings in globals.
func (s *Server) Run(ctx context.Context) error {
	// Requests that run when ctx ends get the library's time to finish.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	places := versity.NewPlaces(s.cfg.MaxConnections)
	defer context.AfterFunc(ctx, places.End)()
	be := newBackend(life, s.cfg, s.deps, places)
	ended := make(chan struct{})
	defer close(ended)
	go s.announce(ended)
	err := embedgw.RunVersityGW(ctx, be, &embedgw.Config{
		RootUserAccess: s.cfg.AccessKey, RootUserSecret: s.cfg.SecretKey, Region: s.cfg.Region,
		Ports: s.cfg.Listen, CertFile: s.cfg.CertFile, KeyFile: s.cfg.KeyFile,
		MaxConnections: s.cfg.MaxConnections, MaxRequests: s.cfg.MaxRequests, MultipartMaxParts: maxParts,
		KeepAlive: true, Quiet: true, Readonly: s.cfg.ReadOnly, DisableACLs: true,
		IAMService: versity.NewAccount(s.cfg.AccessKey, s.cfg.SecretKey),
		// A bucket is any directory with a name that a client can send;
		// CreateBucket applies the rules of S3 to new ones (bucket.go).
		DisableStrictBucketNames: true,
		S3Options:                []s3api.Option{versity.Bound(s.cfg.HeaderTimeout, s.cfg.StallTimeout, places), s3api.WithMiddleware("/", controllers.WrapMiddleware(refuse, nil, nil))},
	})
	if err != nil && ctx.Err() == nil {
		return &moraine.Error{Op: "s3", Ref: strings.Join(s.cfg.Listen, ","), Kind: moraine.Internal, Err: err}
	}
	return nil
}

// announce calls Deps.Ready when the first address accepts connections. The library
// has no hook for it.
func (s *Server) announce(ended <-chan struct{}) {
	if s.deps.Ready == nil {
		return
	}
	for {
		conn, err := dialSelf(s.cfg.Listen[0])
		if err == nil {
			_ = conn.Close()
			s.deps.Ready()
			return
		}
		select {
		case <-ended:
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func dialSelf(address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil || strings.ContainsRune(address, '/') {
		return net.DialTimeout("unix", address, time.Second)
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = ""
	}
	return net.DialTimeout("tcp", net.JoinHostPort(host, port), time.Second)
}

// Healthy reports whether the cluster answers.
func (s *Server) Healthy(ctx context.Context) error {
	_, err := s.deps.Client.Stat(ctx, "/")
	return err
}
