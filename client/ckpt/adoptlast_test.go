package ckpt_test

import (
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/adopt"
	"github.com/morainefs/moraine/integration/memcluster"
	"github.com/morainefs/moraine/internal/adopted"
)

const (
	iteration = "/d/iter_0000007"
	tracker   = "/d/" + adopted.MegatronTracker
)

// later writes a file after all that are there, by each clock.
func (w writer) later(name string, data []byte) {
	w.t.Helper()
	time.Sleep(time.Second)
	w.put(name, data)
}

// TestAnIterationAndItsTracker: a directory of Megatron is adopted by hand only if the tracker file above says that
// all ranks have written it, or if the caller does.
func TestAnIterationAndItsTracker(t *testing.T) {
	// rank writes the part of a model rank.
	rank := func(w writer, dir, name string) { w.later(dir+"/mp_rank_"+name+"/model_optim_rng.pt", zipOf(w.t)) }
	both := func(w writer, dir string) { rank(w, dir, "00"); rank(w, dir, "01") }
	for name, c := range map[string]struct {
		write func(w writer)
		says  string // empty: it is adopted
	}{
		"the tracker names it":      {func(w writer) { both(w, iteration); w.later(tracker, []byte("7\n")) }, ""},
		"no tracker":                {func(w writer) { both(w, iteration) }, "there is no " + tracker},
		"no tracker, one rank":      {func(w writer) { rank(w, iteration, "00") }, "there is no " + tracker},
		"an older iteration":        {func(w writer) { w.put(tracker, []byte("6")); both(w, iteration) }, "names iteration 6"},
		"a number that is none":     {func(w writer) { both(w, iteration); w.later(tracker, []byte("7 or so")) }, "names no iteration"},
		"another kind of iteration": {func(w writer) { both(w, iteration); w.later(tracker, []byte("release")) }, "names iteration release"},
		"it is written once more": {func(w writer) {
			both(w, iteration)
			w.later(tracker, []byte("7"))
			rank(w, iteration, "00")
		}, "file mp_rank_00/model_optim_rng.pt has changed after " + tracker},
		"a later iteration": {func(w writer) {
			both(w, iteration)
			both(w, "/d/iter_0000008")
			w.later(tracker, []byte("8"))
		}, ""},
		"a later iteration has more ranks": {func(w writer) {
			rank(w, iteration, "00")
			both(w, "/d/iter_0000008")
			w.later(tracker, []byte("8"))
		}, "file mp_rank_01/model_optim_rng.pt is missing, which the later /d/iter_0000008 has"},
		"a later iteration is gone": {func(w writer) { both(w, iteration); w.later(tracker, []byte("8")) }, "/d/iter_0000008, which the tracker file names, is gone"},
		"it is saved again after a job went back": {func(w writer) {
			both(w, "/d/iter_0000008")
			w.put(tracker, []byte("8"))
			both(w, iteration)
		}, "has changed after " + tracker},
	} {
		t.Run(name, func(t *testing.T) {
			inCluster(t, memcluster.Options{}, func(t *testing.T, cluster *memcluster.Cluster) {
				w := writer{t, cluster.Client("w")}
				defer w.Close()
				c.write(w)
				o := adopt.Options{Run: "/runs/r", Step: 7, Format: adopt.Megatron}
				_, err := adopt.Dir(t.Context(), w.Client, iteration, o)
				if c.says == "" {
					require.NoError(t, err)
					return
				}
				require.ErrorIs(t, err, moraine.Incomplete)
				require.ErrorContains(t, err, c.says)
				require.ErrorContains(t, err, "--complete")
				_, err = w.Stat(t.Context(), "/runs/r")
				require.ErrorIs(t, err, moraine.NotFound)
				o.Complete = true
				_, err = adopt.Dir(t.Context(), w.Client, iteration, o)
				require.NoError(t, err)
			})
		})
	}
}

// TestANameThatIsNoIteration: the tracker says nothing about a directory that was renamed.
func TestANameThatIsNoIteration(t *testing.T) {
	inCluster(t, memcluster.Options{}, func(t *testing.T, c *memcluster.Cluster) {
		w := writer{t, c.Client("w")}
		defer w.Close()
		for _, f := range megatronFiles(t) {
			w.put("/d/best/"+f.name, f.data)
			w.put("/d/release/"+f.name, f.data)
		}
		w.put(tracker, []byte("7"))
		_, err := adopt.Dir(t.Context(), w.Client, "/d/best", adopt.Options{Run: "/runs/r", Step: 7, Format: adopt.Megatron})
		require.ErrorContains(t, err, "best is no name of an iteration")
		w.put(tracker, []byte("release\n"))
		_, err = adopt.Dir(t.Context(), w.Client, "/d/release", adopt.Options{Run: "/runs/r", Step: 7, Format: adopt.Megatron})
		require.NoError(t, err)
	})
}

// TestACheckpointOverAnOlderOne: files of dcp that are newer than .metadata belong to a save that has not
// ended, whatever their lengths.
func TestACheckpointOverAnOlderOne(t *testing.T) {
	for _, format := range []adopt.Format{adopt.DCP, adopt.Megatron} { // torch_dist is the format of Megatron with .metadata
		t.Run(string(format), func(t *testing.T) {
			inCluster(t, memcluster.Options{}, func(t *testing.T, c *memcluster.Cluster) {
				w := writer{t, c.Client("w")}
				defer w.Close()
				all := dcpFiles(t)
				for _, f := range all {
					w.later("/d/ck/"+f.name, f.data)
				}
				w.later("/d/ck/notes.txt", []byte("the framework did not write this"))
				dir := func(step uint64, complete bool) error {
					_, err := adopt.Dir(t.Context(), w.Client, "/d/ck", adopt.Options{Run: "/runs/r", Step: step, Format: format, Complete: complete})
					return err
				}
				require.NoError(t, dir(1, false))
				w.later("/d/ck/__0_0.distcp", bytesOf(1000, 77)) // the first of two ranks has written again
				err := dir(2, false)
				require.ErrorIs(t, err, moraine.Incomplete)
				require.ErrorContains(t, err, "file __0_0.distcp has changed after .metadata")
				w.later("/d/ck/.metadata", all[2].data)
				require.NoError(t, dir(2, false))
				w.later("/d/ck/__0_0.distcp", bytesOf(1000, 78))
				require.NoError(t, dir(3, true))
			})
		})
	}
}

// TestAHalfWrittenModel: of a directory of Hugging Face no shard may be without its index, and what the Trainer
// writes beside the model must be whole, too.
func TestAHalfWrittenModel(t *testing.T) {
	model := map[string][]byte{}
	for _, f := range hfFiles(t) {
		model[f.name] = f.data
	}
	single := map[string][]byte{"model.safetensors": shard(t, 1, "a", "b")}
	trainer := maps.Clone(model)
	maps.Copy(trainer, map[string][]byte{"training_args.bin": zipOf(t), "optimizer.pt": zipOf(t), "rng_state_0.pth": zipOf(t), "trainer_state.json": []byte("{}")})
	const lists = "no model.safetensors.index.json lists the file model-00001-of-000"
	for name, c := range map[string]struct {
		files  map[string][]byte
		change func(files map[string][]byte)
		says   string // empty: it is adopted
	}{
		"one file":      {single, func(map[string][]byte) {}, ""},
		"one file, cut": {single, func(f map[string][]byte) { f["model.safetensors"] = f["model.safetensors"][:500] }, "model.safetensors"},
		"one file, of which a byte lacks": {single, func(f map[string][]byte) {
			f["model.safetensors"] = f["model.safetensors"][:len(f["model.safetensors"])-1]
		}, "model.safetensors"},
		"one file, empty": {single, func(f map[string][]byte) { f["model.safetensors"] = nil }, "model.safetensors"},
		"shards":          {model, func(map[string][]byte) {}, ""},
		"no index":        {model, func(f map[string][]byte) { delete(f, "model.safetensors.index.json") }, "neither model.safetensors.index.json nor model.safetensors"},
		"no index, an old model in one file": {model, func(f map[string][]byte) {
			delete(f, "model.safetensors.index.json")
			f["model.safetensors"] = single["model.safetensors"]
		}, lists + "02"},
		"shards of a newer save": {model, func(f map[string][]byte) { f["model-00001-of-00004.safetensors"] = shard(t, 3, "a") }, lists + "04"},
		"a shard is absent":      {model, func(f map[string][]byte) { delete(f, "model-00002-of-00002.safetensors") }, "is missing"},
		"a shard is cut": {model, func(f map[string][]byte) {
			f["model-00002-of-00002.safetensors"] = f["model-00002-of-00002.safetensors"][:400]
		}, "model-00002-of-00002.safetensors"},
		"of a Trainer":         {trainer, func(map[string][]byte) {}, ""},
		"its state is missing": {trainer, func(f map[string][]byte) { delete(f, "trainer_state.json") }, "there is no trainer_state.json"},
		"its model alone": {trainer, func(f map[string][]byte) {
			delete(f, "trainer_state.json")
			delete(f, "optimizer.pt")
		}, ""},
		"its optimizer is cut": {trainer, func(f map[string][]byte) { f["optimizer.pt"] = f["optimizer.pt"][:50] }, "optimizer.pt is cut short"},
		"its numbers are cut":  {trainer, func(f map[string][]byte) { f["rng_state_0.pth"] = nil }, "rng_state_0.pth is empty"},
	} {
		t.Run(name, func(t *testing.T) {
			inCluster(t, memcluster.Options{}, func(t *testing.T, cluster *memcluster.Cluster) {
				w := writer{t, cluster.Client("w")}
				defer w.Close()
				files := maps.Clone(c.files)
				c.change(files)
				for name, data := range files {
					w.put("/d/ck/"+name, data)
				}
				info, err := adopt.Dir(t.Context(), w.Client, "/d/ck", adopt.Options{Run: "/runs/r", Step: 7, Format: adopt.HF})
				if c.says == "" {
					require.NoError(t, err)
					require.Equal(t, ckpt.StepCommitted, info.State)
					return
				}
				require.ErrorIs(t, err, moraine.Incomplete)
				require.ErrorContains(t, err, c.says)
			})
		})
	}
}
