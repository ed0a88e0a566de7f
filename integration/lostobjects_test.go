package integration_test

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/tiers/object"
)

// evictedObject is an evicted file, and its original object.
type evictedObject struct {
	t    *testing.T
	b    *object.Bucket
	info object.Info
	data []byte
}

func (o *evictedObject) delete() {
	o.t.Helper()
	require.NoError(o.t, o.b.Delete(o.t.Context(), object.Ref{Key: o.info.Key}))
}

// put puts bytes at the object's key, as the flush did.
func (o *evictedObject) put(data []byte) object.Info {
	o.t.Helper()
	ctx := o.t.Context()
	id, err := o.b.NewUpload(ctx, o.info.Key, o.info.Meta)
	require.NoError(o.t, err)
	part, err := o.b.PutPart(ctx, o.info.Key, id, 1, data, crc.Sum(data))
	require.NoError(o.t, err)
	info, err := o.b.Complete(ctx, o.info.Key, id, []object.Part{part}, crc.Sum(data), true, object.Condition{})
	require.NoError(o.t, err)
	return info
}

func evictFile(t *testing.T, env []string, b *object.Bucket, name string) *evictedObject {
	t.Helper()
	data := pattern(3<<20, len(name))
	local := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(local, data, 0o600))
	works(t, env, "cp", local, "moraine:///"+name)
	works(t, env, "flush", "--wait", "moraine:///"+name)
	works(t, env, "evict", "--wait", "moraine:///"+name)
	info, err := b.Head(t.Context(), object.Ref{Key: name})
	require.NoError(t, err)
	return &evictedObject{t, b, info, data}
}

func pattern(n, seed int) []byte {
	out := make([]byte, n)
	for i := range out {
		out[i] = byte(i*7 + i>>11 + seed)
	}
	return out
}

// The object of an evicted file is deleted, or replaced, by another program. The
// first reader has it recorded, `cluster status` is critical, and `cluster lost`
// and `fsck` name the file. All are good again when the object is back, or the file
// is removed. fsck finds it by itself, and reports a bucket that does not answer as
// unknown.
func TestAnObjectThatIsGoneIsReported(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 2, ObjectServer: true})
	env := settingsFor(c)
	works(t, env, "cluster", "status", "--wait", "1m")
	b, store := bucketOf(t, c)
	read := evictFile(t, env, b, "read")
	found := evictFile(t, env, b, "found")
	good := objects(t, works(t, env, "fsck", "--json"))[0]
	require.Equal(t, true, good["clean"])
	require.EqualValues(t, 2, good["objects"])

	// A read detects it.
	read.delete()
	failed := invoke(t, env, "cat", "moraine:///read")
	require.NotZero(t, failed.code)
	bad := waitStatus(t, env, "the read has reported it", func(s map[string]any) bool { return s["health"] == "critical" })
	require.EqualValues(t, 1, bad["lost_objects"])
	rows := objects(t, works(t, env, "cluster", "lost", "--json"))
	require.Len(t, rows, 1)
	require.Equal(t, "/read", rows[0]["path"])
	require.Equal(t, "missing", rows[0]["object_state"])
	require.EqualValues(t, 3<<20, objectsIn(rows[0]["ranges"])[0]["bytes"])
	require.Contains(t, works(t, env, "cluster", "lost"), "s3://moraine/read is missing")

	// fsck finds one that no read has detected: another object at the key.
	found.delete()
	found.put(pattern(3<<20, 99))
	o := invoke(t, env, "fsck", "--json")
	require.Equal(t, 3, o.code, o.stdout)
	r := objects(t, o.stdout)[0]
	require.Equal(t, false, r["clean"])
	states := map[string]any{}
	for _, w := range objectsIn(r["bad_objects"]) {
		states[w["path"].(string)] = w["state"]
	}
	require.Equal(t, map[string]any{"/read": "missing", "/found": "differs"}, states)
	require.Len(t, r["lost_files"], 2)
	require.EqualValues(t, 2, waitStatus(t, env, "both", func(map[string]any) bool { return true })["lost_objects"])

	// A bucket that does not answer is unknown, neither good nor bad.
	require.NoError(t, store.Signal(syscall.SIGSTOP))
	o = invoke(t, env, "fsck", "--json")
	require.NoError(t, store.Signal(syscall.SIGCONT))
	require.Equal(t, 3, o.code)
	missed := objectsIn(objects(t, o.stdout)[0]["not_checked"])
	require.Len(t, missed, 1)
	require.Contains(t, missed[0]["why"], "unknown")
	require.EqualValues(t, 0, objects(t, o.stdout)[0]["objects"])

	// One is restored, the file of the other is removed.
	back := read.put(read.data)
	require.Equal(t, read.info.ETag, back.ETag)
	works(t, env, "rm", "moraine:///found")
	waitStatus(t, env, "all is good again", func(s map[string]any) bool { return s["health"] == "green" })
	require.Empty(t, objects(t, works(t, env, "cluster", "lost", "--json")))
	require.Equal(t, string(read.data), works(t, env, "cat", "moraine:///read"))
	again := objects(t, works(t, env, "fsck", "--json"))[0]
	require.Equal(t, true, again["clean"])
	require.Empty(t, again["bad_objects"])
}

// The lost object is only a copy of a file with stripes: the status is degraded, no
// file is lost, and another flush uploads it again.
func TestACopyThatIsGoneIsFlushedAgain(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 1, ObjectServer: true})
	env := settingsFor(c)
	b, _ := bucketOf(t, c)
	local := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(local, pattern(1<<20, 1), 0o600))
	works(t, env, "cp", local, "moraine:///f")
	works(t, env, "flush", "--wait", "moraine:///f")
	require.NoError(t, b.Delete(t.Context(), object.Ref{Key: "f"}))
	require.NotZero(t, invoke(t, env, "evict", "--wait", "moraine:///f").code)
	bad := waitStatus(t, env, "the eviction has reported it", func(s map[string]any) bool { return s["bad_objects"] == 1.0 })
	require.Equal(t, "degraded", bad["health"])
	require.Empty(t, objects(t, works(t, env, "cluster", "lost", "--json")))
	works(t, env, "flush", "--wait", "moraine:///f")
	waitStatus(t, env, "it is there again", func(s map[string]any) bool { return s["bad_objects"] == 0.0 })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := b.Head(ctx, object.Ref{Key: "f"})
	require.NoError(t, err)
	works(t, env, "evict", "--wait", "moraine:///f")
	require.Equal(t, string(pattern(1<<20, 1)), works(t, env, "cat", "moraine:///f"))
}
