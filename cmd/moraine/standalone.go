package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/morainefs/moraine/integration/procs"
	"github.com/morainefs/moraine/tiers/object"
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
	capacity    sizeFlag
	memory      sizeFlag
	objects     string
	bucket      bucketOptions
}

func (a *app) standaloneCommand() *cobra.Command {
	var o standaloneOptions
	cmd := &cobra.Command{
		Use:     "standalone",
		GroupID: groupServers,
		Short:   "Everything on one machine, in one process",
		Long: `Run a metadata server and a chunkserver with several devices in one process, for
a laptop or a first try, and, unless --bucket names one, a local bucket as its
object tier in a process beside it. Its certificates are made at the first start. With more
than one device each byte is kept on two of them (x2); the loss of the machine is
the loss of the data.`,
		Example: "  moraine standalone --data ./moraine-data",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.standalone(cmd.Context(), o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.data, "data", "", "directory for everything")
	f.StringVar(&o.listen, "listen", "127.0.0.1:"+defaultMetadataPort, "address of the metadata server")
	f.StringVar(&o.chunkListen, "chunk-listen", "127.0.0.1:"+defaultChunkserverPort, "address of the chunkserver")
	f.StringVar(&o.adminListen, "admin-listen", "127.0.0.1:7401", "address of the metadata server's /metrics, /healthz and /debug/pprof")
	f.StringVar(&o.chunkAdmin, "chunk-admin-listen", "127.0.0.1:7411", "the same of the chunkserver")
	f.IntVar(&o.devices, "devices", 2, "devices, each a directory below --data")
	f.StringVar(&o.objects, "object-listen", "127.0.0.1:"+defaultObjectPort, "address of the local bucket")
	o.bucket.addFlags(f)
	o.memory = 256 << 20
	f.Var(&o.capacity, "capacity", "bound of what each device keeps (default: its file system's size)")
	f.Var(&o.memory, "memory", "memory for chunks that are being received and read")
	return cmd
}

// Names of the two servers of a standalone cluster.
const (
	standaloneMetadata    = "m1"
	standaloneChunkserver = "n1"
)

func (a *app) standalone(ctx context.Context, o standaloneOptions) error {
	switch {
	case o.data == "":
		return usageError("where is everything to be kept? give --data DIR")
	case o.devices < 1:
		return usageError("--devices %d: at least one", o.devices)
	}
	// The printed directory of certificates is used from other directories.
	data, err := filepath.Abs(o.data)
	if err != nil {
		return err
	}
	o.data = data
	certs := filepath.Join(o.data, "certs")
	if err := procs.MakeCertificates(certs, 1, 1); err != nil {
		return err
	}
	metadataApp, chunkApp := *a, *a
	metadataApp.global.certs, metadataApp.global.identity = certs, standaloneMetadata
	chunkApp.global.certs, chunkApp.global.identity, chunkApp.global.endpoint = certs, standaloneChunkserver, o.listen
	var server *procs.Node
	if o.bucket.url == "" {
		if server, err = localTier(&o); err != nil {
			return err
		}
	}
	chunks := chunkserverOptions{bucket: o.bucket, id: standaloneChunkserver, listen: []string{o.chunkListen}, adminListen: o.chunkAdmin,
		capacity: o.capacity, memory: o.memory, moverBandwidth: 512 << 20}
	chunks.ready = func() {
		a.note("Use it from another shell with\n\n  export MORAINE_ENDPOINT=%s MORAINE_CERTS=%s MORAINE_IDENTITY=admin MORAINE_MODE=%s\n\nand, for example, `moraine cluster status`. Ctrl-C ends it.",
			o.listen, certs, a.global.mode)
		if server != nil {
			a.noteBucket(server.Address, server.KeysFile())
		}
	}
	for i := range o.devices {
		chunks.devices = append(chunks.devices, filepath.Join(o.data, fmt.Sprintf("device%d", i)))
	}
	if server != nil {
		if err := startTier(ctx, server); err != nil {
			return err
		}
		defer func() { _ = server.Stop(10 * time.Second) }()
	}
	return runAll(ctx,
		func(ctx context.Context) error {
			return metadataApp.runMetadata(ctx, metadataOptions{id: standaloneMetadata, listen: []string{o.listen},
				adminListen: o.adminListen, data: filepath.Join(o.data, "metadata"), bootstrap: true})
		},
		func(ctx context.Context) error { return chunkApp.runChunkserver(ctx, chunks) })
}

// localTier makes the local bucket of a standalone cluster its object tier. It
// is a process of its own, since the server needs one.
func localTier(o *standaloneOptions) (*procs.Node, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(o.data, "objects")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	server := procs.NewObjectServer(self, dir, o.objects, filepath.Join(o.data, "objects.log"))
	if o.bucket.keys, err = object.LoadKeys(server.KeysFile()); err != nil {
		return nil, err
	}
	o.bucket.url, o.bucket.endpoint = "s3://"+localBucket, "http://"+o.objects
	return server, nil
}

// startTier starts the local bucket and waits until it serves.
func startTier(ctx context.Context, server *procs.Node) error {
	if err := server.Start(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return server.Ready(ctx)
}
