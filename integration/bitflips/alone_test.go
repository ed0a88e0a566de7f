package bitflips_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	crand "crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/tiers/disk"
	"github.com/morainefs/moraine/tiers/tiertest"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/pki"
	"github.com/morainefs/moraine/transport/wire"
)

func randomBytes(rng *rand.Rand, n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(rng.Uint32())
	}
	return p
}

func flipEntry(t *testing.T, rng *rand.Rand) {
	entry := state.EncodeEntry([][]byte{{8, 1, 16, byte(rng.Uint32N(100))}, {8, 1}})
	_, err := state.DecodeEntry(entry)
	require.NoError(t, err)
	flipBit(entry, int(rng.Uint32()>>1))
	_, err = state.DecodeEntry(entry)
	require.ErrorIs(t, err, moraine.Corrupt)
}

// flipFileAt flips a bit of a file of the machine, and returns its earlier
// contents.
func flipFileAt(t *testing.T, name string, bit int) (was []byte) {
	was, err := os.ReadFile(name)
	require.NoError(t, err)
	p := bytes.Clone(was)
	flipBit(p, bit)
	require.NoError(t, os.WriteFile(name, p, 0o600))
	return was
}

func flipSecret(t *testing.T, rng *rand.Rand) {
	secrets, raw := metadata.DirSecrets{Dir: t.TempDir()}, randomBytes(rng, 32)
	require.NoError(t, secrets.Store(raw))
	flipFileAt(t, filepath.Join(secrets.Dir, metadata.SecretFile), int(rng.Uint32()>>1))
	got, err := secrets.Load()
	if err == nil { // a digit in upper case means the same
		require.Equal(t, raw, got)
		return
	}
	require.ErrorIs(t, err, moraine.Corrupt)
}

// flipCertificate: a certificate that loads is the issued one: it has the same
// holder and authority, and its key signs for it.
func flipCertificate(t *testing.T, rng *rand.Rand) {
	dir, now := t.TempDir(), time.Now()
	ca, err := pki.NewCA(moraine.UUID{1}, now, 24*time.Hour)
	require.NoError(t, err)
	require.NoError(t, ca.Save(dir))
	issued, err := ca.Issue(pki.Request{Role: pki.RoleClient, Node: "c1", Scope: "/a", ReadOnly: true, Now: now})
	require.NoError(t, err)
	require.NoError(t, issued.Save(dir, "c1"))
	files := pki.FilesIn(dir, "c1")
	id, err := pki.LoadIdentity(files)
	require.NoError(t, err)
	right, claims, roots := id.Current()

	file := []string{files.Cert, files.Key, files.CA}[rng.IntN(3)]
	flipFileAt(t, file, int(rng.Uint32()>>1))
	id, err = pki.LoadIdentity(files)
	if err != nil {
		return
	}
	shown, said, trusted := id.Current()
	require.Equal(t, claims, said)
	if file == files.CA {
		_, err = pki.Verify(right.Certificate, trusted, now, x509.ExtKeyUsageClientAuth)
		require.True(t, err != nil || trusted.Equal(roots), "another authority is trusted")
		return
	}
	if _, err = pki.Verify(shown.Certificate, roots, now, x509.ExtKeyUsageClientAuth); err != nil {
		return // the other end detects it
	}
	require.Equal(t, right.Certificate, shown.Certificate)
	sum := sha256.Sum256([]byte("proof"))
	sig, err := shown.PrivateKey.(crypto.Signer).Sign(crand.Reader, sum[:], crypto.SHA256)
	require.NoError(t, err)
	require.True(t, ecdsa.VerifyASN1(shown.Leaf.PublicKey.(*ecdsa.PublicKey), sum[:], sig))
}

func flipToken(t *testing.T, rng *rand.Rand) {
	key := ed25519.NewKeyFromSeed(randomBytes(rng, ed25519.SeedSize))
	peer := &transport.Peer{Cluster: moraine.UUID{1}, Role: transport.RoleClient, Node: "c1", Scope: "/"}
	principal := peer.Principal()
	claims := &wire.TokenClaims{Session: rng.Uint64(), Cluster: peer.Cluster[:], Node: peer.Node, Expires: time.Now().Add(time.Hour).Unix(), Key: 7, Principal: principal}
	token, err := transport.SignToken(key, claims)
	require.NoError(t, err)
	verify := func() (*wire.TokenClaims, error) {
		return transport.VerifyToken(token, peer, func(id uint64) ed25519.PublicKey {
			if id != 7 {
				return nil
			}
			return key.Public().(ed25519.PublicKey)
		}, time.Now())
	}
	_, err = verify()
	require.NoError(t, err)
	flipBit(token, int(rng.Uint32()>>1))
	if got, err := verify(); err == nil {
		require.True(t, proto.Equal(claims, got), "another session")
	}
}

// flipIndex: a device whose index is damaged still has all its chunks.
func flipIndex(t *testing.T, rng *rand.Rand) {
	mem := vfs.NewMem(rng.Uint64())
	_, err := disk.Format(mem, "/d", tiertest.Cluster, crand.Reader)
	require.NoError(t, err)
	open := func() *disk.Device {
		d, err := disk.Open(disk.Config{Dir: "/d", Cluster: tiertest.Cluster, SegmentBytes: 1 << 20, BallastBytes: -1, IndexCacheBytes: 1 << 20}, disk.Deps{FS: mem})
		require.NoError(t, err, "a damaged index must not keep a device from opening")
		return d
	}
	d := open()
	var chunks []tiertest.Chunk
	for n := range 12 {
		c := tiertest.MakeChunk(t, moraine.ChunkID{Stripe: moraine.StripeID(n + 1)}, 1, 5000, uint64(n))
		require.NoError(t, c.Put(t, d))
		chunks = append(chunks, c)
	}
	require.NoError(t, d.Close())
	names, err := mem.List("/d/index")
	require.NoError(t, err)
	name := "/d/index/" + names[rng.IntN(len(names))]
	if info, err := mem.Stat(name); err == nil && info.Size > 0 {
		require.NoError(t, flipFile(mem, name, rng.Int64N(info.Size), rng.IntN(8)))
	}
	for range 2 { // an index that is found damaged during use is rebuilt by the next open
		d = open()
		whole := true
		for _, c := range chunks {
			got := make([]byte, len(c.Data))
			_, err := d.Get(t.Context(), c.Header.ID, 0, got)
			if err == nil {
				require.True(t, bytes.Equal(c.Data, got), "wrong bytes are served: %s", name)
			}
			whole = whole && err == nil
		}
		_ = d.Close() // Close may fail on an index that was found damaged
		if whole {
			return
		}
	}
	t.Errorf("the device has not all that it had, after a bit of %s flipped", name)
}
