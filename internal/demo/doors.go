package demo

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/internal/llama"
)

// The rank and the checkpoint step whose part is read in steps 6 and 7 of the demo.
const (
	partRank = 0
	partStep = 2
)

// partPath is the path of a rank's part of a step, by the step's link.
func partPath(step, rank int) string {
	return fmt.Sprintf("%s/step-%d/rank-%05d-of-%05d.safetensors", runPath, step, rank, saveRanks)
}

// wantedDigests are those of the tensors of the part that the rank saved.
func wantedDigests() map[string]string {
	s := llama.NewShard(llama.Demo(), partRank, saveRanks)
	s.Fill(partStep)
	return s.SHA256()
}

// checkMounts fails before the start if nothing can be mounted.
func checkMounts() error {
	if _, err := os.Stat("/dev/fuse"); err != nil {
		return fmt.Errorf("step 6 mounts the cluster and needs FUSE: %w (in a container: --device /dev/fuse --cap-add SYS_ADMIN)", err)
	}
	return nil
}

// throughTheMount is step 6: a stock program reads the second step's directory as
// files.
func (d *demo) throughTheMount(ctx context.Context, want map[string]string) (err error) {
	d.cfg.Say("\n6. The second step's directory through a mount: rank %d's part is read by Python's safetensors.", partRank)
	m, err := d.startMount(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.stop()) }()
	file := filepath.Join(m.dir, partPath(partStep, partRank))
	st, err := os.Stat(file)
	if err != nil {
		return err
	}
	start := time.Now()
	got, err := d.python.tensorDigests(ctx, file)
	if err != nil {
		return err
	}
	wall := time.Since(start)
	d.cfg.Say("  %s\n  %d tensors, %.2f GiB in %v\n  saved %s\n  read  %s", file, len(got), gib(st.Size()), wall.Round(time.Millisecond), digestOf(want), digestOf(got))
	d.claim("6", "a part is a file in a mount, and stock Python reads it", len(want) > 0 && maps.Equal(got, want),
		"%d tensors, digest %s, %v", len(got), digestOf(got), wall.Round(time.Millisecond))
	return nil
}

// throughS3 is step 7: the same part, by the S3 protocol.
func (d *demo) throughS3(ctx context.Context, want map[string]string) error {
	d.cfg.Say("\n7. The same part through the S3 endpoint, with minio-go.")
	node := d.cluster.Nodes(devcluster.S3)[0]
	access, secret, err := rootKey(node.CredentialsFile())
	if err != nil {
		return err
	}
	s3, err := dialS3(node.Address, access, secret)
	if err != nil {
		return err
	}
	bucket, key, _ := strings.Cut(strings.TrimPrefix(partPath(partStep, partRank), "/"), "/")
	start := time.Now()
	o, err := s3.GetObject(ctx, bucket, key, minio.GetObjectOptions{})
	if err != nil {
		return err
	}
	defer o.Close()
	info, err := o.Stat()
	if err != nil {
		return err
	}
	got, err := tensorDigests(o, info.Size)
	if err != nil {
		return err
	}
	wall := time.Since(start)
	d.cfg.Say("  http://%s/%s\n  %.2f GiB in %v\n  saved %s\n  read  %s", node.Address, path.Join(bucket, key), gib(info.Size), wall.Round(time.Millisecond), digestOf(want), digestOf(got))
	d.claim("7", "the same part is an object of the S3 endpoint", len(want) > 0 && maps.Equal(got, want),
		"digest %s, %v (%.2f GB/s)", digestOf(got), wall.Round(time.Millisecond), float64(info.Size)/wall.Seconds()/1e9)
	return nil
}

func dialS3(address, access, secret string) (*minio.Client, error) {
	return minio.New(address, &minio.Options{Creds: credentials.NewStaticV4(access, secret, ""), Region: "us-east-1"})
}

// rootKey reads a key as AWS clients do.
func rootKey(file string) (access, secret string, err error) {
	f, err := os.Open(file)
	if err != nil {
		return "", "", err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), "=")
		switch strings.TrimSpace(name) {
		case "aws_access_key_id":
			access = strings.TrimSpace(value)
		case "aws_secret_access_key":
			secret = strings.TrimSpace(value)
		}
	}
	return access, secret, lines.Err()
}
