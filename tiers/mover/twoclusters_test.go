package mover_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// Two clusters that share a bucket and a prefix, and give their objects the same numbers,
// keep what is still referred to at keys of their own.
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
