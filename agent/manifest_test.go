package agent

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
)

var update = flag.Bool("update", false, "write the golden file")

// TestGoldenManifest compares a manifest with the golden file: an agent reads what the one before
// it has written.
func TestGoldenManifest(t *testing.T) {
	want := &manifest{Version: manifestVersion, UID: 1000, RunID: 1 << 40, Attempt: 2, SealTimeoutMillis: 600000, Committed: true, Level: "memory", Decided: true, Shared: map[int]uint32{0: 3}, Sums: []byte{1, 2, 3, 4},
		Open: agentproto.Open{Run: "/runs/a", Rank: 1, World: 8, Launch: "slurm-7", Job: "7", Restart: 3},
		Seal: agentproto.Seal{Step: 100, SumsAt: 8192,
			Tensors: []agentproto.Tensor{{Name: "w", DType: "BF16", Shape: []int64{2, 3}, Global: []int64{4, 3}, Offset: []int64{2, 0}, At: 64, Bytes: 12}},
			Blobs:   []agentproto.Blob{{Name: "rng", At: 128, Bytes: 5}}}}
	const golden = "testdata/manifest-v1.json"
	dir := t.TempDir()
	require.NoError(t, want.write(dir, "slot-1"))
	got, err := os.ReadFile(filepath.Join(dir, "slot-1"+manifestSuffix))
	require.NoError(t, err)
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(golden, got, 0o644))
	}
	stored, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(stored), string(got))
	read, err := readManifest(golden)
	require.NoError(t, err)
	require.Equal(t, want, read)
}

// TestADamagedManifestIsNeverOfANewerAgent: any damage is Corrupt, also of the version. So the agent starts without
// the slot.
func TestADamagedManifestIsNeverOfANewerAgent(t *testing.T) {
	golden, err := os.ReadFile("testdata/manifest-v1.json")
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "slot-1"+manifestSuffix)
	for i := range golden {
		damaged := bytes.Clone(golden)
		damaged[i] ^= 2
		require.NoError(t, os.WriteFile(path, damaged, 0o600))
		_, err := readManifest(path)
		require.ErrorIs(t, err, moraine.Corrupt, "byte %d", i)
		require.ErrorContains(t, err, "slot-1")
	}
}

// FuzzManifest: no bytes make an agent panic, and what is accepted lies in its slot.
func FuzzManifest(f *testing.F) {
	golden, err := os.ReadFile("testdata/manifest-v1.json")
	require.NoError(f, err)
	f.Add(golden)
	f.Add(bytes.SplitN(golden, []byte("\n"), 2)[0])
	f.Fuzz(func(t *testing.T, p []byte) {
		if text, _, sealed := bytes.Cut(p, []byte("\n")); !sealed { // so that the fuzzer gets past the sum
			p = []byte(ManifestOf(string(text)))
		}
		path := filepath.Join(t.TempDir(), "slot-1"+manifestSuffix)
		require.NoError(t, os.WriteFile(path, p, 0o600))
		m, err := readManifest(path)
		if err != nil {
			return
		}
		mem := make([]byte, 1<<16)
		if checkPlaces(&m.Seal, int64(len(mem))) != nil {
			return
		}
		_ = m.blockSums(mem)
	})
}
