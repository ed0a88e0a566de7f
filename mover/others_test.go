package mover_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/tiers/object"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	evictKind  = wire.JobKind_JOB_KIND_EVICT
	deleteKind = wire.JobKind_JOB_KIND_DELETE_OBJECT
)

// theirs is the tag of an object with the same bytes that another cluster flushed.
var theirs = map[string]string{"moraine-upload": "6f74686572-0000000000000009-0000000000000003-000000000000004d-0000000000000001"}

// allTraits are traits of buckets that must not matter for the rules of ownership.
var allTraits = map[string]object.Traits{
	"with conditions": {WholeCRC: true, IfNoneMatch: true, IfMatch: true, IfMatchDelete: true}, "without": {},
	"versioned": {WholeCRC: true, IfNoneMatch: true, IfMatch: true, IfMatchDelete: true, Versioned: true},
}

// flushed runs test with a file that was flushed, to buckets of all traits.
func flushed(t *testing.T, test func(t *testing.T, l *ledger)) {
	for name, traits := range allTraits {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLedger(t, small)
				l.bucket.Support(traits)
				l.queue(flushKind)
				defer l.start("n1")()
				l.waitIdle(t)
				l.requireFlushed(t)
				test(t, l)
			})
		})
	}
}

// Another cluster has put an object with the same bytes and ETag in the place of ours. The
// object belongs to that cluster, which may have evicted its file to it.
func TestEqualObjectOfAnotherClusterIsNotDeleted(t *testing.T) {
	flushed(t, func(t *testing.T, l *ledger) {
		l.bucket.Take(l.key(), theirs)
		l.queue(deleteKind)
		l.waitIdle(t)
		require.Len(t, l.deleted, 1)
		require.Equal(t, small, l.bucket.Bytes(l.key()))
	})
}

func TestEqualObjectOfAnotherClusterIsNotOverwritten(t *testing.T) {
	flushed(t, func(t *testing.T, l *ledger) {
		l.bucket.Take(l.key(), theirs)
		l.write(filled(777, 5))
		l.queue(flushKind)
		eventually(t, 10*time.Minute, "the flush is refused", l.failed("did not write"))
		require.Equal(t, small, l.bucket.Bytes(l.key()))
	})
}

// The mover evicts nothing to it either: its owner may delete it.
func TestNothingIsEvictedToAnObjectOfAnotherCluster(t *testing.T) {
	flushed(t, func(t *testing.T, l *ledger) {
		l.bucket.Take(l.key(), theirs)
		l.queue(evictKind)
		eventually(t, 10*time.Minute, "the eviction fails", l.failed("not the one that was recorded"))
		require.False(t, l.evicted)
	})
}

// TestOnlyACurrentVersionIsEvictedTo: in a versioned bucket a deleted or replaced version still
// exists, until a lifecycle rule expires it.
func TestOnlyACurrentVersionIsEvictedTo(t *testing.T) {
	for name, change := range map[string]func(l *ledger){
		"deleted":  func(l *ledger) { l.bucket.Remove(l.key()) },
		"replaced": func(l *ledger) { l.bucket.Put(l.key(), []byte("somebody else's")) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLedger(t, small)
				l.bucket.Support(allTraits["versioned"])
				l.queue(flushKind)
				defer l.start("n1")()
				l.waitIdle(t)
				change(l)
				l.queue(evictKind)
				eventually(t, 10*time.Minute, "the eviction fails", l.failed("differs from its record"))
				require.False(t, l.evicted)
			})
		})
	}
}

// TestADeletedObjectUncoversNoOlderVersion: in a versioned bucket the deletion of one version
// would make the one before it current again. A file made later at that path would find it
// there.
func TestADeletedObjectUncoversNoOlderVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(t, small)
		l.bucket.Support(allTraits["versioned"])
		l.queue(flushKind)
		defer l.start("n1")()
		l.waitIdle(t)
		l.write(filled(777, 5))
		l.queue(flushKind)
		l.waitIdle(t)
		l.queue(deleteKind)
		l.waitIdle(t)
		require.Len(t, l.deleted, 1)
		require.Nil(t, l.bucket.Bytes(l.key()))
		// Another file is made at the path.
		l.mu.Lock()
		l.attr.Inode, l.attr.Object = 10, 0
		l.mu.Unlock()
		l.write(filled(333, 6))
		l.queue(flushKind)
		l.waitIdle(t)
		l.requireFlushed(t)
	})
}

// TestADeletionEvaluatesWhatItSaw: another program replaces the object between the check and
// its deletion.
func TestADeletionEvaluatesWhatItSaw(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(t, small)
		l.queue(flushKind)
		defer l.start("n1")()
		l.waitIdle(t)
		l.at(step{"store delete", 0}, func() (func(error) error, error) {
			l.bucket.Put(l.key(), []byte("somebody else's"))
			return nil, nil
		})
		l.queue(deleteKind)
		l.waitIdle(t)
		require.Len(t, l.deleted, 1)
		require.Equal(t, []byte("somebody else's"), l.bucket.Bytes(l.key()))
	})
}

// TestForeignUploadsAreLeftAlone: if the object at the key is foreign, so are the uploads to
// it.
func TestForeignUploadsAreLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(t, small)
		l.bucket.Put(l.key(), []byte("somebody else's"))
		_, err := l.bucket.NewUpload(context.Background(), l.key(), nil)
		require.NoError(t, err)
		l.queue(flushKind)
		defer l.start("n1")()
		eventually(t, 10*time.Minute, "the flush is refused", l.failed("did not write"))
		require.Equal(t, 1, l.bucket.Open())
	})
}
