package raftstore_test

import (
	"bytes"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata/raftstore"
)

func sampleStream(t testing.TB) []byte {
	mem := vfs.NewMem(1)
	require.NoError(t, mem.MkdirAll("/cp"))
	writeAll(t, mem, "/cp/MANIFEST-000001", []byte("manifest"))
	writeAll(t, mem, "/cp/empty", nil)
	writeAll(t, mem, "/cp/zeta", bytes.Repeat([]byte("0123456789abcdef"), 100))
	p, err := raftstore.StreamOf(mem, "/cp", cluster, 77)
	require.NoError(t, err)
	return p
}

func verify(p []byte, of moraine.UUID) error {
	r, err := raftstore.NewStream(bytes.NewReader(p), of)
	if err != nil {
		return err
	}
	return r.Verify()
}

func TestStreamGolden(t *testing.T) {
	p := sampleStream(t)
	golden(t, "snapshot-v1.golden", p)
	r, err := raftstore.NewStream(bytes.NewReader(p), cluster)
	require.NoError(t, err)
	mem := vfs.NewMem(1)
	require.NoError(t, r.Extract(mem, "/out"))
	require.Equal(t, "manifest", string(readAll(t, mem, "/out/MANIFEST-000001")))
	require.Empty(t, readAll(t, mem, "/out/empty"))
	require.Len(t, readAll(t, mem, "/out/zeta"), 1600)
}

func TestStreamOfLargeFiles(t *testing.T) {
	mem := vfs.NewMem(1)
	require.NoError(t, mem.MkdirAll("/cp"))
	big := bytes.Repeat([]byte("x"), 5<<20/2)
	writeAll(t, mem, "/cp/big", big)
	p, err := raftstore.StreamOf(mem, "/cp", cluster, 1)
	require.NoError(t, err)
	require.NoError(t, verify(p, cluster))
	r, err := raftstore.NewStream(bytes.NewReader(p), cluster)
	require.NoError(t, err)
	require.NoError(t, r.Extract(mem, "/out"))
	require.Equal(t, big, readAll(t, mem, "/out/big"))
}

func TestStreamRefusesDamage(t *testing.T) {
	p := sampleStream(t)
	require.NoError(t, verify(p, cluster))
	require.ErrorIs(t, verify(p, moraine.UUID{8}), moraine.WrongCluster)
	require.ErrorIs(t, verify(append(p[:len(p):len(p)], 0), cluster), moraine.Corrupt)
	for i := range p {
		bad := bytes.Clone(p)
		bad[i] ^= 4
		require.Error(t, verify(bad, cluster), "byte %d", i)
		require.ErrorIs(t, verify(p[:i], cluster), moraine.Corrupt, "%d bytes", i)
	}
}

func FuzzStream(f *testing.F) {
	f.Add(sampleStream(f))
	f.Fuzz(func(t *testing.T, p []byte) {
		r, err := raftstore.NewStream(bytes.NewReader(p), cluster)
		if err != nil {
			return
		}
		if err := r.Extract(vfs.NewMem(1), "/out"); err == nil {
			require.NoError(t, verify(p, cluster))
		}
	})
}

func TestSmallFilesGolden(t *testing.T) {
	id := raftstore.EncodeBegunID(cluster, "m1")
	golden(t, "identity-v1.golden", id)
	golden(t, "current-v1.golden", raftstore.EncodeCurrent(7))
	meta := raft.SnapshotMeta{
		Index: 100, Term: 3, ConfigurationIndex: 1, Size: 4711,
		Configuration: raft.Configuration{Servers: []raft.Server{{Suffrage: raft.Voter, ID: "m1", Address: "a:1"}}},
	}
	snap := raftstore.EncodeSnap(meta, 99)
	golden(t, "snapshot-meta-v1.golden", snap)
	golden(t, "snapshot-received-v1.golden", raftstore.EncodeReceivedSnap(meta, 99))
	decoders := map[string]func(p []byte) error{
		"identity": func(p []byte) error { _, err := raftstore.DecodeID(p); return err },
		"current":  func(p []byte) error { _, err := raftstore.DecodeCurrent(p); return err },
		"snapshot": func(p []byte) error { _, err := raftstore.DecodeSnap(p); return err },
	}
	for name, p := range map[string][]byte{"identity": id, "current": raftstore.EncodeCurrent(7), "snapshot": snap} {
		require.NoError(t, decoders[name](p))
		for other, decode := range decoders {
			if other != name {
				require.ErrorIs(t, decode(p), moraine.Corrupt)
			}
		}
		for i := range p {
			bad := bytes.Clone(p)
			bad[i] ^= 1
			require.ErrorIs(t, decoders[name](bad), moraine.Corrupt, "%s byte %d", name, i)
		}
	}
}

func FuzzSmallFiles(f *testing.F) {
	f.Add(raftstore.EncodeID(cluster, "m1", true))
	f.Add(raftstore.EncodeCurrent(7))
	f.Add(raftstore.EncodeSnap(raft.SnapshotMeta{Index: 1, Term: 1}, 1))
	f.Fuzz(func(t *testing.T, p []byte) {
		if len(p) >= 4 {
			fixSum(p)
		}
		raftstore.DecodeID(p)
		raftstore.DecodeCurrent(p)
		raftstore.DecodeSnap(p)
	})
}
