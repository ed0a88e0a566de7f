package integration_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/stretchr/testify/require"
)

// pythonEnv is where `make setup` installs the S3 clients of Python.
const pythonEnv = "../.cache/python/bin"

// s3Proc is an S3 endpoint, with the settings for its clients.
type s3Proc struct {
	*devcluster.Node
	env []string // for clients of AWS
}

// startS3 serves a cluster's root by S3 until the test ends, with TLS if there is a
// certificate.
func startS3(t *testing.T, c *devcluster.Cluster, certFile, keyFile string) *s3Proc {
	t.Helper()
	return startS3With(t, c, devcluster.S3Config{CertFile: certFile, KeyFile: keyFile})
}

// startS3With is startS3 with other settings.
func startS3With(t *testing.T, c *devcluster.Cluster, cfg devcluster.S3Config) *s3Proc {
	t.Helper()
	bin, err := binary()
	require.NoError(t, err)
	addrs, err := devcluster.FreeAddresses(2)
	require.NoError(t, err)
	dir := t.TempDir()
	cfg.Binary, cfg.Dir, cfg.Log, cfg.Listen, cfg.Admin = bin, dir, filepath.Join(dir, "log"), addrs[0], addrs[1]
	cfg.Endpoint, cfg.Certs, cfg.Mode = c.Endpoint(), c.Certs(), c.Mode()
	node, err := devcluster.NewS3(cfg)
	require.NoError(t, err)
	require.NoError(t, node.Start())
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(node.LogTail(20))
		}
		require.NoError(t, node.Stop(20*time.Second))
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, node.Ready(ctx))
	return &s3Proc{Node: node, env: append(os.Environ(), "AWS_SHARED_CREDENTIALS_FILE="+node.CredentialsFile(), "AWS_CONFIG_FILE=/dev/null",
		"AWS_DEFAULT_REGION=us-east-1", "AWS_ENDPOINT_URL="+cfg.Protocol()+"://"+cfg.Listen,
		"AWS_EC2_METADATA_DISABLED=true", "AWS_PAGER=", "PYTHONDONTWRITEBYTECODE=1")}
}

// minio returns a client of minio-go; with a transport it uses TLS.
func (s *s3Proc) minio(t *testing.T, tls http.RoundTripper) *minio.Client {
	t.Helper()
	c, err := minio.New(s.Address, &minio.Options{Creds: credentials.NewFileAWSCredentials(s.CredentialsFile(), ""), Region: "us-east-1",
		Secure: tls != nil, Transport: tls, MaxRetries: 1})
	require.NoError(t, err)
	return c
}

// run runs a client of AWS, and returns its output.
func (s *s3Proc) run(t *testing.T, name string, args ...string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(pythonEnv, name))
	require.NoError(t, err)
	require.FileExists(t, path, "`make setup` installs it")
	cmd := exec.Command(path, args...)
	cmd.Env = s.env
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s %s\n%s", name, strings.Join(args, " "), out)
	return string(out)
}

// aws-cli, boto3 and minio-go list and get what they put, whole and in parts. A
// mount shows the same bytes, and they get what the mount wrote.
func TestS3Clients(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 3})
	m := mountCluster(t, c)
	s := startS3(t, c, "", "")
	dir := t.TempDir()
	source := filepath.Join(dir, "source")
	data := make([]byte, 17<<20+321)
	r := random(seed(t))
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	require.NoError(t, os.WriteFile(source, data, 0o644))
	digest := sha256.Sum256(data)
	// same compares the mount's files with the source.
	same := func(t *testing.T, names ...string) {
		t.Helper()
		for _, name := range names {
			got, err := os.ReadFile(filepath.Join(m.dir, name))
			require.NoError(t, err)
			require.Equal(t, digest, sha256.Sum256(got), name)
		}
	}
	t.Run("aws-cli", func(t *testing.T) {
		aws := func(args ...string) string { return s.run(t, "aws", args...) }
		aws("s3", "mb", "s3://aws")
		require.Contains(t, aws("s3", "ls"), " aws\n")
		aws("s3api", "put-object", "--bucket", "aws", "--key", "single", "--body", source)
		aws("s3", "cp", source, "s3://aws/dir/parts") // of 8 MiB
		same(t, "aws/single", "aws/dir/parts")
		aws("s3", "cp", "s3://aws/dir/parts", "s3://aws/dir/copy")
		aws("s3", "mv", "s3://aws/single", "s3://aws/dir/moved")
		same(t, "aws/dir/copy", "aws/dir/moved")
		require.NoFileExists(t, filepath.Join(m.dir, "aws/single"))
		require.Equal(t, 3, strings.Count(aws("s3", "ls", "--recursive", "s3://aws/"), fmt.Sprint(len(data))))

		require.NoError(t, os.MkdirAll(filepath.Join(m.dir, "aws/tree/below"), 0o755))
		for i := range 12 {
			name := filepath.Join(m.dir, "aws/tree", []string{"", "below"}[i%2], fmt.Sprintf("file %d+", i))
			require.NoError(t, os.WriteFile(name, data[:i*50_000], 0o644))
		}
		aws("s3", "sync", "s3://aws/tree", filepath.Join(dir, "tree"))
		diff(t, filepath.Join(m.dir, "aws/tree"), filepath.Join(dir, "tree"))
		aws("s3", "sync", filepath.Join(dir, "tree"), "s3://aws/again")
		diff(t, filepath.Join(dir, "tree"), filepath.Join(m.dir, "aws/again"))
		require.Empty(t, strings.TrimSpace(aws("s3", "sync", filepath.Join(dir, "tree"), "s3://aws/again", "--size-only")), "nothing is to be done")
		aws("s3", "rm", "--recursive", "s3://aws/again")
		require.NotContains(t, aws("s3", "ls", "s3://aws/"), "again")
	})
	t.Run("boto3", func(t *testing.T) {
		out := s.run(t, "python", "testdata/s3_boto3.py", "http://"+s.Address, "boto3", source)
		require.Equal(t, fmt.Sprintf("%x\n", digest), out)
		same(t, "boto3/single", "boto3/parts", "boto3/copies/parts")
		many, err := os.ReadDir(filepath.Join(m.dir, "boto3/many"))
		require.NoError(t, err)
		require.Len(t, many, 25)
		for _, e := range many {
			got, err := os.ReadFile(filepath.Join(m.dir, "boto3/many", e.Name()))
			require.NoError(t, err)
			require.Equal(t, "many/"+e.Name(), string(got))
		}
	})
	t.Run("minio-go", func(t *testing.T) {
		mc, ctx := s.minio(t, nil), t.Context()
		require.NoError(t, mc.MakeBucket(ctx, "minio", minio.MakeBucketOptions{}))
		for name, opts := range map[string]minio.PutObjectOptions{
			"single": {DisableMultipart: true},
			"parts":  {PartSize: 5 << 20, NumThreads: 3},
		} {
			_, err := mc.PutObject(ctx, "minio", "dir/"+name, bytes.NewReader(data), int64(len(data)), opts)
			require.NoError(t, err)
		}
		same(t, "minio/dir/single", "minio/dir/parts")
		require.NoError(t, os.WriteFile(filepath.Join(m.dir, "minio/dir/mounted"), data, 0o644))
		var listed []string
		for o := range mc.ListObjects(ctx, "minio", minio.ListObjectsOptions{Recursive: true}) {
			require.NoError(t, o.Err)
			require.Equal(t, int64(len(data)), o.Size)
			listed = append(listed, o.Key)
			back := filepath.Join(dir, "back")
			require.NoError(t, mc.FGetObject(ctx, "minio", o.Key, back, minio.GetObjectOptions{}))
			got, err := os.ReadFile(back)
			require.NoError(t, err)
			require.Equal(t, digest, sha256.Sum256(got), o.Key)
		}
		require.Equal(t, []string{"dir/mounted", "dir/parts", "dir/single"}, listed)
	})
	m.umount(t)
}

// With a certificate the endpoint accepts only TLS. Clients that trust it get what
// they put; others, and those with plain HTTP, get nothing.
func TestS3OverTLS(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 1})
	web := httptest.NewTLSServer(nil) // has a certificate of 127.0.0.1, and clients that trust it
	defer web.Close()
	pair := web.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	require.NoError(t, err)
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "s3.crt"), filepath.Join(dir, "s3.key")
	require.NoError(t, os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}), 0o644))
	require.NoError(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), 0o600))
	s := startS3(t, c, certFile, keyFile)
	s.env = append(s.env, "AWS_CA_BUNDLE="+certFile)

	data := []byte(strings.Repeat("bytes under TLS ", 500_000))
	mc, ctx := s.minio(t, web.Client().Transport), t.Context()
	require.NoError(t, mc.MakeBucket(ctx, "tls", minio.MakeBucketOptions{}))
	_, err = mc.PutObject(ctx, "tls", "key", bytes.NewReader(data), int64(len(data)), minio.PutObjectOptions{PartSize: 5 << 20})
	require.NoError(t, err)
	back := filepath.Join(dir, "back")
	s.run(t, "aws", "s3", "cp", "s3://tls/key", back)
	got, err := os.ReadFile(back)
	require.NoError(t, err)
	require.Equal(t, sha256.Sum256(data), sha256.Sum256(got))

	_, err = s.minio(t, nil).ListBuckets(ctx)
	require.Error(t, err, "by plain HTTP")
	_, err = s.minio(t, http.DefaultTransport).ListBuckets(ctx)
	require.ErrorContains(t, err, "certificate", "of a client that does not trust it")
}

// diff compares two trees.
func diff(t *testing.T, a, b string) {
	t.Helper()
	out, err := exec.Command("diff", "-r", a, b).CombinedOutput()
	require.NoError(t, err, string(out))
}
