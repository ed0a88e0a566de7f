package servercmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/cmd/moraine/internal/serve"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/tiers/object"
)

// The local bucket and the S3 endpoint of a standalone cluster are processes beside it: the
// S3 library allows one server in a process. They end with the cluster, however it ends.
// The cluster restarts them where they end by themselves.

// startTimeout bounds the start of such a process.
const startTimeout = time.Minute

// startNode starts a process beside this one and waits until it accepts requests. It ends a
// process that does not.
func startNode(ctx context.Context, env *cli.Env, n *devcluster.Node) error {
	if err := n.Start(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	err := n.Ready(ctx)
	if err != nil {
		_ = n.Stop(time.Second) // why it is not ready is what counts
	}
	return err
}

// superviseNode supervises a process that was started, until ctx ends.
func superviseNode(ctx context.Context, env *cli.Env, n *devcluster.Node) error {
	return devcluster.Keep(ctx, n, func(why string, pause time.Duration) {
		fmt.Fprintf(env.Err, "moraine: %s; it is started again in %v; its log is %s\n", why, pause, n.LogPath())
	})
}

// checkAddresses fails where an address of a process beside this one is in use.
func (o *standaloneOptions) checkAddresses() error {
	var errs []error
	if o.bucket.url == "" {
		errs = append(errs, serve.CheckFree("--object-listen", o.objects))
	}
	if !o.noS3 {
		errs = append(errs, serve.CheckFree("--s3-listen", o.s3.Listen), serve.CheckFree("--s3-admin-listen", o.s3.Admin))
	}
	return errors.Join(errs...)
}

// localTier makes the local bucket of a standalone cluster its object tier.
func localTier(o *standaloneOptions) (*devcluster.Node, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(o.data, "objects")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	server := devcluster.NewObjectServer(self, dir, o.objects, filepath.Join(o.data, "objects.log"))
	if o.bucket.Keys, err = object.LoadKeys(server.KeysFile()); err != nil {
		return nil, err
	}
	o.bucket.url = "s3://" + localBucket
	o.bucket.Endpoint("http://" + o.objects)
	return server, nil
}

// withTier runs serve with the local bucket beside it. The bucket ends after serve.
func withTier(ctx context.Context, env *cli.Env, bucket *devcluster.Node, serve func(context.Context) error) error {
	if bucket == nil {
		return serve(ctx)
	}
	if err := startNode(ctx, env, bucket); err != nil {
		return err
	}
	keepCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- superviseNode(keepCtx, env, bucket) }()
	err := serve(ctx)
	stop()
	if endErr := <-ended; err == nil {
		err = endErr
	}
	return err
}

// endpoint describes the S3 endpoint of a standalone cluster, nil where a flag turns it
// off.
func endpoint(env *cli.Env, o *standaloneOptions, certs string) (*devcluster.Node, error) {
	if o.noS3 {
		return nil, nil
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	// The other process starts in this one's directory, but may restart later.
	for _, file := range []*string{&o.s3.CertFile, &o.s3.KeyFile} {
		if *file != "" {
			if *file, err = filepath.Abs(*file); err != nil {
				return nil, err
			}
		}
	}
	o.s3.Binary, o.s3.Endpoint, o.s3.Certs, o.s3.Mode = self, o.listen, certs, env.Global.Mode
	o.s3.Dir, o.s3.Log = filepath.Join(o.data, "s3"), filepath.Join(o.data, "s3.log")
	return devcluster.NewS3(o.s3)
}

// NoteS3 prints how to use an S3 endpoint with the stock tool.
func NoteS3(env *cli.Env, n *devcluster.Node, proto string) error {
	key, err := serve.ReadCredentials(n.CredentialsFile())
	if err != nil {
		return err
	}
	env.Note("\nS3 is at %s://%s; each directory at the top is a bucket. The access key is %s, the "+
		"secret is in the file named here:\n\n  export AWS_SHARED_CREDENTIALS_FILE=%s "+
		"AWS_ENDPOINT_URL=%s://%s\n  aws s3 ls", proto, n.Address, key.Access, n.CredentialsFile(), proto, n.Address)
	return nil
}
