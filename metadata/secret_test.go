package metadata_test

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/memnet"
	"github.com/morainefs/moraine/transport/wire"
)

// drawn is a source of randomness that remembers the bytes given for keys.
type drawn struct {
	mu   sync.Mutex
	keys [][]byte
}

func (d *drawn) Read(p []byte) (int, error) {
	rand.Read(p) //nolint:errcheck // never fails
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(p) == 32 {
		d.keys = append(d.keys, bytes.Clone(p))
	}
	return len(p), nil
}

// TestNoPrivateKeyInTheState: the state, and so the log, snapshots and backups, has every private
// key only encrypted.
func TestNoPrivateKeyInTheState(t *testing.T) {
	var d drawn
	bubbleWith(t, func(cfg *metadata.Config, deps *metadata.Deps) {
		cfg.KeyLife, deps.Rand = 10*time.Minute, &d
	}, func(c *cluster) {
		for range 3 {
			c.open(peer(transport.RoleClient, "c1"))
			time.Sleep(12 * time.Minute)
		}
		c.elect("m2")
		require.GreaterOrEqual(t, len(d.keys), 3)
		c.group.View(func(r kvtx.Reader) {
			require.NoError(t, r.Scan(nil, nil, func(key, value []byte) bool {
				for _, k := range d.keys {
					require.False(t, bytes.Contains(value, k), "a key is in the record %x", key)
				}
				return true
			}))
		})
	})
}

// keysOf returns the IDs of the signing keys that chunkservers receive.
func (c *raftCluster) keysOf() (ids []uint64) {
	k := &caller{c: c, dial: c.net.Dialer(transport.Peer{Cluster: clusterUUID, Role: transport.RoleChunkserver, Node: "n1"}), at: c.leader()}
	resp, err := k.do(&wire.MetaRequest{Op: &wire.MetaRequest_Heartbeat{Heartbeat: &wire.Heartbeat{}}})
	require.NoError(c.t, err)
	for _, key := range resp.GetHeartbeat().Keys {
		ids = append(ids, key.Id)
	}
	return ids
}

// TestTheSecretReachesEveryServer: all servers have the leader's secret, in a file for its owner
// alone, and the next leader signs with the same keys. If every copy is lost, a new key is
// generated and sessions open as before. Only metadata servers get the secret.
func TestTheSecretReachesEveryServer(t *testing.T) {
	disks, dirs := map[string]vfs.FS{}, map[string]string{}
	for _, name := range []string{"m1", "m2", "m3"} {
		disks[name], dirs[name] = vfs.NewMem(1), t.TempDir()
	}
	secrets := map[string]metadata.Secrets{}
	for name, dir := range dirs {
		secrets[name] = metadata.DirSecrets{Dir: dir}
	}
	c := newSecretRaftCluster(t, 3, 0, secrets, func(name string) (vfs.FS, string) { return disks[name], "/node" })
	file := func(name string) string { return filepath.Join(dirs[name], metadata.SecretFile) }
	same := func() bool {
		first, err := os.ReadFile(file("m1"))
		for _, name := range []string{"m2", "m3"} {
			other, otherErr := os.ReadFile(file(name))
			if err != nil || otherErr != nil || !bytes.Equal(first, other) {
				return false
			}
		}
		return true
	}
	first := c.leader()
	require.Eventually(t, same, 30*time.Second, 10*time.Millisecond, "every server has the secret")
	st, err := os.Stat(file("m1"))
	require.NoError(t, err)
	require.EqualValues(t, 0o600, st.Mode().Perm())
	keys := c.keysOf()
	require.NotEmpty(t, keys)

	raw, err := secrets[first].Load()
	require.NoError(t, err)
	id := sha256.Sum256(append([]byte("moraine secret\x00"), raw...))
	for role, given := range map[transport.Role]bool{transport.RoleMetadata: true, transport.RoleAdmin: false} {
		resp, err := c.net.Dialer(transport.Peer{Cluster: clusterUUID, Role: role, Node: "m9"}).Metadata([]string{memnet.Address("m1")}).Do(t.Context(),
			&wire.MetaRequest{Op: &wire.MetaRequest_MemberBeat{MemberBeat: &wire.MemberBeat{Id: "m9", DataId: make([]byte, 16), WantSecret: id[:16]}}})
		if err == nil {
			require.True(t, given || len(resp.GetMemberBeat().Secret) == 0, "%s was given the secret", role)
		}
	}

	c.stop(first)
	require.NotEqual(t, first, c.leader())
	require.Equal(t, keys, c.keysOf(), "the next leader has the same keys")

	for _, name := range c.names {
		c.stop(name)
		require.NoError(t, os.Remove(file(name)))
	}
	for _, name := range c.names {
		c.start(name)
	}
	c.leader()
	k := c.caller("c1")
	k.open()
	require.Greater(t, slices.Max(c.keysOf()), slices.Max(keys), "a new key was drawn")
	require.Eventually(t, same, 30*time.Second, 10*time.Millisecond, "every server has the new secret")
}

// TestSecretFile: a file that others may read, or that is damaged, is refused with instructions.
func TestSecretFile(t *testing.T) {
	d := metadata.DirSecrets{Dir: t.TempDir()}
	b, err := d.Load()
	require.NoError(t, err)
	require.Nil(t, b)
	secret := bytes.Repeat([]byte{7}, 32)
	require.NoError(t, d.Store(bytes.Repeat([]byte{8}, 32)))
	require.NoError(t, d.Store(secret))
	b, err = d.Load()
	require.NoError(t, err)
	require.Equal(t, secret, b)

	path := filepath.Join(d.Dir, metadata.SecretFile)
	require.NoError(t, os.Chmod(path, 0o640))
	_, err = d.Load()
	require.ErrorIs(t, err, moraine.PermissionDenied)
	require.ErrorContains(t, err, "chmod 600")

	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	for _, damaged := range [][]byte{nil, []byte("x"), whole[:len(whole)-3], bytes.Replace(whole, []byte("07"), []byte("08"), 1)} {
		require.NoError(t, os.WriteFile(path, damaged, 0o600))
		require.NoError(t, os.Chmod(path, 0o600))
		_, err = d.Load()
		require.ErrorIs(t, err, moraine.Corrupt)
		require.ErrorContains(t, err, "remove it")
	}
}
