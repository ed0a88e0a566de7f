package ckpt_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/adopt"
	"github.com/morainefs/moraine/integration/memcluster"
)

// inPolicy runs fn in a cluster in which directories of a format below /runs become steps.
func inPolicy(t *testing.T, format adopt.Format, fn func(t *testing.T, w writer)) {
	t.Helper()
	inCluster(t, memcluster.Options{}, func(t *testing.T, c *memcluster.Cluster) {
		w := writer{t, c.Client("w")}
		defer w.Close()
		dir, err := w.MkdirAll(t.Context(), "/runs", 0o755)
		require.NoError(t, err)
		require.NoError(t, adopt.SetPolicy(t.Context(), w.Client, dir.Inode(), format, 0))
		fn(t, w)
	})
}

// hasStep waits, and reports whether a run has a committed step then.
func (w writer) hasStep(run string, step uint64, after time.Duration) bool {
	w.t.Helper()
	time.Sleep(after)
	r, err := ckpt.OpenRun(w.t.Context(), w.Client, run, ckpt.RunOptions{ReadOnly: true})
	if errors.Is(err, moraine.NotFound) {
		return false
	}
	require.NoError(w.t, err)
	k, err := r.Resolve(w.t.Context(), ckpt.ResolveOptions{Step: step, Exact: true})
	if errors.Is(err, moraine.NotFound) {
		return false
	}
	require.NoError(w.t, err)
	return k.Close() == nil
}

// adoptions returns the jobs that adopt, as `moraine job ls` shows them.
func (w writer) adoptions() (out []client.Job) {
	w.t.Helper()
	for j, err := range w.Jobs().List(w.t.Context(), true) {
		require.NoError(w.t, err)
		if j.Kind == client.JobAdopt || j.Kind == client.JobReadTracker {
			out = append(out, j)
		}
	}
	return out
}

const soon = 90 * time.Second

// TestAPolicyAdopts: the last file of a framework makes its directory a step: written at its name,
// renamed to it, or with its directory.
func TestAPolicyAdopts(t *testing.T) {
	ways := map[string]func(w writer, dir string, last written){
		"written": func(w writer, dir string, last written) { w.put(dir+"/"+last.name, last.data) },
		"renamed": func(w writer, dir string, last written) {
			w.put(dir+"/"+last.name+".tmp", last.data)
			require.NoError(w.t, w.Rename(w.t.Context(), dir+"/"+last.name+".tmp", dir+"/"+last.name, client.RenameOptions{}))
		},
		"renamed with its directory": func(w writer, dir string, last written) {
			require.NoError(w.t, w.Rename(w.t.Context(), dir, dir+"-tmp", client.RenameOptions{}))
			w.put(dir+"-tmp/"+last.name, last.data)
			require.NoError(w.t, w.Rename(w.t.Context(), dir+"-tmp", dir, client.RenameOptions{}))
		},
		"moved here with its directory": func(w writer, dir string, last written) {
			require.NoError(w.t, w.Rename(w.t.Context(), dir, "/elsewhere-9", client.RenameOptions{}))
			w.put("/elsewhere-9/"+last.name, last.data)
			require.NoError(w.t, w.Rename(w.t.Context(), "/elsewhere-9", dir, client.RenameOptions{}))
		},
	}
	for _, format := range []adopt.Format{adopt.DCP, adopt.HF} {
		for way, put := range ways {
			t.Run(fmt.Sprint(format, "/", way), func(t *testing.T) {
				inPolicy(t, format, func(t *testing.T, w writer) {
					all := writtenBy[format](t)
					const dir = "/runs/job/step-500"
					for _, f := range all[:len(all)-1] {
						w.put(dir+"/"+f.name, f.data)
					}
					require.False(t, w.hasStep("/runs/job", 500, soon), "the last file is missing")
					require.Empty(t, w.adoptions())
					put(w, dir, all[len(all)-1])
					require.True(t, w.hasStep("/runs/job", 500, soon))
					k := readStep(t, w.Client, "/runs/job", 500)
					defer k.Close()
					w.holdsFiles(k, "/runs/job", all)
					w.put(dir+"/"+all[len(all)-1].name, all[len(all)-1].data) // once more, without a change of what it says
					require.True(t, w.hasStep("/runs/job", 500, soon))
					require.Len(t, w.adoptions(), 2)
				})
			})
		}
	}
}

// TestAPolicyWaitsForQuiet: files that the framework writes after the one that completes the tensors
// belong to the step. A directory that stays incomplete is given up, with the reason.
func TestAPolicyWaitsForQuiet(t *testing.T) {
	inPolicy(t, adopt.HF, func(t *testing.T, w writer) {
		all := hfFiles(t)
		for _, f := range all {
			w.put("/runs/job/save-500/"+f.name, f.data)
		}
		for n := range 5 { // the optimizer is large
			time.Sleep(5 * time.Second)
			all = append(all, written{fmt.Sprintf("optimizer-%d.bin", n), bytesOf(2000, byte(n))})
			w.put("/runs/job/save-500/"+all[len(all)-1].name, all[len(all)-1].data)
		}
		require.True(t, w.hasStep("/runs/job", 500, soon))
		k := readStep(t, w.Client, "/runs/job", 500)
		w.holdsFiles(k, "/runs/job", all)
		require.NoError(t, k.Close())

		// A shard comes late: the job has tried meanwhile, and tries again.
		all = hfFiles(t)
		for _, f := range all[2:] {
			w.put("/runs/job/save-600/"+f.name, f.data)
		}
		require.False(t, w.hasStep("/runs/job", 600, soon))
		w.put("/runs/job/save-600/"+all[1].name, all[1].data)
		require.True(t, w.hasStep("/runs/job", 600, 90*time.Second))

		// One never comes.
		for _, f := range all[2:] {
			w.put("/runs/job/save-700/"+f.name, f.data)
		}
		require.False(t, w.hasStep("/runs/job", 700, time.Hour))
		jobs := w.adoptions()
		last := jobs[len(jobs)-1]
		require.Equal(t, client.JobFailed, last.State)
		require.Contains(t, last.Error, "model-00001-of-00002.safetensors, which model.safetensors.index.json lists, is missing")
		steps, err := ckpt.ListSteps(t.Context(), w.Client, readRun(t, w.Client, "/runs/job"), true)
		require.NoError(t, err)
		require.Equal(t, ckpt.StepAborted, steps[len(steps)-1].State)
		require.Contains(t, steps[len(steps)-1].Reason, "is missing")
	})
}

// TestAPolicyWaitsForTheTrainer: the Trainer of transformers writes the optimizer, which may take long, after the
// index of the model, and its state last. A step never lacks one of these files.
func TestAPolicyWaitsForTheTrainer(t *testing.T) {
	inPolicy(t, adopt.HF, func(t *testing.T, w writer) {
		var all []written
		put := func(dir string, files ...written) {
			for _, f := range files {
				w.put(dir+"/"+f.name, f.data)
			}
			all = append(all, files...)
		}
		adopted := func(step uint64) {
			t.Helper()
			require.True(t, w.hasStep("/runs/job", step, soon))
			k := readStep(t, w.Client, "/runs/job", step)
			w.holdsFiles(k, "/runs/job", all)
			require.NoError(t, k.Close())
			all = nil
		}
		args, optimizer := written{"training_args.bin", bytesOf(500, 1)}, written{"optimizer.pt", bytesOf(90_000, 2)}
		rng, state := written{"rng_state_1.pth", bytesOf(700, 3)}, written{"trainer_state.json", []byte(`{"global_step":500}`)}

		// The name says it, or a file of the Trainer. Each pause is longer than that after which a directory is adopted.
		put("/runs/job/checkpoint-500", hfFiles(t)...)
		require.False(t, w.hasStep("/runs/job", 500, 5*time.Minute), "the optimizer is missing")
		put("/runs/job/checkpoint-500", args, optimizer)
		require.False(t, w.hasStep("/runs/job", 500, 2*time.Minute))
		put("/runs/job/checkpoint-500", state, rng) // that of another rank comes late
		adopted(500)
		for step, early := range map[uint64]written{501: args, 502: optimizer} {
			dir := fmt.Sprintf("/runs/job/save-%d", step)
			put(dir, append(hfFiles(t), early)...)
			require.False(t, w.hasStep("/runs/job", step, 5*time.Minute))
			put(dir, state)
			adopted(step)
		}

		// A job that has failed meanwhile is no reason not to adopt the directory in the end.
		put("/runs/job/checkpoint-600", hfFiles(t)...)
		require.False(t, w.hasStep("/runs/job", 600, time.Hour))
		jobs := w.adoptions()
		require.Equal(t, client.JobFailed, jobs[len(jobs)-1].State)
		require.Contains(t, jobs[len(jobs)-1].Error, "trainer_state.json is missing")
		put("/runs/job/checkpoint-600", optimizer, state)
		adopted(600)

		// A model in one file has no index. Without any, nobody can check the directory.
		put("/runs/job/checkpoint-700", written{"model.safetensors", shard(t, 1, "a", "b")}, optimizer, state)
		adopted(700)
		before := len(w.adoptions())
		put("/runs/job/checkpoint-800", written{"pytorch_model.bin", bytesOf(100, 1)}, optimizer, state)
		require.False(t, w.hasStep("/runs/job", 800, soon))
		require.Len(t, w.adoptions(), before)
	})
}

// TestAPolicySaysHowLongQuiet: a directory becomes a step when nothing in it has changed for the time that the policy
// says. Directories below inherit it.
func TestAPolicySaysHowLongQuiet(t *testing.T) {
	inPolicy(t, adopt.DCP, func(t *testing.T, w writer) {
		dir, err := w.Stat(t.Context(), "/runs")
		require.NoError(t, err)
		require.NoError(t, adopt.SetPolicy(t.Context(), w.Client, dir.Inode(), adopt.DCP, 10*time.Minute))
		all := dcpFiles(t)
		for _, f := range all {
			w.put("/runs/job/save-1/"+f.name, f.data)
		}
		require.False(t, w.hasStep("/runs/job", 1, 9*time.Minute))
		all = append(all, written{"late.bin", bytesOf(100, 1)})
		w.put("/runs/job/save-1/late.bin", all[len(all)-1].data)
		require.False(t, w.hasStep("/runs/job", 1, 9*time.Minute))
		require.True(t, w.hasStep("/runs/job", 1, 12*time.Minute))
		k := readStep(t, w.Client, "/runs/job", 1)
		defer k.Close()
		w.holdsFiles(k, "/runs/job", all)
		for _, wrong := range []time.Duration{-time.Second, 25 * time.Hour} {
			require.ErrorIs(t, adopt.SetPolicy(t.Context(), w.Client, dir.Inode(), adopt.DCP, wrong), moraine.InvalidArgument)
		}
		require.ErrorIs(t, adopt.SetPolicy(t.Context(), w.Client, dir.Inode(), adopt.Never, time.Minute), moraine.InvalidArgument)
	})
}

func readRun(t *testing.T, c *client.Client, run string) moraine.InodeID {
	t.Helper()
	r, err := ckpt.OpenRun(t.Context(), c, run, ckpt.RunOptions{ReadOnly: true})
	require.NoError(t, err)
	return r.ID()
}

// TestMegatronsTracker: the tracker file names the directory, also when a job went back and saves
// iterations again that are older than others that are there.
func TestMegatronsTracker(t *testing.T) {
	inPolicy(t, adopt.Megatron, func(t *testing.T, w writer) {
		save := func(n int, seed byte) []written {
			all := megatronFiles(t)
			for i := range all {
				all[i].data = bytesOf(100, seed+byte(i))
				w.put(fmt.Sprintf("/runs/job/iter_%07d/%s", n, all[i].name), all[i].data)
			}
			w.put("/runs/job/latest_checkpointed_iteration.txt", []byte(fmt.Sprintln(n)))
			return all
		}
		save(700, 1)
		require.True(t, w.hasStep("/runs/job", 700, soon))
		all := save(600, 2)
		require.True(t, w.hasStep("/runs/job", 600, soon))
		k := readStep(t, w.Client, "/runs/job", 600)
		defer k.Close()
		w.holdsFiles(k, "/runs/job", all)
		before := len(w.adoptions())
		for text, says := range map[string]string{"800": "no directory iter_0000800", "release": "names no iteration", "\xff\xfe": "names no iteration"} {
			w.put("/runs/job/latest_checkpointed_iteration.txt", []byte(text))
			time.Sleep(soon)
			jobs := w.adoptions()
			require.Len(t, jobs, before+1, text)
			before++
			require.Equal(t, client.JobReadTracker, jobs[before-1].Kind)
			require.Contains(t, jobs[before-1].Error, says)
		}
	})
}

// TestWhatAPolicyLeavesAlone: other names, other formats and places outside make no job.
func TestWhatAPolicyLeavesAlone(t *testing.T) {
	inPolicy(t, adopt.DCP, func(t *testing.T, w writer) {
		off, err := w.MkdirAll(t.Context(), "/runs/off", 0o755)
		require.NoError(t, err)
		require.NoError(t, adopt.SetPolicy(t.Context(), w.Client, off.Inode(), adopt.Never, 0))
		for _, dir := range []string{"/runs/job/latest", "/other/ck-1", "/runs/off/ck-1", "/runs"} {
			for _, f := range dcpFiles(t) {
				w.put(dir+"/"+f.name, f.data)
			}
		}
		for _, f := range hfFiles(t) {
			w.put("/runs/job/ck-2/"+f.name, f.data)
		}
		time.Sleep(soon)
		require.Empty(t, w.adoptions())
		require.NoError(t, adopt.SetPolicy(t.Context(), w.Client, off.Inode(), "", 0))
		meta := dcpFiles(t)[2]
		w.put("/runs/off/ck-1/"+meta.name, meta.data)
		require.True(t, w.hasStep("/runs/off", 1, soon))
		require.Error(t, adopt.SetPolicy(t.Context(), w.Client, off.Inode(), "zip", 0))
	})
}
