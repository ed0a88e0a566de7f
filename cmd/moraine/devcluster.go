package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/morainefs/moraine/integration/procs"
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

func (a *app) devClusterCommand() *cobra.Command {
	var cfg procs.Config
	var tier devTier
	var noS3 bool
	cmd := &cobra.Command{
		Use:     "dev-cluster",
		GroupID: groupServers,
		Short:   "A real cluster on this machine: 3 metadata servers, 6 chunkservers, an S3 endpoint and an object tier, each a process",
		Long: `Start a whole cluster on this machine, each server a process of its own on
loopback ports, with certificates of its own, and keep it until Ctrl-C.

Without --dir it lives in a temporary directory that is removed at the end. With
--dir everything stays, and the next start finds it again.

The object tier is a local bucket of the cluster's own, unless --bucket names one.
A server that ends is reported, and not started again, so that failures can be tried.
To have it back, end dev-cluster and start it again with the same --dir.`,
		Example: `  moraine dev-cluster
  moraine dev-cluster --dir ./cluster --chunkservers 3 --devices 2`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg.S3 = !noS3
			return a.devCluster(cmd.Context(), cfg, tier)
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

// devTier says which object tier a dev-cluster has.
type devTier struct {
	bucket, endpoint string
	none             bool
}

func (t devTier) apply(cfg *procs.Config) error {
	switch {
	case t.none && t.bucket != "":
		return usageError("--no-bucket and --bucket exclude each other")
	case t.bucket == "" && t.endpoint != "":
		return usageError("--bucket-endpoint: name the bucket too, by --bucket")
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

func (a *app) devCluster(ctx context.Context, cfg procs.Config, tier devTier) (err error) {
	if cfg.Metadata%2 == 0 || cfg.Metadata < 1 || cfg.Metadata > 5 {
		return usageError("--metadata %d: a majority decides, so write 1, 3 or 5", cfg.Metadata)
	}
	if cfg.Chunkservers < 1 || cfg.Devices < 1 {
		return usageError("--chunkservers %d --devices %d: at least one of each", cfg.Chunkservers, cfg.Devices)
	}
	if cfg.Dir == "" {
		if cfg.Dir, err = os.MkdirTemp("", "moraine-"); err != nil {
			return err
		}
		defer os.RemoveAll(cfg.Dir)
	}
	// The printed directories are used from other directories.
	if cfg.Dir, err = filepath.Abs(cfg.Dir); err != nil {
		return err
	}
	cfg.Mode = a.global.mode
	if err := tier.apply(&cfg); err != nil {
		return err
	}
	c, err := procs.Start(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := c.Close(); err == nil {
			err = closeErr
		}
	}()
	if err := a.printNodes(c); err != nil {
		return err
	}
	a.note("\nUse it from another shell with\n\n  export MORAINE_ENDPOINT=%s MORAINE_CERTS=%s MORAINE_IDENTITY=admin MORAINE_MODE=%s\n\nand, for example, `moraine cluster status`. Ctrl-C ends it.",
		c.Endpoint(), c.Certs(), c.Mode())
	for _, n := range c.Nodes(procs.S3) {
		if err := a.noteS3(n, "http"); err != nil {
			return err
		}
	}
	for _, n := range c.Nodes(procs.ObjectServer) {
		a.noteBucket(n)
	}
	return watchNodes(ctx, c, a)
}

func (a *app) printNodes(c *procs.Cluster) error {
	var infos []nodeInfo
	for _, n := range c.All() {
		infos = append(infos, nodeInfo{n.Name, string(n.Role), n.Pid(), n.Address, n.Admin, n.LogPath()})
	}
	return list(a, infos, table.Row{"name", "role", "pid", "address", "metrics and health", "log"}, func(i nodeInfo) table.Row {
		return table.Row{i.Name, i.Role, i.Pid, i.Address, "http://" + i.Admin, i.Log}
	})
}

// watchNodes says when a server ends by itself, until ctx does.
func watchNodes(ctx context.Context, c *procs.Cluster, a *app) error {
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
				fmt.Fprintf(a.err, "moraine: %s; it is not started again; its log is %s\n", n.Why(), n.LogPath())
				gone[n.Name] = true
			}
		}
	}
}
