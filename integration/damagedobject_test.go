package integration_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/tiers/object"
)

// damageRecord flips a bit in the record of an object of a local bucket that does not run.
func damageRecord(t *testing.T, bucket *devcluster.Node, key string) {
	t.Helper()
	sum := sha256.Sum256([]byte(key))
	file := filepath.Join(bucket.Dir, "store", "objects", hex.EncodeToString(sum[:]))
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	b[len(b)-20] ^= 1 // the footer has 16 bytes, the record ends before it
	require.NoError(t, os.WriteFile(file, b, 0o600))
}

// TestADamagedRecordIsReportedAndReplaced: the local bucket cannot read the records of two
// objects any more. It says so when it starts; `fsck`, `cluster status` and `cluster lost` name
// the objects; a flush puts the copy there again, where before it failed for ever.
func TestADamagedRecordIsReportedAndReplaced(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 1, ObjectServer: true})
	env := settingsFor(c)
	b, bucket := bucketOf(t, c)
	evicted := evictFile(t, env, b, "evicted")
	local := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(local, pattern(1<<20, 1), 0o600))
	works(t, env, "cp", local, "moraine:///copy")
	works(t, env, "flush", "--wait", "moraine:///copy")
	works(t, env, "cp", local, "moraine:///changed")
	works(t, env, "flush", "--wait", "moraine:///changed")

	require.NoError(t, bucket.Stop(20*time.Second))
	for _, key := range []string{"evicted", "copy", "changed"} {
		damageRecord(t, bucket, key)
	}
	require.NoError(t, bucket.Start())
	require.NoError(t, bucket.Ready(t.Context()))
	log, err := os.ReadFile(filepath.Join(filepath.Dir(bucket.Dir), "log", devcluster.ObjectServerName+".log"))
	require.NoError(t, err)
	require.Contains(t, string(log), "the record of an object is damaged")
	_, err = b.Head(t.Context(), object.Ref{Key: "copy"})
	require.ErrorIs(t, err, moraine.Corrupt, "what a HEAD cannot say")

	o := invoke(t, env, "fsck", "--json")
	require.Equal(t, 3, o.code, o.stdout)
	states := map[string]any{}
	for _, w := range objectsIn(objects(t, o.stdout)[0]["bad_objects"]) {
		states[w["path"].(string)] = w["state"]
	}
	require.Equal(t, map[string]any{"/evicted": "corrupt", "/copy": "corrupt", "/changed": "corrupt"}, states)
	waitStatus(t, env, "the evicted file is lost", func(s map[string]any) bool { return s["health"] == "critical" })
	rows := objects(t, works(t, env, "cluster", "lost", "--json"))
	require.Len(t, rows, 1)
	require.Equal(t, "/evicted", rows[0]["path"])

	// A copy is put there again, of the same content or of another.
	works(t, env, "flush", "--wait", "moraine:///copy")
	require.NoError(t, os.WriteFile(local, pattern(2<<20, 2), 0o600))
	works(t, env, "cp", local, "moraine:///changed")
	works(t, env, "flush", "--wait", "moraine:///changed")
	for key, size := range map[string]int64{"copy": 1 << 20, "changed": 2 << 20} {
		info, err := b.Head(t.Context(), object.Ref{Key: key})
		require.NoError(t, err)
		require.Equal(t, size, info.Size)
	}
	// The evicted file goes, and its object.
	works(t, env, "rm", "moraine:///evicted")
	waitStatus(t, env, "all is good again", func(s map[string]any) bool { return s["health"] == "green" })
	require.Eventually(t, func() bool {
		_, err := b.Head(t.Context(), object.Ref{Key: evicted.info.Key})
		return errors.Is(err, moraine.NotFound)
	}, 2*time.Minute, time.Second, "the object of the evicted file is deleted")
	aside, err := os.ReadDir(filepath.Join(bucket.Dir, "store", "damaged"))
	require.NoError(t, err)
	require.Len(t, aside, 3, "no damaged file is destroyed")
}
