package integration_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/procs"
	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/transport/wire"
)

// wiretap stands before every server and records what passes.
type wiretap struct {
	t   *testing.T
	dir string // of the servers' own sockets

	mu      sync.Mutex
	streams []*bytes.Buffer // one for each direction of each connection
}

// listen is procs.Config.Listen.
func (w *wiretap) listen(name, address string) string {
	l, err := net.Listen("tcp", address)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { l.Close() })
	socket := filepath.Join(w.dir, name)
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("unix", socket)
			if err != nil {
				from.Close()
				continue
			}
			go w.pass(from, to)
			go w.pass(to, from)
		}
	}()
	return "unix:" + socket
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

// recorded is all that passed.
func (w *wiretap) recorded() (streams [][]byte, total int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.streams {
		streams = append(streams, bytes.Clone(s.Bytes()))
		total += s.Len()
	}
	return streams, total
}

// forms returns how a secret may be written.
func forms(secret []byte) [][]byte {
	return [][]byte{secret, []byte(hex.EncodeToString(secret)), []byte(strings.ToUpper(hex.EncodeToString(secret))),
		[]byte(base64.StdEncoding.EncodeToString(secret)), []byte(base64.RawURLEncoding.EncodeToString(secret))}
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

// TestNoSecretOnTheWire records all that a cluster in mode crc and its clients send each
// other: first start, writing and reading, a backup, revoking, a server that joins, and a
// failover. No private key, no session token and no cluster secret is in it, in any form;
// the bytes of a file are, as that mode says. The backup has no secret either.
func TestNoSecretOnTheWire(t *testing.T) {
	dir, err := os.MkdirTemp("", "tap")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	tap := &wiretap{t: t, dir: dir}
	c := startProcs(t, procs.Config{Metadata: 3, Chunkservers: 3, Mode: "crc", Listen: tap.listen})
	env := settingsFor(c)
	works(t, env, "cluster", "status", "--wait", "1m")
	marker := bytes.Repeat([]byte("bytes of a file, which mode crc does not hide\n"), 4000)
	local := filepath.Join(t.TempDir(), "f")
	require.NoError(t, os.WriteFile(local, marker, 0o644))
	works(t, env, "cp", local, "moraine:///f")
	works(t, env, "cat", "moraine:///f")
	backup := filepath.Join(t.TempDir(), "backup")
	works(t, env, "metadata", "backup", backup)
	works(t, env, "cert", "revoke", "--node", "nobody")
	works(t, env, "cert", "revoke", "--list")

	cl := connect(t, c, client.Config{})
	resp, err := cl.Meta(t.Context(), &wire.MetaRequest{Session: uint64(cl.Session()), Op: &wire.MetaRequest_RenewSession{RenewSession: &wire.RenewSession{WantToken: true}}})
	require.NoError(t, err)
	token := resp.GetSession().GetToken()
	require.Greater(t, len(token), 64)

	joined, err := c.AddMetadata("m4", "m1")
	require.NoError(t, err)
	works(t, env, "metadata", "add", "m4="+joined.Address)
	require.NoError(t, joined.Ready(t.Context()))

	require.NoError(t, c.Node("m1").Kill())
	works(t, env, "cp", local, "moraine:///g")
	require.NoError(t, c.Node("m1").Start())

	secrets := privateKeys(t, c.Certs())
	secrets["the signature of a token"] = token[len(token)-64:]
	for _, m := range c.Nodes(procs.Metadata) {
		kept, raw := metadata.DirSecrets{Dir: filepath.Join(c.Dir(), m.Name, "data")}, []byte(nil)
		require.Eventually(t, func() bool {
			raw, err = kept.Load()
			return err == nil && len(raw) == 32
		}, time.Minute, 50*time.Millisecond, "%s has the cluster secret", m.Name)
		secrets["the secret of "+m.Name] = raw
	}
	require.GreaterOrEqual(t, len(secrets), 10+5)
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
	for what, secret := range secrets {
		for _, form := range forms(secret) {
			for _, s := range streams {
				require.False(t, bytes.Contains(s, form), "%s is on the wire", what)
			}
			require.False(t, bytes.Contains(whole, form), "%s is in the backup", what)
		}
	}
	t.Logf("%d secrets, %d bytes in %d streams", len(secrets), total, len(streams))
}
