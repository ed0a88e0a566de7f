// Package devcmd has the commands that run clusters of processes on this machine: dev-cluster
// and demo. Packages internal/devcluster and internal/demo do the work.
//
// One path through it: `moraine dev-cluster` -> package internal/devcluster starts the
// processes -> the command prints them, and watches them until Ctrl-C.
package devcmd

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/cmd/moraine/internal/servercmd"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/spf13/cobra"
)

// nodeInfo is what `dev-cluster` prints of each process.
type nodeInfo struct {
	Name    string `json:"name"`
	Role    string `json:"role"`
	Pid     int    `json:"pid"`
	Address string `json:"address"`
	Admin   string `json:"admin"`
	Log     string `json:"log"`
}

// NewDevClusterCommand returns `moraine dev-cluster`.
func NewDevClusterCommand(env *cli.Env) *cobra.Command {
	var cfg devcluster.Config
	var tier devTier
	var noS3 bool
	cmd := &cobra.Command{
		Use:     "dev-cluster",
		GroupID: cli.GroupServers,
		Short: "Start a real cluster on this machine: 3 metadata servers, 6 chunkservers, an S3 " +
			"endpoint and an object tier, each a process",
		Long: `Start a whole cluster on this machine, and keep it until Ctrl-C. Each server is a process
on loopback ports, with its own certificate.

Without --dir the cluster lives in a temporary directory that the command removes at the
end. With --dir everything stays, and the next start uses it again.

The object tier is a local bucket of the cluster, unless --bucket names one. The command
reports a server that ends, and does not start it again, so that you can try failures.
To get it back, end dev-cluster and start it again with the same --dir.`,
		Example: `  moraine dev-cluster
  moraine dev-cluster --dir ./cluster --chunkservers 3 --devices 2`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg.S3 = !noS3
			return devCluster(cmd.Context(), env, cfg, tier)
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.Dir, "dir", "", "directory for everything (default: a temporary one)")
	f.IntVar(&cfg.Metadata, "metadata", 3, "metadata servers (1, 3 or 5)")
	f.IntVar(&cfg.Chunkservers, "chunkservers", 6, "chunkservers, each a host of its own")
	f.IntVar(&cfg.Devices, "devices", 1, "devices of each chunkserver")
	f.StringVar(&tier.bucket, "bucket", "", "object tier, s3://BUCKET/PREFIX, with credentials from AWS_* (default: a local bucket)")
	f.StringVar(&tier.endpoint, "bucket-endpoint", "", "URL of the bucket's store (default: AWS S3)")
	f.BoolVar(&tier.none, "no-bucket", false, "run without an object tier")
	f.StringVar(&cfg.S3Listen, "s3-listen", "", "address of the S3 endpoint (default: a free port on loopback)")
	f.BoolVar(&noS3, "no-s3", false, "run without an S3 endpoint")
	f.StringSliceVar(&cfg.MetadataArgs, "metadata-arg", nil, "argument for each metadata server")
	f.StringSliceVar(&cfg.ChunkserverArgs, "chunkserver-arg", nil, "argument for each chunkserver")
	return cmd
}

// devTier returns the object tier of a dev-cluster.
type devTier struct {
	bucket, endpoint string
	none             bool
}

func (t devTier) apply(cfg *devcluster.Config) error {
	switch {
	case t.none && t.bucket != "":
		return cli.UsageError("--no-bucket and --bucket exclude each other: give one of them")
	case t.bucket == "" && t.endpoint != "":
		return cli.UsageError("--bucket-endpoint needs a bucket: name it with --bucket")
	case t.bucket != "":
		cfg.ChunkserverArgs = append(cfg.ChunkserverArgs, "--bucket", t.bucket)
		if t.endpoint != "" {
			cfg.ChunkserverArgs = append(cfg.ChunkserverArgs, "--bucket-endpoint", t.endpoint)
		}
	default:
		cfg.ObjectServer = !t.none
	}
	return nil
}

func devCluster(ctx context.Context, env *cli.Env, cfg devcluster.Config, tier devTier) (err error) {
	if cfg.Metadata%2 == 0 || cfg.Metadata < 1 || cfg.Metadata > 5 {
		return cli.UsageError("--metadata %d: the group needs a majority, so write 1, 3 or 5", cfg.Metadata)
	}
	if cfg.Chunkservers < 1 || cfg.Devices < 1 {
		return cli.UsageError("--chunkservers %d --devices %d: write 1 or more for each", cfg.Chunkservers, cfg.Devices)
	}
	if cfg.Dir == "" {
		if cfg.Dir, err = os.MkdirTemp("", "moraine-"); err != nil {
			return err
		}
		defer os.RemoveAll(cfg.Dir)
	}
	// Absolute, as people use the printed paths from other working directories.
	if cfg.Dir, err = filepath.Abs(cfg.Dir); err != nil {
		return err
	}
	cfg.Mode = env.Global.Mode
	if err := tier.apply(&cfg); err != nil {
		return err
	}
	c, err := devcluster.Start(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := c.Close(); err == nil {
			err = closeErr
		}
	}()
	if err := printNodes(env, c); err != nil {
		return err
	}
	env.Note("\nUse it from another shell with\n\n  export MORAINE_ENDPOINT=%s MORAINE_CERTS=%s MORAINE_IDENTITY=admin MORAINE_MODE=%s\n\nand, for example, `moraine cluster status`. Ctrl-C ends it.",
		c.Endpoint(), c.Certs(), c.Mode())
	for _, n := range c.Nodes(devcluster.S3) {
		if err := servercmd.NoteS3(env, n, "http"); err != nil {
			return err
		}
	}
	for _, n := range c.Nodes(devcluster.ObjectServer) {
		servercmd.NoteBucket(env, n)
	}
	return watchNodes(ctx, env, c)
}

func printNodes(env *cli.Env, c *devcluster.Cluster) error {
	var infos []nodeInfo
	for _, n := range c.All() {
		infos = append(infos, nodeInfo{n.Name, string(n.Role), n.Pid(), n.Address, n.Admin, n.LogPath()})
	}
	return cli.List(env, infos, table.Row{"name", "role", "pid", "address", "metrics and health", "log"}, func(i nodeInfo) table.Row {
		return table.Row{i.Name, i.Role, i.Pid, i.Address, "http://" + i.Admin, i.Log}
	})
}

// watchNodes reports each server that ends by itself, until ctx ends.
func watchNodes(ctx context.Context, env *cli.Env, c *devcluster.Cluster) error {
	gone := map[string]bool{}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		for _, n := range c.All() {
			if running := n.Running(); !running && !gone[n.Name] {
				fmt.Fprintf(env.Err, "moraine: %s; the command does not start it again; its log is %s\n", n.Why(), n.LogPath())
				gone[n.Name] = true
			}
		}
	}
}
