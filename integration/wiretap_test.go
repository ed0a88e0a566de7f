package integration_test

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha512"
	"crypto/x509"
	"encoding/base64"
	endian "encoding/binary"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/metadata/raftstore"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/tiers/object"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/pki"
	"github.com/morainefs/moraine/transport/wire"
)

// wiretap is a proxy in front of every server that records all traffic.
type wiretap struct {
	t   *testing.T
	dir string // of the servers' own sockets

	mu      sync.Mutex
	streams []*bytes.Buffer // one for each direction of each connection
}

// listen is devcluster.Config.Listen.
func (w *wiretap) listen(name, address string) string {
	l, err := net.Listen("tcp", address)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { l.Close() })
	network, behind := "unix", filepath.Join(w.dir, name)
	listen := "unix:" + behind
	if name == devcluster.S3Name || name == devcluster.ObjectServerName { // they do not support such sockets
		addrs, err := devcluster.FreeAddresses(1)
		require.NoError(w.t, err)
		network, behind, listen = "tcp", addrs[0], addrs[0]
	}
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial(network, behind)
			if err != nil {
				from.Close()
				continue
			}
			go w.pass(from, to)
			go w.pass(to, from)
		}
	}()
	return listen
}

func (w *wiretap) pass(from, to net.Conn) {
	stream := new(bytes.Buffer)
	w.mu.Lock()
	w.streams = append(w.streams, stream)
	w.mu.Unlock()
	defer from.Close()
	defer to.Close()
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		w.mu.Lock()
		stream.Write(b[:n])
		w.mu.Unlock()
		if err == nil {
			_, err = to.Write(b[:n])
		}
		if err != nil {
			return
		}
	}
}

// recorded is all recorded traffic.
func (w *wiretap) recorded() (streams [][]byte, total int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.streams {
		streams = append(streams, bytes.Clone(s.Bytes()))
		total += s.Len()
	}
	return streams, total
}

// forms returns the possible encodings of a secret: raw, in hexadecimal, in base64
// also at any offset within other base64 data, in a URL, in JSON, and as Go prints
// bytes.
func forms(secret []byte) [][]byte {
	all := [][]byte{secret, []byte(hex.EncodeToString(secret)), []byte(strings.ToUpper(hex.EncodeToString(secret))),
		[]byte(url.QueryEscape(string(secret))), []byte(strings.Trim(fmt.Sprint(secret), "[]"))}
	if quoted := strings.Trim(strconv.Quote(string(secret)), `"`); quoted != string(secret) {
		all = append(all, []byte(quoted))
	}
	for _, enc := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding} {
		for before := range 3 {
			s := enc.EncodeToString(append(make([]byte, before), secret...))
			// Without the characters that also depend on the bytes before and after
			// it.
			all = append(all, []byte(s[(before*8+5)/6:(before+len(secret))*8/6]))
		}
	}
	return all
}

// privateKeys returns the private numbers of the keys in dir, by file.
func privateKeys(t *testing.T, dir string) map[string][]byte {
	files, err := filepath.Glob(filepath.Join(dir, "*.key"))
	require.NoError(t, err)
	keys := map[string][]byte{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		block, _ := pem.Decode(b)
		key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		require.NoError(t, err)
		raw, err := key.(*ecdsa.PrivateKey).Bytes()
		require.NoError(t, err)
		keys[filepath.Base(f)] = raw
	}
	return keys
}

// TestNoSecretOnTheWire records all traffic between the servers and clients of a
// cluster in mode crc, and to its S3 endpoint and its bucket. The traffic covers a
// first start, writes and reads, S3 requests with keys and with presigned URLs, a
// flush, an eviction and a read back. It also covers a mount, a saved checkpoint, a
// repair, a token on a bulk connection, a backup, a revocation, a joining server,
// and a failover.
//
// The traffic contains, in any form, no private key of a certificate, no key that
// signs tokens, and no session token. Nor does it contain the cluster secret, or a
// key of S3 or of the bucket. The bytes of a file are in it, as expected in that
// mode. Neither are secrets in the backup, a log, the JSON output of commands, a
// command line, or the pages of the admin ports.
func TestNoSecretOnTheWire(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "tap")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	tap := &wiretap{t: t, dir: dir}
	c := startProcs(t, devcluster.Config{Metadata: 3, Chunkservers: 4, Mode: "crc", Listen: tap.listen, S3: true, ObjectServer: true})
	env := settingsFor(c)
	works(t, env, "cluster", "status", "--wait", "1m")
	marker := bytes.Repeat([]byte("bytes of a file, which mode crc does not hide\n"), 4000)
	local := filepath.Join(t.TempDir(), "f")
	require.NoError(t, os.WriteFile(local, marker, 0o644))
	works(t, env, "cp", local, "moraine:///f")
	works(t, env, "cat", "moraine:///f")
	useS3(t, c.Node(devcluster.S3Name))
	works(t, env, "flush", "--wait", "moraine:///f")
	works(t, env, "evict", "--wait", "moraine:///f")
	works(t, env, "cat", "moraine:///f")
	backup := filepath.Join(t.TempDir(), "backup")
	throughAMount(t, c, local)
	tensor, _ := tensorOf(t, random(seed(t)))
	works(t, env, "ckpt", "save", "moraine:///run", "--step", "1", tensor)
	works(t, env, "metadata", "backup", backup)
	works(t, env, "cert", "revoke", "--node", "nobody")
	works(t, env, "cert", "revoke", "--list")

	cl := connect(t, c, client.Config{})
	resp, err := rawclient.Of(cl).Meta(t.Context(), &wire.MetaRequest{Session: uint64(cl.Session()), Op: &wire.MetaRequest_RenewSession{RenewSession: &wire.RenewSession{WantToken: true}}})
	require.NoError(t, err)
	token := resp.GetSession().GetToken()
	require.Greater(t, len(token), 64)
	onBulk(t, c, token)
	repairsOne(t, cl, env)

	joined, err := c.AddMetadata("m4", "m1")
	require.NoError(t, err)
	works(t, env, "metadata", "add", "m4="+joined.Address)
	require.NoError(t, joined.Ready(t.Context()))

	require.NoError(t, c.Node("m1").Kill())
	works(t, env, "cp", local, "moraine:///g")
	require.NoError(t, c.Node("m1").Start())
	require.NoError(t, c.Node("m1").Ready(t.Context()))

	secrets := privateKeys(t, c.Certs())
	secrets["the signature of a token"] = token[len(token)-64:]
	for _, m := range c.Nodes(devcluster.Metadata) {
		kept, raw := metadata.DirSecrets{Dir: filepath.Join(c.Dir(), m.Name, "data")}, []byte(nil)
		require.Eventually(t, func() bool {
			raw, err = kept.Load()
			return err == nil && len(raw) == 32
		}, time.Minute, 50*time.Millisecond, "%s has the cluster secret", m.Name)
		secrets["the secret of "+m.Name] = raw
	}
	for name, seed := range signingKeys(t, backup, secrets["the secret of m2"]) {
		secrets[name] = seed
	}
	s3Key, err := credentials.NewFileAWSCredentials(c.Node(devcluster.S3Name).CredentialsFile(), "default").GetWithContext(nil)
	require.NoError(t, err)
	secrets["the root key of S3"] = []byte(s3Key.SecretAccessKey)
	bucketKeys, err := object.LoadKeys(c.Node(devcluster.ObjectServerName).KeysFile())
	require.NoError(t, err)
	secrets["the key of the bucket"] = []byte(bucketKeys.Secret)
	require.GreaterOrEqual(t, len(secrets), 11+8)
	streams, total := tap.recorded()
	seen := false
	for _, s := range streams {
		seen = seen || bytes.Contains(s, marker[:1000])
	}
	require.True(t, seen, "the tap sees what passes")
	f, err := os.Open(backup)
	require.NoError(t, err)
	defer f.Close()
	whole, err := io.ReadAll(f)
	require.NoError(t, err)
	shown := shows(t, c, env)
	shown["the backup"] = whole
	for what, secret := range secrets {
		require.GreaterOrEqual(t, len(secret), 16, what)
		for _, form := range forms(secret) {
			for _, s := range streams {
				require.False(t, bytes.Contains(s, form), "%s is on the wire", what)
			}
			for where, text := range shown {
				require.False(t, bytes.Contains(text, form), "%s is in %s", what, where)
			}
		}
	}
	t.Logf("%d secrets, %d bytes in %d streams", len(secrets), total, len(streams))
}

// throughAMount copies a file into a mount and reads it there, if mounts are
// possible.
func throughAMount(t *testing.T, c *devcluster.Cluster, local string) {
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Logf("nothing can be mounted here: %v", err)
		return
	}
	require.NoError(t, f.Close())
	m := mountCluster(t, c)
	want, err := os.ReadFile(local)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(m.dir, "mounted"), want, 0o644))
	got, err := os.ReadFile(filepath.Join(m.dir, "mounted"))
	require.NoError(t, err)
	require.Equal(t, want, got)
	m.umount(t)
}

// onBulk presents a token on a bulk connection to a chunkserver, which accepts it:
// the requested chunk does not exist.
func onBulk(t *testing.T, c *devcluster.Cluster, token []byte) {
	id, err := pki.LoadIdentity(pki.FilesIn(c.Certs(), "admin"))
	require.NoError(t, err)
	pool, err := transport.NewPool(transport.PoolConfig{Mode: transport.Mode(c.Mode())}, transport.PoolDeps{Identity: id})
	require.NoError(t, err)
	defer pool.Close()
	n := c.Node("n1")
	get := func() error {
		_, _, err := pool.Chunks(n.Name, []string{n.Address}).Get(t.Context(), &wire.GetChunk{Stripe: 1 << 50, Device: 1, Length: 10}, make([]byte, 10), nil)
		return err
	}
	require.ErrorIs(t, get(), moraine.Unauthenticated)
	pool.SetToken(token)
	err = get()
	require.Error(t, err)
	require.NotErrorIs(t, err, moraine.Unauthenticated)
}

// repairsOne takes a device out, and returns once a repair has rebuilt its chunks
// elsewhere.
func repairsOne(t *testing.T, cl *client.Client, env []string) {
	works(t, env, "device", "set", "1", "out")
	require.Eventually(t, func() bool {
		resp, err := rawclient.Of(cl).Meta(t.Context(), &wire.MetaRequest{Op: &wire.MetaRequest_ListJobs{ListJobs: &wire.ListJobs{Ended: true}}})
		return err == nil && slices.ContainsFunc(resp.GetJobs().GetJobs(), func(j *wire.Job) bool {
			return j.Kind == wire.JobKind_JOB_KIND_REPAIR && j.State == wire.JobState_JOB_STATE_DONE
		})
	}, time.Minute, 100*time.Millisecond)
}

// signingKeys returns the seeds of the keys that sign tokens and capabilities. A
// backup holds them sealed under the secret of the cluster.
func signingKeys(t *testing.T, backup string, secret []byte) map[string][]byte {
	f, err := os.Open(backup)
	require.NoError(t, err)
	defer f.Close()
	st, err := f.Stat()
	require.NoError(t, err)
	block, err := aes.NewCipher(secret)
	require.NoError(t, err)
	aead, err := cipher.NewGCM(block)
	require.NoError(t, err)
	seeds := map[string][]byte{}
	m := state.New(0)
	require.NoError(t, raftstore.InspectBackup(vfs.OS{}, filepath.Join(t.TempDir(), "state"), f, st.Size(), func(r kvtx.Reader, _ uint64) error {
		cluster, err := kvtx.Cluster(m.View(r))
		require.NoError(t, err)
		keys, err := fleet.SigningKeys(m.View(r))
		require.NoError(t, err)
		for _, k := range keys {
			const id = 16
			bound := endian.BigEndian.AppendUint64(append([]byte("moraine signing key\x00"), cluster.UUID[:]...), k.Id)
			sealed := k.Sealed[id+aead.NonceSize():]
			seed, err := aead.Open(nil, k.Sealed[id:id+aead.NonceSize()], sealed, append(bound, k.PublicKey...))
			require.NoError(t, err)
			require.Equal(t, k.PublicKey, []byte(ed25519.NewKeyFromSeed(seed).Public().(ed25519.PublicKey)))
			seeds[fmt.Sprintf("the seed of signing key %d", k.Id)] = seed
			whole := sha512.Sum512(seed)
			seeds[fmt.Sprintf("the scalar of signing key %d", k.Id)] = whole[:32]
		}
		return nil
	}))
	require.NotEmpty(t, seeds)
	return seeds
}

// useS3 makes requests of an S3 endpoint with its root key, in headers and in URLs.
func useS3(t *testing.T, endpoint *devcluster.Node) {
	mc, ctx := minioClient(t, endpoint), t.Context()
	require.NoError(t, mc.MakeBucket(ctx, "bucket", minio.MakeBucketOptions{}))
	_, err := mc.PutObject(ctx, "bucket", "key", strings.NewReader("bytes"), 5, minio.PutObjectOptions{})
	require.NoError(t, err)
	_, err = mc.PutObject(ctx, "bucket", "long", io.LimitReader(rand.Reader, 6<<20), -1, minio.PutObjectOptions{PartSize: 5 << 20})
	require.NoError(t, err)
	u, err := mc.PresignedGetObject(ctx, "bucket", "key", time.Minute, nil)
	require.NoError(t, err)
	resp, err := http.Get(u.String())
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, "bytes", string(text))
}

// shows is the output of the processes of a cluster, by source: logs, command
// lines, pages of the admin ports, and the JSON output of commands.
func shows(t *testing.T, c *devcluster.Cluster, env []string) map[string][]byte {
	shown := map[string][]byte{}
	for _, n := range c.All() {
		log, err := os.ReadFile(n.LogPath())
		require.NoError(t, err)
		shown["the log of "+n.Name] = log
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", n.Pid()))
		require.NoError(t, err)
		require.Contains(t, string(line), "moraine")
		shown["the command line of "+n.Name] = line
		for _, page := range []string{"metrics", "healthz", "debug/pprof/", "debug/pprof/cmdline", "debug/pprof/goroutine?debug=2", "debug/pprof/heap?debug=1", "debug/pprof/allocs", "debug/pprof/threadcreate?debug=1"} {
			resp, err := http.Get("http://" + n.Admin + "/" + page)
			require.NoError(t, err)
			text, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			require.NoError(t, err)
			shown[n.Name+"/"+page] = text
		}
	}
	for _, command := range []string{"cluster status", "host ls", "device ls", "tier status", "job ls", "cert revoke --list", "metadata ls", "metadata status", "cert show " + c.Certs() + " admin m1"} {
		o := invoke(t, env, append(strings.Fields(command), "--json")...)
		if command == "cluster status" { // degraded: a certificate was revoked, a server was added
			require.Contains(t, []int{0, 3}, o.code, o.stderr)
		} else {
			require.Zero(t, o.code, "%s: %s", command, o.stderr)
		}
		shown[command+" --json"] = []byte(o.stdout + o.stderr)
	}
	return shown
}
