package fuse

import (
	"testing"

	"github.com/morainefs/moraine/client"
	"github.com/stretchr/testify/require"
)

// A Release takes what was locked through its handle, but not what its owner is about to lock through
// another one. That stays recorded, for the Release of the other handle.
func TestAReleaseLeavesWhatARequestWants(t *testing.T) {
	lock := func(owner, start, end uint64) client.FileLock {
		return client.FileLock{Owner: owner, Start: start, End: end}
	}
	var r lockRecord
	r.note(1, lock(7, 0, 10))
	r.note(1, lock(7, 20, 30))
	r.note(1, lock(8, 0, 10))
	require.Equal(t, []uint64{7, 8}, r.owners(1))
	over := r.want(2, lock(7, 5, 25))
	require.Equal(t, []client.FileLock{lock(7, 0, 5), lock(7, 25, 30), lock(8, 0, 10)}, r.take(1))
	require.False(t, r.through(1))
	over()
	require.Equal(t, []client.FileLock{lock(7, 5, 10), lock(7, 20, 25)}, r.take(2))
	require.False(t, r.has(7))
	require.Empty(t, r.wanted)
}
