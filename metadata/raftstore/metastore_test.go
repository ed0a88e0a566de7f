package raftstore_test

import (
	"errors"
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/raft-wal/types"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata/raftstore"
)

var update = flag.Bool("update", false, "rewrite golden files")

// golden compares got with a file of testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, got, 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, want, got, "%s: the format has changed", name)
}

func sampleMeta() (types.PersistentState, map[string][]byte) {
	at := time.Unix(1_700_000_000, 42).UTC()
	return types.PersistentState{
		NextSegmentID: 3,
		Segments: []types.SegmentInfo{
			{ID: 1, BaseIndex: 1, MinIndex: 7, MaxIndex: 20, Codec: 1, IndexStart: 4096, CreateTime: at, SealTime: at.Add(time.Second), SizeLimit: 64 << 20},
			{ID: 2, BaseIndex: 21, MinIndex: 21, Codec: 1, CreateTime: at.Add(time.Second), SizeLimit: 64 << 20},
		},
	}, map[string][]byte{"CurrentTerm": {9, 0, 0, 0, 0, 0, 0, 0}, "LastVoteCand": []byte("m2"), "LastVoteTerm": {}}
}

func TestMetaGolden(t *testing.T) {
	state, values := sampleMeta()
	p := raftstore.EncodeMeta(state, values)
	golden(t, "meta-v1.golden", p)
	gotState, gotValues, err := raftstore.DecodeMeta(p)
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(state, gotState))
	require.Empty(t, cmp.Diff(values, gotValues))
}

func TestMetaRefusesDamage(t *testing.T) {
	p := raftstore.EncodeMeta(sampleMeta())
	for i := range p {
		bad := append([]byte(nil), p...)
		bad[i] ^= 0x40
		_, _, err := raftstore.DecodeMeta(bad)
		require.ErrorIs(t, err, moraine.Corrupt, "byte %d", i)
		_, _, err = raftstore.DecodeMeta(p[:i])
		require.ErrorIs(t, err, moraine.Corrupt, "%d bytes", i)
	}
	newer := append([]byte(nil), p...)
	newer[8]++
	fixSum(newer)
	_, _, err := raftstore.DecodeMeta(newer)
	require.ErrorIs(t, err, moraine.NewerFormat)
}

// FuzzMeta: the decoder refuses or returns what encodes to the same bytes.
func FuzzMeta(f *testing.F) {
	f.Add(raftstore.EncodeMeta(sampleMeta()))
	f.Add(raftstore.EncodeMeta(types.PersistentState{}, nil))
	f.Fuzz(func(t *testing.T, p []byte) {
		if len(p) >= 4 {
			fixSum(p)
		}
		state, values, err := raftstore.DecodeMeta(p)
		if err == nil {
			require.Equal(t, p, raftstore.EncodeMeta(state, values))
		}
	})
}

// TestMetaFaults: if any step of a change fails, or succeeds and its reply is lost, a restart finds
// the old values or the new, and the failed store accepts no further change.
func TestMetaFaults(t *testing.T) {
	broken := errors.New("broken")
	for _, after := range []bool{false, true} {
		for step := 1; ; step++ {
			mem := vfs.NewMem(uint64(step))
			require.NoError(t, mem.MkdirAll("/log"))
			require.NoError(t, mem.SyncDir("/"))
			first := raftstore.NewMetaStore(mem, "/log")
			require.NoError(t, first.Open())
			require.NoError(t, first.SetStable([]byte("term"), []byte("1")))

			ops, failed := 0, vfs.Op{}
			m := raftstore.NewMetaStore(vfs.NewFault(mem, func(op vfs.Op) error {
				if ops++; ops != step {
					return nil
				}
				failed = op
				if after {
					return vfs.Afterwards(broken)
				}
				return broken
			}), "/log")
			if m.Open() != nil {
				continue // the failure was in opening
			}
			err := m.SetStable([]byte("term"), []byte("2"))
			if ops < step {
				require.NoError(t, err)
				break // every step had its turn
			}
			if err != nil {
				require.ErrorIs(t, err, broken)
				require.ErrorIs(t, m.SetStable([]byte("x"), nil), broken, "after %s", failed.Kind)
				got, err := m.GetStable([]byte("term"))
				require.NoError(t, err)
				require.Equal(t, "1", string(got))
			}
			rng := rand.New(rand.NewPCG(uint64(step), 9))
			for range 20 {
				again := raftstore.NewMetaStore(mem.Crash(rng), "/log")
				require.NoError(t, again.Open(), "after %s of %s", failed.Kind, failed.Path)
				got, err := again.GetStable([]byte("term"))
				require.NoError(t, err)
				require.Contains(t, []string{"1", "2"}, string(got), "after %s of %s", failed.Kind, failed.Path)
			}
		}
	}
}

func TestMetaSurvivesPowerCuts(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	mem := vfs.NewMem(3)
	require.NoError(t, mem.MkdirAll("/log"))
	require.NoError(t, mem.SyncDir("/"))
	for i := range 50 {
		m := raftstore.NewMetaStore(mem, "/log")
		require.NoError(t, m.Open())
		if i > 0 {
			got, err := m.GetStable([]byte("n"))
			require.NoError(t, err)
			require.Equal(t, []byte{byte(i - 1)}, got)
		}
		require.NoError(t, m.SetStable([]byte("n"), []byte{byte(i)}))
		require.NoError(t, m.SetStable([]byte("gone"), []byte("x")))
		require.NoError(t, m.SetStable([]byte("gone"), nil))
		mem = mem.Crash(rng)
	}
}
