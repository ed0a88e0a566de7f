package state_test

import (
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/content"
	"github.com/morainefs/moraine/transport/wire"
)

// TestFlushedFilesArePacked: the mover also packs files that are in the bucket. They stay clean:
// nothing is uploaded again, and they can be evicted at once.
func TestFlushedFilesArePacked(t *testing.T) {
	b := newPacking(t)
	b.settle = 60_000
	y := &tier{bench: b.bench, s: &bucket{objects: map[string]string{}, uploads: map[string]upload{}}, c: b.c}
	y.queue(flushJob, b.files...)
	y.drain()
	for _, f := range b.files {
		_, ok, err := content.FindPackable(b.m.View(b.store()), moraine.InodeID(f))
		if err != nil || !ok || b.c.attr(f).Level != uint32(moraine.Object) {
			t.Fatalf("%d at level %d is packable: %v, %v", f, b.c.attr(f).Level, ok, err)
		}
	}
	b.begin()
	b.ok(b.commit(b.op()))
	b.ok(b.finish(""))
	if b.packed() != "1111" {
		t.Fatalf("%s are packed", b.packed())
	}
	b.check()
	for _, f := range b.files {
		if a := b.c.attr(f); a.Level != uint32(moraine.Object) {
			t.Errorf("%d is at level %d", f, a.Level)
		}
	}
	y.evictAll(b.files)
	if b.stripe(b.fresh) != nil {
		t.Error("the stripe lives, and all files are in the bucket")
	}
	b.check()
}

// TestPackedFilesMove: files of one pack are flushed, evicted and staged independently. The other
// files keep the stripe meanwhile, and it dies with the last file.
func TestPackedFilesMove(t *testing.T) {
	b := newPacking(t)
	b.settle = 60_000
	y := &tier{bench: b.bench, s: &bucket{objects: map[string]string{}, uploads: map[string]upload{}}, c: b.c}
	b.begin()
	b.ok(b.commit(b.op()))
	b.ok(b.finish(""))
	y.queue(flushJob, b.files...)
	y.drain()
	y.evictAll(b.files[:2])
	if s := b.stripe(b.fresh); b.packed() != "0011" || s.RefCount != 2 {
		t.Fatalf("after evictions %s have it, %+v", b.packed(), s)
	}
	b.check()
	y.queue(stageJob, b.files[:2]...)
	y.drain()
	for n, f := range b.files[:2] {
		if a := b.c.attr(f); a.Evicted || a.Size != 10*uint64(n+1) {
			t.Fatalf("it came back as %v", a)
		}
	}
	y.evictAll(b.files[2:])
	if b.stripe(b.fresh) != nil {
		t.Fatal("the stripe lives without a file")
	}
	b.check()
	var ranges []*wire.CloneRange
	for _, f := range b.files {
		ranges = append(ranges, &wire.CloneRange{Inode: f})
	}
	b.ok(b.c.clone(&wire.Clone{Inode: b.c.mkfile(b.c.root, "all"), Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Ranges: ranges}))
	b.check()
}
