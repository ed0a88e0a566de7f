package doors_test

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path"
	"sync"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/tiers/object/s3test"
)

// held is a request to the bucket that waits at the proxy.
type held struct {
	arrived chan struct{} // closed when there is one
	let     func()
}

// hold makes the first request of an op wait at a proxy until let is called, or the
// test ends.
func hold(t *testing.T, p *s3test.Proxy, op string) *held {
	h := &held{arrived: make(chan struct{})}
	gone := make(chan struct{})
	h.let = sync.OnceFunc(func() { close(gone) })
	t.Cleanup(h.let)
	var first sync.Once
	p.Set(func(r *http.Request) s3test.Fault {
		if s3test.OpOf(r) != op {
			return s3test.Pass
		}
		first.Do(func() {
			close(h.arrived)
			<-gone
		})
		return s3test.Pass
	})
	return h
}

// wait returns when a request waits.
func (h *held) wait(t *testing.T) {
	t.Helper()
	select {
	case <-h.arrived:
	case <-time.After(2 * time.Minute):
		require.FailNow(t, "the request to block does not arrive")
	}
}

// startProxied is startWorld with a proxy in front of the bucket.
func startProxied(t *testing.T, o worldOptions) (*world, *s3test.Proxy) {
	t.Helper()
	p := s3test.NewProxy(t, s3test.Start(t).Endpoint)
	o.endpoint = p.URL
	return startWorld(t, o), p
}

// twoParts is the length of a file that is uploaded in two parts.
const twoParts = 17 << 20

// oneStripe is the length of a small one.
const oneStripe = 150_000

// content returns n bytes that differ for every seed.
func content(seed byte, n int) []byte {
	data := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(data)
	return data
}

// put makes a file of data, through a client.
func (w *world) put(t *testing.T, at string, data []byte) {
	t.Helper()
	require.NoError(t, (&clientDoor{w.admin.Client}).put(t.Context(), at, data))
}

// requireContent reads a file through a client.
func (w *world) requireContent(t *testing.T, at string, want []byte) {
	t.Helper()
	got, err := (&clientDoor{w.admin.Client}).read(t.Context(), at)
	require.NoError(t, err)
	require.Equal(t, sha256.Sum256(want), sha256.Sum256(got), at)
}

// requireObject reads the object at the key of a path.
func (w *world) requireObject(t *testing.T, at string, want []byte) {
	t.Helper()
	got, err := (&s3Door{core: w.direct}).read(t.Context(), "/"+path.Join(w.config.Bucket, w.config.Prefix, at))
	require.NoError(t, err)
	require.Equal(t, sha256.Sum256(want), sha256.Sum256(got), at)
}

// requireTidy fails unless the bucket holds exactly what the records say.
func (w *world) requireTidy(t *testing.T, objects int) {
	t.Helper()
	w.settle(t)
	eventually(t, time.Minute, "files that were replaced to linger no more", func() (bool, string) {
		have := w.look(t).objects
		return len(have) <= objects, fmt.Sprint(have)
	})
	w.settle(t)
	a := w.look(t)
	require.Empty(t, a.wrong())
	require.Len(t, a.objects, objects)
}

func (w *world) stat(t *testing.T, at string) client.Attr {
	t.Helper()
	a, err := w.admin.Stat(t.Context(), at)
	require.NoError(t, err)
	return a
}

// holder waits until a job is leased, and returns its holder.
func (w *world) holder(t *testing.T, j client.Job) (node string) {
	t.Helper()
	eventually(t, 2*time.Minute, "the job to be leased", func() (bool, string) {
		now, err := w.admin.Jobs().Get(t.Context(), j.ID)
		require.NoError(t, err)
		node = now.Holder
		return node != "", fmt.Sprintf("%+v", now)
	})
	return node
}

// A mover that is killed at any point of a flush leaves nothing behind: the next
// one ends what it began, and there is one object.
func TestMoverKilledInTheMiddleOfAFlush(t *testing.T) {
	t.Parallel()
	points := []string{"put_part", "complete"}
	if long() {
		points = append(points, "new_upload", "head")
	}
	for _, op := range points {
		t.Run(op, func(t *testing.T) {
			t.Parallel()
			w, p := startProxied(t, worldOptions{})
			data := content(1, oneStripe)
			if op == "put_part" {
				data = content(1, twoParts)
			}
			w.put(t, "/file", data)
			h := hold(t, p, op)
			job := w.move(t, flush, "/file")[0]
			h.wait(t)
			node := w.holder(t, job)
			w.Kill(node)
			h.let()
			ended, err := w.waitJob(t.Context(), job)
			require.NoError(t, err)
			require.Equal(t, client.JobDone, ended.State, "%v", ended)
			require.NotEqual(t, node, ended.Holder)
			require.True(t, w.stat(t, "/file").Clean())
			w.requireTidy(t, 1)
			w.requireObject(t, "/file", data)
			require.NoError(t, w.Restart(node))
			require.NoError(t, w.WaitReady(t.Context()))
		})
	}
}

// The leader of the metadata service is killed during a flush: the flush continues
// under the next leader.
func TestLeaderKilledInTheMiddleOfAFlush(t *testing.T) {
	t.Parallel()
	var o worldOptions
	o.Metadata = 3
	w, p := startProxied(t, o)
	data := content(2, oneStripe)
	w.put(t, "/file", data)
	h := hold(t, p, "put_part")
	w.move(t, flush, "/file")
	h.wait(t)
	leader := w.Leader()
	require.NotEmpty(t, leader)
	w.Kill(leader)
	h.let()
	eventually(t, 2*time.Minute, "the file to be flushed", func() (bool, string) {
		a := w.stat(t, "/file")
		return a.Clean(), a.String()
	})
	w.requireTidy(t, 1)
	w.requireObject(t, "/file", data)
	require.NoError(t, w.Restart(leader))
	require.NoError(t, w.WaitReady(t.Context()))
	require.NoError(t, w.Check())
}

// A flush that is cancelled while it uploads leaves neither an object nor an
// upload.
func TestCanceledFlushOfARunningMover(t *testing.T) {
	t.Parallel()
	w, p := startProxied(t, worldOptions{})
	data := content(3, oneStripe)
	w.put(t, "/file", data)
	h := hold(t, p, "put_part")
	job := w.move(t, flush, "/file")[0]
	h.wait(t)
	require.NoError(t, w.admin.Jobs().Cancel(t.Context(), job.ID))
	h.let()
	ended, err := w.waitJob(t.Context(), job)
	require.NoError(t, err)
	require.Equal(t, client.JobCanceled, ended.State, "%v", ended)
	w.requireTidy(t, 0)
	require.False(t, w.stat(t, "/file").Clean())
	w.moved(t, flush, "/file") // requested again it succeeds
	w.requireTidy(t, 1)
	w.requireObject(t, "/file", data)
}

// A directory is flushed, evicted, read and staged with everything below it. A file
// that is not flushed is not evicted, and the job says so.
func TestMoveOfADirectory(t *testing.T) {
	t.Parallel()
	w := startWorld(t, worldOptions{})
	files := map[string][]byte{}
	for i := range 24 {
		at := fmt.Sprintf("/dir/sub%d/below/file-%d", i%3, i)
		files[at] = content(byte(i), i*5_000)
		_, err := w.admin.MkdirAll(t.Context(), path.Dir(at), 0o755)
		require.NoError(t, err)
		w.put(t, at, files[at])
	}
	w.moved(t, flush, "/dir")
	for at := range files {
		require.True(t, w.stat(t, at).Clean(), at)
	}
	files["/dir/late"] = content(200, 100_000)
	w.put(t, "/dir/late", files["/dir/late"])
	ended, err := w.waitJob(t.Context(), w.move(t, evict, "/dir")[0])
	require.NoError(t, err)
	require.Equal(t, client.JobFailed, ended.State)
	require.Contains(t, ended.Error, "late: no object holds its present content: flush it first")
	for at, data := range files {
		require.Equal(t, at != "/dir/late" && len(data) > 0, w.stat(t, at).Evicted(), at)
	}
	w.moved(t, stage, "/dir")
	for at, data := range files {
		require.False(t, w.stat(t, at).Evicted(), at)
		w.requireContent(t, at, data)
	}
	w.requireTidy(t, 24)
}

// Below a directory with such a policy, files are flushed automatically, however
// they were made.
func TestFilesAreFlushedOnCommit(t *testing.T) {
	t.Parallel()
	w := startWorld(t, worldOptions{})
	ctx := t.Context()
	dir, err := w.admin.MkdirAll(ctx, "/auto/below", 0o755)
	require.NoError(t, err)
	auto := w.stat(t, "/auto")
	require.NoError(t, w.admin.Policies().Set(ctx, auto.Inode(), onCommit))
	by := &clientDoor{w.admin.Client}
	data := content(4, 100_000)
	w.put(t, "/outside", data)
	w.put(t, "/auto/below/committed", data)
	require.NoError(t, by.clone(ctx, "/outside", "/auto/cloned"))
	w.put(t, "/renamed", data)
	require.NoError(t, by.rename(ctx, "/renamed", "/auto/renamed"))
	_, err = w.admin.Inodes().CreateEmpty(ctx, dir.Inode(), "written", 0o644)
	require.NoError(t, err)
	require.NoError(t, by.append(ctx, "/auto/below/written", data))
	w.put(t, "/auto/twice", content(5, 7))
	w.put(t, "/auto/twice", data)
	for _, at := range []string{"/auto/below/committed", "/auto/cloned", "/auto/renamed", "/auto/below/written", "/auto/twice"} {
		eventually(t, 2*time.Minute, at+" to be flushed", func() (bool, string) {
			a := w.stat(t, at)
			return a.Clean(), a.String()
		})
	}
	w.requireTidy(t, 5)
	for _, at := range []string{"/auto/below/committed", "/auto/cloned", "/auto/renamed", "/auto/below/written", "/auto/twice"} {
		w.requireObject(t, at, data)
	}
	require.False(t, w.stat(t, "/outside").Clean())
}

// A file is not evicted if its object was removed, or replaced by another program;
// its bytes stay readable.
func TestEvictionAsksTheBucket(t *testing.T) {
	t.Parallel()
	w := startWorld(t, worldOptions{})
	data := content(6, 200_000)
	tamper := map[string]func(key string) error{
		"/removed": func(key string) error {
			return w.direct.RemoveObject(t.Context(), w.config.Bucket, key, minio.RemoveObjectOptions{})
		},
		"/changed": func(key string) error {
			return (&s3Door{core: w.direct}).put(t.Context(), "/"+path.Join(w.config.Bucket, key), content(7, len(data)))
		},
	}
	for at, change := range tamper {
		w.put(t, at, data)
		w.moved(t, flush, at)
		require.NoError(t, change(path.Join(w.config.Prefix, at)))
		job := w.move(t, evict, at)[0]
		eventually(t, 2*time.Minute, "the eviction to be refused", func() (bool, string) {
			now, err := w.admin.Jobs().Get(t.Context(), job.ID)
			require.NoError(t, err)
			require.NotEqual(t, client.JobDone, now.State)
			return now.Error != "", fmt.Sprintf("%+v", now)
		})
		require.False(t, w.stat(t, at).Evicted())
		w.requireContent(t, at, data)
	}
}

// A file is renamed during its flush, and another one takes its name: each has an
// object of its own in the end, the second one under the path.
func TestRenameDuringAFlush(t *testing.T) {
	t.Parallel()
	w, p := startProxied(t, worldOptions{})
	first, second := content(8, oneStripe), content(9, 100_000)
	w.put(t, "/name", first)
	h := hold(t, p, "put_part")
	w.move(t, flush, "/name")
	h.wait(t)
	by := &clientDoor{w.admin.Client}
	require.NoError(t, by.rename(t.Context(), "/name", "/other"))
	w.put(t, "/name", second)
	jobs := w.move(t, flush, "/name", "/other")
	h.let()
	for _, j := range jobs {
		_, err := w.waitJob(t.Context(), j)
		require.NoError(t, err)
	}
	for _, at := range []string{"/name", "/other"} {
		eventually(t, 2*time.Minute, at+" to be flushed", func() (bool, string) {
			a := w.stat(t, at)
			return a.Clean(), a.String()
		})
	}
	w.settle(t)
	a := w.look(t)
	require.Empty(t, a.wrong())
	w.requireObject(t, "/name", second)
	w.moved(t, evict, "/name", "/other")
	w.requireContent(t, "/name", second)
	w.requireContent(t, "/other", first)
}

// An object from which an evicted clone is read is moved away before its key is
// used for new content.
func TestKeptObjectServesItsClone(t *testing.T) {
	t.Parallel()
	w := startWorld(t, worldOptions{})
	old, changed := content(10, 300_000), content(11, 250_000)
	by := &clientDoor{w.admin.Client}
	w.put(t, "/file", old)
	w.moved(t, flush, "/file")
	w.moved(t, evict, "/file")
	require.NoError(t, by.clone(t.Context(), "/file", "/clone"))
	w.put(t, "/file", changed)
	w.moved(t, flush, "/file")
	w.settle(t)
	require.Empty(t, w.look(t).wrong())
	w.requireObject(t, "/file", changed)
	require.True(t, w.stat(t, "/clone").Evicted())
	w.requireContent(t, "/clone", old)
	w.requireContent(t, "/file", changed)
}
