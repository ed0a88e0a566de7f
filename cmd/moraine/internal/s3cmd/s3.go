// Package s3cmd has the command that serves S3.
//
// One path through it: `moraine s3` -> runS3 reads the root key, opens a session that is
// confined to the served directory, and runs package s3 beside the admin port.
package s3cmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"sync/atomic"
	"time"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/cmd/moraine/internal/serve"
	"github.com/morainefs/moraine/internal/address"
	"github.com/morainefs/moraine/s3"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/pki"
	"github.com/spf13/cobra"
)

// The default addresses of the S3 endpoint and of its metrics.
const (
	DefaultS3Port      = "9000"
	DefaultS3AdminPort = "9001"
)

// s3Options are the flags of `moraine s3`.
type s3Options struct {
	service     s3.Config
	adminListen string
	credentials string
	make        bool   // a root key, where credentials is missing
	root        string // directory whose directories are the buckets; empty: the root
	memory      cli.SizeFlag
	ready       func() // called when the endpoint accepts requests, if set
	cache       int
	ack         string // empty: nvme
}

// NewS3Command returns `moraine s3`.
func NewS3Command(env *cli.Env) *cobra.Command {
	var o s3Options
	cmd := &cobra.Command{
		Use:     "s3 [ADDRESS]",
		GroupID: cli.GroupServers,
		Short:   "Run an S3 endpoint: buckets are directories, objects files",
		Long: `Serve a directory of the cluster by the S3 protocol. ADDRESS is moraine://HOST[,HOST...]/DIR,
or moraine:///DIR where --endpoint names the hosts. Each directory below DIR is a bucket.

There is one account, the root key. The endpoint reads it from --credentials, a file in the
format of AWS clients (AWS_SHARED_CREDENTIALS_FILE reads the same one), or from --access-key
and --secret-key. Several endpoints may serve one directory.

The endpoint answers a PUT when the object is durable (level nvme). With --ack memory, or for
a request with the header ` + s3.AckHeader + `: memory, it answers when the bytes are verified
in the memory of the chunkservers. They write the bytes to their devices at once. A request
may ask for nvme with the same header.`,
		Example: `  moraine s3 moraine://host1,host2,host3/ --credentials ./s3-credentials
  moraine s3 moraine:///data --listen :9000 --cert s3.crt --key s3.key`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			hosts := ""
			if len(args) == 1 {
				l, err := cli.ParseRemote(args[0])
				if err != nil {
					return err
				}
				hosts, o.root = l.Hosts, l.Path
			}
			return runS3(cmd.Context(), env, hosts, o)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&o.service.Listen, "listen", []string{"127.0.0.1:" + DefaultS3Port}, "address to listen on, [HOST]:PORT; may be repeated")
	f.StringVar(&o.adminListen, "admin-listen", "127.0.0.1:"+DefaultS3AdminPort, "address of /metrics, /healthz and /debug/pprof")
	f.StringVar(&o.credentials, "credentials", "", "file with the root key, which only its owner can "+
		"read")
	f.BoolVar(&o.make, "make-credentials", false, "make --credentials with a new key where the file is "+
		"missing")
	f.StringVar(&o.service.AccessKey, "access-key", "", "access key of the root key")
	f.StringVar(&o.service.SecretKey, "secret-key", "", "secret key of the root key (other users of "+
		"this machine can see command lines, so prefer the environment or --credentials)")
	f.StringVar(&o.service.CertFile, "cert", "", "TLS certificate, PEM; without it the endpoint speaks "+
		"plain HTTP")
	f.StringVar(&o.service.KeyFile, "key", "", "private key of the TLS certificate, PEM")
	f.StringVar(&o.service.Region, "region", s3.DefaultRegion, "region that clients must name")
	f.BoolVar(&o.service.ReadOnly, "read-only", false, "refuse every request that changes something")
	f.StringVar(&o.ack, "ack", "nvme", "level that a PUT waits for, unless the request names one: "+
		"nvme or memory (faster; lost if more hosts fail at once than the scheme survives)")
	f.DurationVar(&o.service.HeaderTimeout, "header-timeout", 30*time.Second, "how long a client may "+
		"take to send the headers of a request")
	f.DurationVar(&o.service.StallTimeout, "stall-timeout", 2*time.Minute, "how long a client may make "+
		"no progress with a body or an answer before the endpoint closes its connection")
	o.memory = 512 << 20
	f.Var(&o.memory, "memory", "memory for objects that the endpoint writes and reads")
	f.IntVar(&o.cache, "cache-entries", cli.DefaultCache, cli.CacheUsage)
	return cmd
}

// runS3 serves until ctx ends.
func runS3(ctx context.Context, env *cli.Env, hosts string, o s3Options) error {
	if err := o.rootKey(); err != nil {
		return err
	}
	if o.service.KeyFile != "" {
		if err := pki.CheckKeyMode(o.service.KeyFile); err != nil {
			return err
		}
	}
	if o.ack != "" {
		level, err := cli.AckLevel(o.ack)
		if err != nil {
			return err
		}
		o.service.Level = level
	}
	// The library's own error does not name the address that is in use. A reader of it
	// would think that the endpoint itself uses the port.
	if err := serve.CheckFree("--listen", o.service.Listen...); err != nil {
		return err
	}
	log, err := env.Log()
	if err != nil {
		return err
	}
	if hosts == "" {
		hosts = env.Global.Endpoint
	}
	cfg := client.Config{Metadata: address.SplitEndpoint(hosts), MemoryBytes: int64(o.memory), Patience: s3Patience,
		CacheEntries: cli.CacheEntries(o.cache)}
	if len(cfg.Metadata) == 0 {
		return cli.UsageError("no cluster is named: name its metadata servers with --endpoint " +
			"(MORAINE_ENDPOINT), or write moraine://HOST/DIR")
	}
	sec, err := env.Security()
	if err != nil {
		return err
	}
	reg := serve.NewRegistry()
	pool, err := sec.Pool(transport.RoleClient, "s3", transport.PoolDeps{Log: log, Metrics: transport.NewMetrics(reg)})
	if err != nil {
		return err
	}
	defer pool.Close()
	deps := client.Deps{Dialer: pool, Log: log, Metrics: client.NewMetrics(reg)}
	if cfg.Scope, err = confine(ctx, sec, o.root, o.service.ReadOnly, cfg, deps); err != nil {
		return serve.IgnoreEnd(ctx, err)
	}
	c, err := serve.DialPatiently(ctx, cfg, deps)
	if err != nil {
		return serve.IgnoreEnd(ctx, err)
	}
	defer c.Close()
	var serving atomic.Bool
	server, err := s3.New(o.service, s3.Deps{Client: c, Log: log, Metrics: s3.NewMetrics(reg), Ready: func() {
		serving.Store(true)
		log.Info("serving", "listen", o.service.Listen, "admin", o.adminListen, "root", cmp.Or(o.root, "/"), "tls", o.service.CertFile != "")
		if o.ready != nil {
			o.ready()
		}
	}})
	if err != nil {
		return err
	}
	adm, err := serve.ListenAdmin(o.adminListen, reg, healthWithin(ctx, &serving, server.Healthy))
	if err != nil {
		return err
	}
	return serve.RunAll(ctx, adm.Run, serve.WatchCertificate(sec, log), server.Run)
}

// confine makes the served directory, where it is missing, and returns its name for a
// session. The endpoint's session is confined to it. So a symbolic link that somebody else
// makes in a bucket cannot make the endpoint show what is beside it.
func confine(ctx context.Context, sec cli.Security, root string, readOnly bool, cfg client.Config, deps client.Deps) (string, error) {
	root = path.Clean("/" + root)
	if root == "/" {
		return "", nil
	}
	c, err := serve.DialPatiently(ctx, cfg, deps)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if readOnly {
		_, err = c.Stat(ctx, root)
	} else {
		_, err = c.MkdirAll(ctx, root, 0o755)
	}
	if err != nil {
		return "", err
	}
	if sec.Identity == nil {
		return root, nil
	}
	return path.Join(sec.Identity.Claims().Scope, root), nil
}

// s3Patience bounds how long a request retries what may still succeed: S3 clients give up,
// and try again, after about a minute.
const s3Patience = 50 * time.Second

// healthWithin bounds a health check that calls the cluster, and makes it fail before the
// endpoint serves requests.
func healthWithin(ctx context.Context, serving *atomic.Bool, healthy func(context.Context) error) func() error {
	return func() error {
		if !serving.Load() {
			return errors.New("the endpoint does not serve yet")
		}
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		if err := healthy(ctx); err != nil {
			return errors.Join(fmt.Errorf("the cluster does not answer"), err)
		}
		return nil
	}
}

// rootKey reads the root key from its file, or from its flags.
func (o *s3Options) rootKey() error {
	if o.credentials != "" {
		read := serve.ReadCredentials
		if o.make {
			read = serve.MakeCredentials
		}
		key, err := read(o.credentials)
		if err != nil {
			return err
		}
		o.service.AccessKey, o.service.SecretKey = key.Access, key.Secret
	}
	if o.service.AccessKey == "" || o.service.SecretKey == "" {
		return cli.UsageError("no root key: give --credentials FILE (MORAINE_S3_CREDENTIALS), or --access-key and --secret-key")
	}
	return nil
}
