package restores_test

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/incluster"
)

// TestARestoreFindsObjectsThatWereKept: a backup has a file as evicted, to an
// object at the file's key. After it the object moves to its kept key, since a
// clone still names it and the key is needed for newer content. The restored file
// reads from there and is staged from there. When it is removed with its clone, at
// once or after its key was needed again, nothing is left in the bucket.
func TestARestoreFindsObjectsThatWereKept(t *testing.T) {
	for _, needed := range []bool{false, true} {
		inBucketWorld(t, incluster.Options{Chunkservers: 3}, func(w *world) {
			w.put("/f", 300_000, 1)
			w.move("/f", client.JobFlush)
			w.move("/f", client.JobEvict)
			w.clone("/f", "/clone")
			backup, then := w.backup(), maps.Clone(w.files)
			w.rewrite("/f", bytes.Repeat([]byte("newer"), 60_000))
			w.move("/f", client.JobFlush)
			require.Len(t, w.keys(), 2, "the older object is kept, at another key")
			require.Empty(t, w.unreadable())

			w.Kill("n1", "n2", "n3") // no piece stays in memory
			require.NoError(t, w.Restart())
			require.NoError(t, w.WaitReady(w.ctx))
			w.files = then
			w.restore(backup)
			w.settled()
			require.Empty(t, w.unreadable(), "the bytes of it are at the kept key")
			if needed {
				w.move("/clone", client.JobStage)
				w.rewrite("/f", []byte("other"))
				w.move("/f", client.JobFlush)
				require.Empty(t, w.unreadable())
			}
			for name := range then {
				require.NoError(t, w.admin.Remove(w.ctx, name))
			}
			kept := func(key string) bool { return strings.HasPrefix(key, ".moraine/kept/") }
			w.until("the kept object is deleted", func() bool { return !slices.ContainsFunc(w.keys(), kept) })
			if needed { // otherwise the object at the key is of a history that the backup does not know
				w.until("all objects are deleted", func() bool { return len(w.keys()) == 0 })
			}
			require.NoError(t, w.Check())
		})
	}
}

// move runs a job of a file.
func (w *world) move(name string, kind client.JobKind) {
	w.t.Helper()
	a, err := w.admin.Stat(w.ctx, name)
	require.NoError(w.t, err)
	jobs, err := w.admin.Jobs().Queue(w.ctx, kind, a.Inode())
	require.NoError(w.t, err)
	for _, j := range jobs {
		_, err := w.admin.Jobs().Wait(w.ctx, j.ID, nil)
		require.NoError(w.t, err)
	}
}

// clone makes a clone of a file.
func (w *world) clone(name, to string) {
	w.t.Helper()
	a, err := w.admin.Stat(w.ctx, name)
	require.NoError(w.t, err)
	_, err = w.admin.CloneFile(w.ctx, a.Inode(), to, client.CreateOptions{})
	require.NoError(w.t, err)
	w.files[to] = w.files[name]
}

// rewrite overwrites the beginning of a file.
func (w *world) rewrite(name string, data []byte) {
	w.t.Helper()
	a, err := w.admin.Stat(w.ctx, name)
	require.NoError(w.t, err)
	f, err := w.admin.Inodes().OpenHandle(w.ctx, a.Inode(), client.HandleOptions{})
	require.NoError(w.t, err)
	_, err = f.WriteAt(w.ctx, data, 0)
	require.NoError(w.t, err)
	require.NoError(w.t, f.Sync(w.ctx))
	require.NoError(w.t, f.Close(w.ctx))
	w.files[name] = append(slices.Clone(data), w.files[name][len(data):]...)
}
