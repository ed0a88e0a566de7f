package ckpt_test

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/adopt"
	"github.com/morainefs/moraine/client/ckpt/safetensors"
	"github.com/morainefs/moraine/integration/memcluster"
	"github.com/morainefs/moraine/internal/adopted"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
)

// writer writes files as a framework does.
type writer struct {
	t *testing.T
	*client.Client
}

func (w writer) put(name string, data []byte) {
	w.t.Helper()
	_, err := w.MkdirAll(w.t.Context(), path.Dir(name), 0o755)
	require.NoError(w.t, err)
	f, err := w.Create(w.t.Context(), name, client.CreateOptions{Replace: true})
	require.NoError(w.t, err)
	_, err = f.Write(data)
	require.NoError(w.t, err)
	_, err = f.Commit(w.t.Context())
	require.NoError(w.t, err)
}

func (w writer) get(name string) []byte {
	w.t.Helper()
	f, err := w.OpenFile(w.t.Context(), name)
	require.NoError(w.t, err, name)
	defer f.Close()
	b := make([]byte, f.Size())
	require.NoError(w.t, f.ReadRange(w.t.Context(), b, 0))
	return b
}

// written is one file of a framework's checkpoint. They are in the order in which it writes them.
type written struct {
	name string
	data []byte
}

func bytesOf(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i)*7 + seed
	}
	return b
}

// dcpFiles is what torch.distributed.checkpoint writes with two ranks: internal/pickle/testdata has
// its metadata.
func dcpFiles(t *testing.T) []written {
	t.Helper()
	meta, err := os.ReadFile("../../internal/pickle/testdata/dcp.metadata.4")
	require.NoError(t, err)
	return []written{{"__0_0.distcp", bytesOf(1000, 1)}, {"__1_0.distcp", bytesOf(800, 2)}, {".metadata", meta}}
}

// shard makes a safetensors file with tensors of 100 floats.
func shard(t *testing.T, seed byte, names ...string) []byte {
	t.Helper()
	h := safetensors.Header{Metadata: map[string]string{"format": "pt"}}
	for _, name := range names {
		h.Tensors = append(h.Tensors, safetensors.Tensor{Name: name, DType: safetensors.F32, Shape: []int64{10, 10}})
	}
	require.NoError(t, safetensors.Order(h.Tensors))
	b, err := h.Encode()
	require.NoError(t, err)
	return append(b, bytesOf(400*len(names), seed)...)
}

func hfFiles(t *testing.T) []written {
	t.Helper()
	index, err := json.Marshal(map[string]any{"metadata": map[string]any{"total_size": 1200}, "weight_map": map[string]string{
		"a": "model-00001-of-00002.safetensors", "b": "model-00001-of-00002.safetensors", "c": "model-00002-of-00002.safetensors"}})
	require.NoError(t, err)
	return []written{{"config.json", []byte("{}")}, {"model-00001-of-00002.safetensors", shard(t, 1, "a", "b")},
		{"model-00002-of-00002.safetensors", shard(t, 2, "c")}, {"model.safetensors.index.json", index}}
}

func megatronFiles(*testing.T) []written {
	return []written{{"mp_rank_00/model_optim_rng.pt", bytesOf(5000, 1)}, {"mp_rank_01/model_optim_rng.pt", bytesOf(5000, 2)},
		{"mp_rank_01/a%b.pt", bytesOf(10, 3)}}
}

var writtenBy = map[adopt.Format]func(*testing.T) []written{adopt.DCP: dcpFiles, adopt.HF: hfFiles, adopt.Megatron: megatronFiles}

// readStep opens a step of a run.
func readStep(t *testing.T, c *client.Client, run string, step uint64) *ckpt.Checkpoint {
	t.Helper()
	r, err := ckpt.OpenRun(t.Context(), c, run, ckpt.RunOptions{ReadOnly: true})
	require.NoError(t, err)
	k, err := r.Resolve(t.Context(), ckpt.ResolveOptions{Step: step, Exact: true})
	require.NoError(t, err)
	return k
}

// holdsFiles checks that a step has the files byte for byte, by their paths.
func (w writer) holdsFiles(k *ckpt.Checkpoint, run string, files []written) {
	w.t.Helper()
	have := map[string]string{}
	for _, f := range k.Files() {
		require.True(w.t, f.Adopted())
		have[f.Path] = path.Join(run, k.Info.Path, f.Name)
	}
	want := map[string]bool{}
	for _, f := range files {
		want[f.name] = true
		require.Contains(w.t, have, f.name)
		require.Equal(w.t, f.data, w.get(have[f.name]), f.name)
	}
	require.ElementsMatch(w.t, slices.Collect(maps.Keys(want)), slices.Collect(maps.Keys(have)))
}

// TestAdopt: a directory of each format becomes a step that has its files under their own names, that
// shares their bytes, and that stays when the directory goes.
func TestAdopt(t *testing.T) {
	for format, files := range writtenBy {
		t.Run(string(format), func(t *testing.T) {
			inCluster(t, memcluster.Options{}, func(t *testing.T, c *memcluster.Cluster) {
				w := writer{t, c.Client("w")}
				defer w.Close()
				for _, f := range files(t) {
					w.put("/d/ck/"+f.name, f.data)
				}
				o := adopt.Options{Run: "/runs/r", Step: 7}
				if format == adopt.Megatron {
					_, err := adopt.Dir(t.Context(), w.Client, "/d/ck", o)
					require.ErrorIs(t, err, moraine.Incomplete, "nothing says what it is")
					o.Format, o.Complete = format, true
				}
				before := w.Stats()
				info, err := adopt.Dir(t.Context(), w.Client, "/d/ck", o)
				require.NoError(t, err)
				require.Equal(t, ckpt.StepCommitted, info.State)
				require.Equal(t, before.WrittenBytes, w.Stats().WrittenBytes)
				require.Equal(t, before.ReadBytes, w.Stats().ReadBytes)
				for _, f := range files(t) { // also the mover moved none: each file has the extents of its original
					require.Equal(t, w.extents("/d/ck/"+f.name), w.extents("/runs/r/latest/"+adoptedName(t, f.name)))
				}
				_, err = adopt.Dir(t.Context(), w.Client, "/d/ck", o)
				require.ErrorIs(t, err, moraine.Exists)

				require.NoError(t, w.RemoveAll(t.Context(), "/d"))
				k := readStep(t, w.Client, "/runs/r", 7)
				defer k.Close()
				w.holdsFiles(k, "/runs/r", files(t))
				rep, err := k.Verify(t.Context())
				require.NoError(t, err)
				require.Equal(t, rep.Bytes, rep.Undigested, "no file has a digest of its own")
				require.Positive(t, rep.Bytes)
				if format == adopt.HF {
					got, err := k.ReadTensor(t.Context(), "b")
					require.NoError(t, err)
					require.Equal(t, bytesOf(800, 1)[400:], got)
					require.Equal(t, 3, rep.Tensors)
				}
				if format != adopt.HF {
					_, err := k.ReadTensor(t.Context(), "b")
					require.ErrorIs(t, err, moraine.Unimplemented, "only the framework knows its tensors")
				}
				if format == adopt.DCP {
					require.NotEmpty(t, w.get("/runs/r/latest/.metadata"), "FileSystemReader finds it by its name")
				}
			})
		})
	}
}

func adoptedName(t *testing.T, path string) string {
	t.Helper()
	name, err := adopted.Name(path)
	require.NoError(t, err)
	return name
}

// extents says where the bytes of a file are.
func (w writer) extents(name string) string {
	w.t.Helper()
	a, err := w.Stat(w.t.Context(), name)
	require.NoError(w.t, err)
	resp, err := rawclient.Of(w).Meta(w.t.Context(), &wire.MetaRequest{Op: &wire.MetaRequest_GetExtents{GetExtents: &wire.GetExtents{Inode: uint64(a.Inode())}}})
	require.NoError(w.t, err)
	return fmt.Sprint(resp.GetExtents().GetExtents())
}

// TestAHalfWrittenDirectory is adopted at no moment before its last byte, and then it is. Each file is
// cut short in turn, and each is missing in turn.
func TestAHalfWrittenDirectory(t *testing.T) {
	for _, format := range []adopt.Format{adopt.DCP, adopt.HF} {
		t.Run(string(format), func(t *testing.T) {
			inCluster(t, memcluster.Options{}, func(t *testing.T, c *memcluster.Cluster) {
				w := writer{t, c.Client("w")}
				defer w.Close()
				all := writtenBy[format](t)
				refused := func(what string) {
					t.Helper()
					_, err := adopt.Dir(t.Context(), w.Client, "/d/ck", adopt.Options{Run: "/runs/r", Step: 7, Format: format})
					require.ErrorIs(t, err, moraine.Incomplete, what)
					_, err = w.Stat(t.Context(), "/runs/r/latest")
					require.ErrorIs(t, err, moraine.NotFound, what)
				}
				for n, f := range all { // in the order of the framework
					for _, part := range []int{len(f.data) / 2, len(f.data) - 1} {
						if !strings.HasSuffix(f.name, "config.json") {
							w.put("/d/ck/"+f.name, f.data[:part])
							refused(fmt.Sprintf("the first %d bytes of %s", part, f.name))
						}
					}
					w.put("/d/ck/"+f.name, f.data)
					if n < len(all)-1 {
						refused("all up to " + f.name)
					}
				}
				for _, f := range all { // one is cut short, or missing
					if f.name == "config.json" {
						continue
					}
					w.put("/d/ck/"+f.name, f.data[:len(f.data)-1])
					refused(f.name + " is cut short")
					require.NoError(t, w.Remove(t.Context(), "/d/ck/"+f.name))
					refused("without " + f.name)
					w.put("/d/ck/"+f.name, f.data)
				}
				_, err := adopt.Dir(t.Context(), w.Client, "/d/ck", adopt.Options{Run: "/runs/r", Step: 7, Format: format})
				require.NoError(t, err)
				k := readStep(t, w.Client, "/runs/r", 7)
				defer k.Close()
				w.holdsFiles(k, "/runs/r", all)
			})
		})
	}
}

// TestWrongMetadata: metadata that is none, or that leads elsewhere, adopts nothing.
func TestWrongMetadata(t *testing.T) {
	good := dcpFiles(t)[2].data
	elsewhere := []byte(strings.ReplaceAll(string(good), "__1_0.distcp", "../__0.pth.."))
	for what, meta := range map[string][]byte{
		"no pickle": []byte("hello"), "a call": []byte("cos\nsystem\n(Vid\ntR."), "a number": []byte("K\x01."),
		"another class": []byte("ctorch\nMetadata\n)\x81}b."), "nothing stored": []byte("ctorch.distributed.checkpoint.metadata\nMetadata\n)\x81}b."),
		"a path elsewhere": elsewhere, "bytes after it": append(slices.Clone(good), 'N'), "zeros": make([]byte, 100),
	} {
		t.Run(what, func(t *testing.T) {
			inCluster(t, memcluster.Options{}, func(t *testing.T, c *memcluster.Cluster) {
				w := writer{t, c.Client("w")}
				defer w.Close()
				for _, f := range dcpFiles(t)[:2] {
					w.put("/d/ck/"+f.name, f.data)
				}
				w.put("/d/ck/.metadata", meta)
				_, err := adopt.Dir(t.Context(), w.Client, "/d/ck", adopt.Options{Run: "/runs/r", Step: 7, Format: adopt.DCP})
				require.ErrorIs(t, err, moraine.Incomplete)
			})
		})
	}
}

// TestAWriterDuringAnAdoption: while a writer replaces a file again and again, an adoption fails and
// names it, or the step has all files of one moment.
func TestAWriterDuringAnAdoption(t *testing.T) {
	inCluster(t, memcluster.Options{}, func(t *testing.T, c *memcluster.Cluster) {
		w := writer{t, c.Client("w")}
		defer w.Close()
		// Both files always have the same version, except between the two writes.
		version := func(n int) {
			w.put("/d/ck/a", bytesOf(1000, byte(n)))
			w.put("/d/ck/b", bytesOf(1000, byte(n)))
		}
		for n := range 10 {
			w.put(fmt.Sprintf("/d/ck/aa%d", n), bytesOf(10, 0))
		}
		w.put("/d/ck/mp_rank_00/model_optim_rng.pt", zipOf(t))
		version(0)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for n := 1; ctx.Err() == nil; n++ {
				version(n)
				time.Sleep(time.Duration(n%40) * time.Millisecond)
			}
		}()
		adopter := writer{t, c.Client("a")}
		defer adopter.Close()
		made, refused := 0, 0
		for step := range uint64(12) {
			_, err := adopt.Dir(t.Context(), adopter.Client, "/d/ck", adopt.Options{Run: "/runs/r", Step: step, Format: adopt.Megatron, Complete: true})
			if err != nil {
				require.ErrorIs(t, err, moraine.Conflict)
				require.ErrorContains(t, err, "changed meanwhile")
				refused++
				continue
			}
			made++
			at := fmt.Sprintf("/runs/r/attempt-1/step-%d/", step)
			a, b := adopter.get(at+"a"), adopter.get(at+"b")
			require.Equal(t, a[1:], bytesOf(1000, a[0])[1:])
			require.True(t, b[0] == a[0] || b[0] == a[0]-1, "a has version %d, b %d", a[0], b[0])
		}
		stop()
		<-ended
		t.Logf("%d steps, %d refused", made, refused)
		require.Positive(t, made+refused)
	})
}

// TestAHalfWrittenMegatronDirectory: of the format torch each model rank up to the greatest must have its file,
// whole. Of the last ranks nothing in the directory says that they are missing: see TestAnIterationAndItsTracker.
func TestAHalfWrittenMegatronDirectory(t *testing.T) {
	archive := zipOf(t)
	all := map[string][]byte{}
	for _, rank := range []string{"00_000", "00_001", "01_000", "01_001"} {
		all["mp_rank_"+rank+"/model_optim_rng.pt"] = archive
		all["mp_rank_"+rank+"/distrib_optim.pt"] = archive
	}
	for name, c := range map[string]struct {
		change func(files map[string][]byte)
		says   string // empty: it is adopted
	}{
		"all are there":     {func(map[string][]byte) {}, ""},
		"a rank is missing": {func(f map[string][]byte) { delete(f, "mp_rank_00_001/model_optim_rng.pt") }, "mp_rank_00_001/model_optim_rng.pt is missing"},
		"the first is missing": {func(f map[string][]byte) {
			delete(f, "mp_rank_00_000/model_optim_rng.pt")
			delete(f, "mp_rank_00_000/distrib_optim.pt")
		}, "mp_rank_00_000/model_optim_rng.pt is missing"},
		"a file is cut":          {func(f map[string][]byte) { f["mp_rank_01_001/distrib_optim.pt"] = archive[:len(archive)-1] }, "mp_rank_01_001/distrib_optim.pt is cut short"},
		"a file is cut early":    {func(f map[string][]byte) { f["mp_rank_01_001/distrib_optim.pt"] = archive[:10] }, "mp_rank_01_001/distrib_optim.pt is cut short"},
		"a file is empty":        {func(f map[string][]byte) { f["mp_rank_01_001/distrib_optim.pt"] = nil }, "mp_rank_01_001/distrib_optim.pt is empty"},
		"two layouts":            {func(f map[string][]byte) { f["mp_rank_02/model_optim_rng.pt"] = archive }, "another layout"},
		"no rank":                {func(f map[string][]byte) { clear(f); f["notes.txt"] = []byte("x") }, "neither .metadata nor"},
		"a name that is no rank": {func(f map[string][]byte) { f["mp_rank_1x_000/model_optim_rng.pt"] = archive }, "does not name a model rank"},
	} {
		t.Run(name, func(t *testing.T) {
			inCluster(t, memcluster.Options{}, func(t *testing.T, cluster *memcluster.Cluster) {
				w := writer{t, cluster.Client("w")}
				defer w.Close()
				files := maps.Clone(all)
				c.change(files)
				for name, data := range files {
					w.put("/d/iter_0000007/"+name, data)
				}
				w.put("/d/"+adopted.MegatronTracker, []byte("7"))
				_, err := adopt.Dir(t.Context(), w.Client, "/d/iter_0000007", adopt.Options{Run: "/runs/r", Step: 7, Format: adopt.Megatron})
				if c.says == "" {
					require.NoError(t, err)
					return
				}
				require.ErrorIs(t, err, moraine.Incomplete)
				require.ErrorContains(t, err, c.says)
			})
		})
	}
}

// zipOf makes an archive, as torch.save does.
func zipOf(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	f, err := z.CreateHeader(&zip.FileHeader{Name: "archive/data.pkl", Method: zip.Store})
	require.NoError(t, err)
	_, err = f.Write(bytesOf(100, 1))
	require.NoError(t, err)
	require.NoError(t, z.Close())
	return b.Bytes()
}
