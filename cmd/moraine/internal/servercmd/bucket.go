package servercmd

import (
	"context"
	"log/slog"
	"time"

	"github.com/morainefs/moraine/cmd/moraine/internal/bucketflags"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/cmd/moraine/internal/serve"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/tiers/object"
	"github.com/morainefs/moraine/tiers/object/localserver"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// bucketOptions say which bucket is the object tier.
type bucketOptions struct {
	bucketflags.Flags
	url    string
	pieces cli.SizeFlag
}

func (o *bucketOptions) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.url, "bucket", "", "object tier, s3://BUCKET/PREFIX (default: none); credentials come from AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN")
	o.AddFlags(f)
	o.pieces = 256 << 20
	f.Var(&o.pieces, "piece-memory", "memory for pieces of objects that are being read")
}

// open makes the bucket, nil where the options name none. It only logs a bucket that does
// not answer yet: the bucket may answer later.
func (o *bucketOptions) open(ctx context.Context, log *slog.Logger, reg prometheus.Registerer) (*object.Bucket, error) {
	metrics := object.NewMetrics(reg)
	if o.url == "" {
		return nil, nil
	}
	cfg, err := o.Config(o.url)
	if err != nil {
		return nil, cli.UsageError("--bucket %q: write s3://BUCKET or s3://BUCKET/PREFIX", o.url)
	}
	b, err := object.New(cfg, object.Deps{Metrics: metrics})
	if err != nil {
		return nil, cli.AsWrongUse(err)
	}
	probe, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	if err := b.Probe(probe); err != nil && ctx.Err() == nil {
		log.Warn("the bucket cannot be used now; movers retry the jobs of the object tier", "bucket", b.URL(), "endpoint", cfg.Endpoint, "err", err)
	}
	return b, nil
}

// probeTimeout bounds the first probe of the bucket.
const probeTimeout = 5 * time.Second

// localBucket is the bucket of a cluster on one machine.
const localBucket = devcluster.LocalBucket

func newObjectServerCommand(env *cli.Env) *cobra.Command {
	var cfg localserver.Config
	cmd := &cobra.Command{
		Use:     "object-server",
		GroupID: cli.GroupServers,
		Short:   "Run a small S3-compatible store on a directory: the object tier of a laptop",
		Long: `Run a small S3-compatible store on a directory of this machine. "standalone" and
"dev-cluster" use it as the object tier where no bucket is named. Do not use it for data
that must survive this machine. It has one user. The first start writes that user's keys
to DATA/keys: the access key, and below it the secret key.`,
		Example: "  moraine object-server --data ./objects --listen 127.0.0.1:7420",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cfg.Dir == "" {
				return cli.UsageError("no directory for the objects: give --data DIR")
			}
			log, err := env.Log()
			if err != nil {
				return err
			}
			return serve.IgnoreEnd(cmd.Context(), localserver.Run(cmd.Context(), cfg, log))
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.Dir, "data", "", "directory for everything")
	f.StringVar(&cfg.Listen, "listen", "127.0.0.1:"+defaultObjectPort, "address to listen on, "+
		"HOST:PORT; without TLS, so keep it on loopback")
	f.StringVar(&cfg.Bucket, "bucket", localBucket, "bucket to create")
	return cmd
}

// defaultObjectPort is that of `moraine object-server`.
const defaultObjectPort = "7420"

// NoteBucket prints how to reach a local bucket with the stock tool. It gives the keys for
// one command only: they differ from the keys of the S3 endpoint.
func NoteBucket(env *cli.Env, n *devcluster.Node) {
	env.Note("\nThe object tier is s3://%s at http://%s, with its own keys. List it with the stock "+
		"tools:\n\n  AWS_ACCESS_KEY_ID=$(sed -n 1p %s) AWS_SECRET_ACCESS_KEY=$(sed -n 2p %s) \\\n  aws "+
		"--endpoint-url http://%s s3 ls --recursive s3://%s", localBucket, n.Address, n.KeysFile(), n.KeysFile(), n.Address, localBucket)
}
