// Package s3 is the S3 endpoint: buckets and objects over the directories and
// files of a cluster. The versitygw library speaks the protocol (signatures,
// streaming and trailing checksums, presigned URLs, XML); this package is the
// backend that it calls, over package client. A bucket is a directory below
// the root of the client's session, an object a file, a key its path. The session is what
// is confined, by its certificate or client.Config.Scope: no key, link or number leads out
// of it. This package decides no policy, and knows one account, the root key.
//
// One path through it: PutObject (put.go) turns bucket and key into a path
// (keys.go), makes the directories above it (dirs.go), streams the body into a
// client.File, checks length and checksum (checksum.go), sets the object's
// record (record.go) on the file that still has no name, and commits it: then it
// is durable, or as safe as was asked for (level.go), and visible whole. GetObject (get.go) opens the file and hands its
// stream, which was fetched ahead, to the socket. A listing (list.go) walks
// directories in the order of keys (walk.go). A multipart upload (upload.go)
// is a hidden directory of parts, which completing concatenates without moving
// a byte.
//
// An ETag is made of the inode's number and the generation of its content
// (etag.go): it costs nothing, is the same through every door and in listings,
// and changes exactly when the content does.
package s3

import (
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

// Config is what an operator may write. The zero value of a field means its
// default, where one is named.
type Config struct {
	// Listen are the addresses, HOST:PORT, :PORT or the path of a unix socket.
	// Needed.
	Listen []string
	// AccessKey and SecretKey are the one account. Needed.
	AccessKey, SecretKey string
	// CertFile and KeyFile hold a TLS certificate in PEM. Without them the
	// endpoint speaks plain HTTP.
	CertFile, KeyFile string
	// Region is what signatures must name. Default us-east-1.
	Region string
	// ReadOnly refuses everything that changes something.
	ReadOnly bool
	// Level is what a PUT that does not say (AckHeader) waits for: moraine.NVMe, the
	// default, or Memory.
	Level moraine.Level
	// MaxConnections bounds the connections, MaxRequests the requests under way;
	// what is past them is answered SlowDown. Defaults 4,096 and 1,024.
	MaxConnections, MaxRequests int
	// HeaderTimeout is how long the headers of a request may take to come. Default 30 s.
	HeaderTimeout time.Duration
	// StallTimeout is how long a client may make no progress with the body of a request,
	// or with an answer. A body or an answer as a whole has no bound, but for what is not
	// the content of an object. Default 2 min.
	StallTimeout time.Duration
}

// Deps is what a Server works with. Client is needed and stays the caller's, to
// be closed after Run.
type Deps struct {
	Client  *client.Client
	Log     *slog.Logger
	Metrics *Metrics
	// Ready is called once, when the endpoint takes connections, if it is set.
	Ready func()
}

// Server is an S3 endpoint.
type Server struct {
	cfg  Config
	deps Deps
}

// DefaultRegion is the region of an endpoint that was given none.
const DefaultRegion = "us-east-1"

func (c *Config) setDefaults() {
	if c.Region == "" {
		c.Region = DefaultRegion
	}
	if c.MaxConnections == 0 {
		c.MaxConnections = 4096
	}
	if c.MaxRequests == 0 {
		c.MaxRequests = min(1024, c.MaxConnections)
	}
	if c.HeaderTimeout == 0 {
		c.HeaderTimeout = 30 * time.Second
	}
	if c.StallTimeout == 0 {
		c.StallTimeout = 2 * time.Minute
	}
	if c.Level == 0 {
		c.Level = moraine.NVMe
	}
}

func (c *Config) validate() error {
	bad := func(format string, args ...any) error {
		return &moraine.Error{Op: "s3", Kind: moraine.InvalidArgument, Err: fmt.Errorf(format, args...)}
	}
	switch {
	case len(c.Listen) == 0:
		return bad("no address to listen at")
	case c.AccessKey == "" || c.SecretKey == "":
		return bad("the root key has two halves, an access key and a secret key: give both")
	case (c.CertFile == "") != (c.KeyFile == ""):
		return bad("a TLS certificate and its key are two files: give both or none")
	case c.Level != moraine.NVMe && c.Level != moraine.Memory:
		return bad("a PUT waits for nvme or memory, not %s", c.Level)
	case c.HeaderTimeout < 0 || c.StallTimeout < 0:
		return bad("a header timeout of %v, a stall timeout of %v: neither may be negative", c.HeaderTimeout, c.StallTimeout)
	case c.MaxConnections < 1 || c.MaxRequests < 1 || c.MaxRequests > c.MaxConnections:
		return bad("%d requests over %d connections: there must be one at least, and no more requests than connections", c.MaxRequests, c.MaxConnections)
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
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if deps.Metrics == nil {
		deps.Metrics = NewMetrics(nil)
	}
	return &Server{cfg: cfg, deps: deps}, nil
}

// Run serves until ctx ends. A process can run one Server at a time: the library
// keeps its settings in globals.
func (s *Server) Run(ctx context.Context) error {
	// Requests under way when ctx ends are given the library's time to finish.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	places := versity.NewPlaces(s.cfg.MaxConnections)
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
		// A bucket is any directory with a name that a client will send;
		// CreateBucket holds new ones to the rules of S3 (bucket.go).
		DisableStrictBucketNames: true,
		S3Options:                []s3api.Option{versity.Bound(s.cfg.HeaderTimeout, s.cfg.StallTimeout, places), s3api.WithMiddleware("/", controllers.WrapMiddleware(refuse, nil, nil))},
	})
	if err != nil && ctx.Err() == nil {
		return &moraine.Error{Op: "s3", Ref: strings.Join(s.cfg.Listen, ","), Kind: moraine.Internal, Err: err}
	}
	return nil
}

// announce calls Deps.Ready when the first address takes connections. The
// library has no hook for it.
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
