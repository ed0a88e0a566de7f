package mover_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestADamagedObjectIsReplaced: the store can no longer read its record of an object of ours.
// The next flush replaces it; in an earlier version it failed for ever.
func TestADamagedObjectIsReplaced(t *testing.T) {
	flushed(t, func(t *testing.T, l *ledger) {
		l.bucket.Damage(l.key())
		l.write(filled(777, 5))
		l.queue(flushKind)
		l.waitIdle(t)
		l.requireFlushed(t)
	})
}

// TestADamagedObjectOfNobodyIsRefused: it may be another program's, whose bytes its owner may
// still save. The error says what to do, and the flush succeeds after that.
func TestADamagedObjectOfNobodyIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(t, small)
		l.bucket.Put(l.key(), []byte("somebody else's"))
		l.bucket.Damage(l.key())
		l.queue(flushKind)
		defer l.start("n1")()
		eventually(t, 10*time.Minute, "the flush is refused", l.failed("an object that is damaged is at s3://memory/"+l.key()))
		require.Equal(t, []byte("somebody else's"), l.bucket.Bytes(l.key()))
		require.Zero(t, l.bucket.Open(), "unfinished uploads")
		l.bucket.Remove(l.key())
		l.waitIdle(t)
		l.requireFlushed(t)
	})
}

// TestADamagedObjectIsDeleted: nothing refers to it, and another file may be made at its path.
func TestADamagedObjectIsDeleted(t *testing.T) {
	flushed(t, func(t *testing.T, l *ledger) {
		l.bucket.Damage(l.key())
		l.queue(deleteKind)
		l.waitIdle(t)
		require.Len(t, l.deleted, 1)
		require.Nil(t, l.bucket.Bytes(l.key()))
	})
}
