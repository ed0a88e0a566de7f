package mover_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/tiers/object"
	"github.com/morainefs/moraine/transport/wire"
)

// Two clusters that share a bucket and a prefix, and give their objects the same numbers, keep
// objects that are still in use at separate keys.
func TestKeptObjectsOfTwoClusters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := newLedger(t, small), newLedger(t, filled(len(small), 8))
		second.bucket, second.path, second.cluster = first.bucket, "dir/other", []byte("a second cluster")
		for i, l := range []*ledger{first, second} {
			l.queue(flushKind)
			defer l.start("n1")()
			l.waitIdle(t)
			l.write(filled(777, uint64(i)))
			l.mu.Lock()
			l.keep = true
			l.mu.Unlock()
			l.queue(flushKind)
			l.waitIdle(t)
		}
		require.True(t, first.objects[100].Kept)
		require.True(t, second.objects[100].Kept)
		require.Equal(t, small, first.bucket.Bytes(first.objects[100].Key), "the first cluster's object")
		require.Equal(t, filled(len(small), 8), first.bucket.Bytes(second.objects[100].Key))
	})
}

// Two clusters that flush a file with the same bytes to the same key make objects with the same
// ETag. Only the tag says whose it is: the second flush must not record the first one's object,
// whose owner may delete it.
func TestEqualBytesOfAnotherClusterAreNotTakenForOurs(t *testing.T) {
	for name, tag := range map[string]map[string]string{"of another cluster": {"moraine-upload": "another"}, "of somebody else": nil} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLedger(t, small)
				sum := crc.Sum(small)
				id, err := l.bucket.NewUpload(t.Context(), l.key(), tag)
				require.NoError(t, err)
				part, err := l.bucket.PutPart(t.Context(), l.key(), id, 1, small, sum)
				require.NoError(t, err)
				info, err := l.bucket.Complete(t.Context(), l.key(), id, []object.Part{part}, sum, true, object.Condition{})
				require.NoError(t, err)
				l.intent = &wire.ObjectIntent{Kind: wire.IntentKind_INTENT_KIND_UPLOAD, Key: l.key(), Generation: 3, UploadId: "upload-gone",
					Completing: true, Etag: info.ETag, Size: uint64(len(small)), Crc: sum}
				l.queue(flushKind)
				defer l.start("n1")()
				eventually(t, 10*time.Minute, "the flush is refused", l.failed("did not write"))
				require.Zero(t, l.file().Object)
			})
		})
	}
}
