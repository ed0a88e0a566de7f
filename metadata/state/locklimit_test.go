package state_test

import (
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/locks"
	"github.com/morainefs/moraine/transport/wire"
)

// Locks of an ended session, which are not removed yet, take nobody's room: also if they do not exclude
// the new lock.
func TestLocksOfEndedSessionsDoNotCount(t *testing.T) {
	b := newCluster(t, 6)
	first, second := b.open(nil), b.open(nil)
	file := first.ok(first.create(&wire.Create{Parent: first.root, Name: "f", Type: wire.FileType_FILE_TYPE_REGULAR, Mode: 0o644})).GetEntry().GetAttr().Inode
	lock := func(c *client, owner, at uint64) *wire.MetaResponse {
		return c.do(&wire.MetaRequest{Op: &wire.MetaRequest_SetLock{SetLock: &wire.SetLock{Inode: file,
			Lock: &wire.FileLock{Owner: owner, Start: at, End: at + 1}}}})
	}
	for i := range uint64(locks.MaxLocks - 1) {
		first.ok(lock(first, 1, 2*i))
	}
	second.ok(lock(second, 1, 0))
	if k := kind(lock(second, 2, 0)); k != moraine.QuotaExceeded.String() {
		t.Fatalf("one lock too many is answered %q", k)
	}
	b.ok(first.do(&wire.MetaRequest{Op: &wire.MetaRequest_CloseSession{CloseSession: &wire.CloseSession{}}}))
	second.ok(lock(second, 2, 0))
	b.check()
	for i := range uint64(locks.MaxLocks - 2) {
		second.ok(lock(second, 3, 2*i))
	}
	if k := kind(lock(second, 4, 0)); k != moraine.QuotaExceeded.String() {
		t.Fatalf("one lock too many is answered %q", k)
	}
	b.check()
}
