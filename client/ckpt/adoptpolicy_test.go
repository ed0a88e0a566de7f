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
		require.NoError(t, adopt.SetPolicy(t.Context(), w.Client, dir.Inode(), format))
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

const soon = 40 * time.Second

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
					const dir = "/runs/job/checkpoint-500"
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
			w.put("/runs/job/checkpoint-500/"+f.name, f.data)
		}
		for n := range 5 { // the optimizer is large
			time.Sleep(5 * time.Second)
			all = append(all, written{fmt.Sprintf("optimizer-%d.pt", n), bytesOf(2000, byte(n))})
			w.put("/runs/job/checkpoint-500/"+all[len(all)-1].name, all[len(all)-1].data)
		}
		require.True(t, w.hasStep("/runs/job", 500, soon))
		k := readStep(t, w.Client, "/runs/job", 500)
		w.holdsFiles(k, "/runs/job", all)
		require.NoError(t, k.Close())

		// A shard comes late: the job has tried meanwhile, and tries again.
		all = hfFiles(t)
		for _, f := range all[2:] {
			w.put("/runs/job/checkpoint-600/"+f.name, f.data)
		}
		require.False(t, w.hasStep("/runs/job", 600, soon))
		w.put("/runs/job/checkpoint-600/"+all[1].name, all[1].data)
		require.True(t, w.hasStep("/runs/job", 600, 90*time.Second))

		// One never comes.
		for _, f := range all[2:] {
			w.put("/runs/job/checkpoint-700/"+f.name, f.data)
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
		require.NoError(t, adopt.SetPolicy(t.Context(), w.Client, off.Inode(), adopt.Never))
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
		require.NoError(t, adopt.SetPolicy(t.Context(), w.Client, off.Inode(), ""))
		meta := dcpFiles(t)[2]
		w.put("/runs/off/ck-1/"+meta.name, meta.data)
		require.True(t, w.hasStep("/runs/off", 1, soon))
		require.Error(t, adopt.SetPolicy(t.Context(), w.Client, off.Inode(), "zip"))
	})
}
