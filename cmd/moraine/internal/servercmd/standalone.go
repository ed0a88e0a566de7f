package servercmd

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/cmd/moraine/internal/s3cmd"
	"github.com/morainefs/moraine/cmd/moraine/internal/serve"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/metadata/raftstore"
	"github.com/morainefs/moraine/transport/pki"
	"github.com/spf13/cobra"
)

// standaloneOptions are the flags of `moraine standalone`.
type standaloneOptions struct {
	data        string
	listen      string
	chunkListen string
	adminListen string
	chunkAdmin  string
	devices     int
	capacity    cli.SizeFlag
	memory      cli.SizeFlag
	objects     string
	bucket      bucketOptions
	backups     backupFlags
	noS3        bool
	s3          devcluster.S3Config
}

func newStandaloneCommand(env *cli.Env) *cobra.Command {
	var o standaloneOptions
	cmd := &cobra.Command{
		Use:     "standalone",
		GroupID: cli.GroupServers,
		Short:   "Run a whole cluster on one machine, with one command",
		Long: `Run a metadata server and a chunkserver with several devices in one process, for a laptop or
a first try. Beside it run two processes: an S3 endpoint and, unless --bucket names one, a
local bucket as the object tier. They end with the command. It restarts one that ends by
itself. The first start makes certificates and keys.

With more than one device each byte is on two of them (x2). The loss of the machine is the
loss of the data.`,
		Example: "  moraine standalone --data ./moraine-data",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return standalone(cmd.Context(), env, o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.data, "data", "", "directory for everything")
	f.StringVar(&o.listen, "listen", "127.0.0.1:"+cli.DefaultMetadataPort, "address of the metadata server")
	f.StringVar(&o.chunkListen, "chunk-listen", "127.0.0.1:"+cli.DefaultChunkserverPort, "address of the chunkserver")
	f.StringVar(&o.adminListen, "admin-listen", "127.0.0.1:7401", "address of the metadata server's /metrics, /healthz and /debug/pprof")
	f.StringVar(&o.chunkAdmin, "chunk-admin-listen", "127.0.0.1:7411", "address of the chunkserver's "+
		"/metrics, /healthz and /debug/pprof")
	f.IntVar(&o.devices, "devices", 2, "devices, each a directory below --data")
	f.StringVar(&o.objects, "object-listen", "127.0.0.1:"+defaultObjectPort, "address of the local bucket")
	o.bucket.addFlags(f)
	f.StringVar(&o.s3.Listen, "s3-listen", "127.0.0.1:"+s3cmd.DefaultS3Port, "address of the S3 endpoint")
	f.StringVar(&o.s3.Admin, "s3-admin-listen", "127.0.0.1:"+s3cmd.DefaultS3AdminPort, "address of the S3 "+
		"endpoint's /metrics, /healthz and /debug/pprof")
	f.StringVar(&o.s3.CertFile, "s3-cert", "", "TLS certificate of the S3 endpoint, PEM; without it the endpoint speaks plain HTTP")
	f.StringVar(&o.s3.KeyFile, "s3-key", "", "private key of the TLS certificate, PEM")
	f.BoolVar(&o.noS3, "no-s3", false, "run without an S3 endpoint")
	o.backups.flags(f)
	o.memory = 256 << 20
	f.Var(&o.capacity, "capacity", "bound of the bytes on each device (default: the size of its file "+
		"system)")
	f.Var(&o.memory, "memory", "memory for chunks that the server receives, reads or caches")
	return cmd
}

// Names of the two servers of a standalone cluster.
const (
	standaloneMetadata    = "m1"
	standaloneChunkserver = "n1"
)

func standalone(ctx context.Context, env *cli.Env, o standaloneOptions) error {
	switch {
	case o.data == "":
		return cli.UsageError("no directory for the data: give --data DIR")
	case o.devices < 1:
		return cli.UsageError("--devices %d: write 1 or more", o.devices)
	case o.backups.check() != nil:
		return o.backups.check()
	case (o.s3.CertFile == "") != (o.s3.KeyFile == ""):
		return cli.UsageError("--s3-cert and --s3-key: give both or none")
	}
	if o.s3.KeyFile != "" {
		if err := pki.CheckKeyMode(o.s3.KeyFile); err != nil {
			return err
		}
	}
	if err := o.checkAddresses(); err != nil {
		return err
	}
	// Absolute, as people use the printed path from other working directories.
	data, err := filepath.Abs(o.data)
	if err != nil {
		return err
	}
	o.data = data
	certs := filepath.Join(o.data, "certs")
	if err := devcluster.MakeCertificates(certs, 1, 1); err != nil {
		return err
	}
	metadataEnv, chunkEnv := *env, *env
	metadataEnv.Global.Certs, metadataEnv.Global.Identity = certs, standaloneMetadata
	chunkEnv.Global.Certs, chunkEnv.Global.Identity, chunkEnv.Global.Endpoint = certs, standaloneChunkserver, o.listen
	s3, err := endpoint(env, &o, certs)
	if err != nil {
		return err
	}
	var bucket *devcluster.Node
	if o.bucket.url == "" {
		if bucket, err = localTier(&o); err != nil {
			return err
		}
	}
	chunks := chunkserverOptions{bucket: o.bucket, id: standaloneChunkserver, listen: []string{o.chunkListen}, adminListen: o.chunkAdmin,
		capacity: o.capacity, memory: o.memory, memoryNode: -1, moverBandwidth: 512 << 20}
	for i := range o.devices {
		chunks.devices = append(chunks.devices, filepath.Join(o.data, fmt.Sprintf("device%d", i)))
	}
	if err := formatStandalone(&chunkEnv, &o, chunks.devices); err != nil {
		return err
	}
	serving := make(chan struct{})
	chunks.ready = func() { close(serving) }
	return withTier(ctx, env, bucket, func(ctx context.Context) error {
		return withDoors(ctx, func(ctx context.Context) error {
			select {
			case <-serving:
				return standaloneDoors(ctx, env, o, certs, bucket, s3)
			case <-ctx.Done():
				return nil
			}
		}, func(ctx context.Context) error {
			return runMetadata(ctx, &metadataEnv, metadataOptions{id: standaloneMetadata, listen: []string{o.listen},
				adminListen: o.adminListen, data: filepath.Join(o.data, "metadata"), bootstrap: true, backups: o.backups,
				service: metadata.Config{SharesDisk: true}})
		}, func(ctx context.Context) error { return runChunkserver(ctx, &chunkEnv, chunks) })
	})
}

// formatStandalone makes the devices at the first start. It does not make one that is
// missing later: that one is lost.
func formatStandalone(env *cli.Env, o *standaloneOptions, devices []string) error {
	formed, err := raftstore.Formed(vfs.OS{}, filepath.Join(o.data, "metadata"))
	if err != nil || formed {
		return err
	}
	sec, err := env.Security()
	if err != nil {
		return err
	}
	cluster := clusterOfPeers([]string{standaloneMetadata + "=" + o.listen})
	if sec.Identity != nil {
		cluster = sec.Identity.Claims().Cluster
	}
	return devcluster.FormatDevices(cluster, devices...)
}

// withDoors runs servers, and doors beside them until ctx ends. The servers end after the
// doors, so that the doors still reach them while they end.
func withDoors(ctx context.Context, doors func(context.Context) error, servers ...func(context.Context) error) error {
	serversCtx, stopServers := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServers()
	return serve.RunAll(serversCtx, append(servers, func(serversCtx context.Context) error {
		defer stopServers()
		doorsCtx, stop := context.WithCancel(ctx)
		defer stop()
		defer context.AfterFunc(serversCtx, stop)()
		return doors(doorsCtx)
	})...)
}

// standaloneDoors starts the S3 endpoint, prints how to use everything, and supervises the
// endpoint until ctx ends.
func standaloneDoors(ctx context.Context, env *cli.Env, o standaloneOptions, certs string, bucket, s3 *devcluster.Node) error {
	if s3 != nil {
		if err := startNode(ctx, env, s3); err != nil {
			return serve.IgnoreEnd(ctx, err)
		}
	}
	env.Note("Use it from another shell with\n\n  export MORAINE_ENDPOINT=%s MORAINE_CERTS=%s MORAINE_IDENTITY=admin MORAINE_MODE=%s\n\nand, for example, `moraine cluster status`. Ctrl-C ends it.",
		o.listen, certs, env.Global.Mode)
	if s3 != nil {
		if err := NoteS3(env, s3, o.s3.Protocol()); err != nil {
			return err
		}
	}
	if bucket != nil {
		NoteBucket(env, bucket)
	}
	if s3 == nil {
		<-ctx.Done()
		return nil
	}
	return superviseNode(ctx, env, s3)
}
