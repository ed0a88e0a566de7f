package state_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/transport/wire"
)

// A client can use up the IDs, since a grant takes 1,024 at once. When none are left, requests that
// need one are refused and all others still work.
func TestNumbersThatRunOutAreRefused(t *testing.T) {
	b := newCluster(t, 3)
	c := b.open(nil)
	dir := c.mkdir(c.root, "d")
	var files []uint64
	for n := range 11 {
		f := c.mkfile(c.root, fmt.Sprint("f", n))
		first := c.grant(f, 1)
		b.ok(c.commit(&wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_APPEND, Stripes: []*wire.Stripe{stripe(first, 100, 1, 2)}, Extents: []*wire.Extent{extent(0, 100, first, 0)}}))
		files = append(files, f)
	}
	move := func(files ...uint64) *wire.MetaRequest {
		return &wire.MetaRequest{Op: &wire.MetaRequest_QueueMove{QueueMove: &wire.QueueMove{Kind: wire.JobKind_JOB_KIND_FLUSH, Inodes: files}}}
	}
	if err := state.UseUp(b.m, b.kv, 10); err != nil {
		t.Fatal(err)
	}
	last := uint64(0)
	for n := range 30 {
		last = max(last, c.create(&wire.Create{Parent: dir, Name: fmt.Sprint(n), Type: wire.FileType_FILE_TYPE_REGULAR}).GetEntry().GetAttr().GetInode())
	}
	if last&(1<<40-1) != 1<<40-1 {
		t.Errorf("the last file that could be made has number %x", last)
	}
	b.ok(c.do(move(files[:10]...)))
	for what, req := range map[string]*wire.MetaRequest{
		"move":   move(files[10]),
		"create": {Op: &wire.MetaRequest_Create{Create: &wire.Create{Parent: dir, Name: "late", Type: wire.FileType_FILE_TYPE_REGULAR}}},
		"grant":  {Op: &wire.MetaRequest_Grant{Grant: &wire.Grant{Inode: dir, Count: 11}}},
	} {
		if k := kind(c.do(req)); k != "no space" {
			t.Errorf("%s: %s", what, k)
		}
	}
	c.grant(dir, 10) // the last ones
	if k := kind(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Grant{Grant: &wire.Grant{Inode: dir, Count: 1}}})); k != "no space" {
		t.Errorf("a grant of one: %s", k)
	}
	b.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: dir, Name: "0"}}}))
	b.check()
}

// No other request stops a replica in that state either.
func TestNoRequestNeedsANumber(t *testing.T) {
	b := newCluster(t, 3)
	c := b.open(nil)
	h := &hostile{rng: rand.New(rand.NewPCG(3, 2)), numbers: []uint64{c.id}}
	for n := range 20 {
		dir := c.mkdir(c.root, fmt.Sprint("d", n))
		f := c.mkfile(dir, "f")
		first := c.grant(f, 4)
		b.ok(c.commit(&wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_APPEND, Stripes: []*wire.Stripe{stripe(first, 100, 1, 2)}, Extents: []*wire.Extent{extent(0, 100, first, 0)}}))
		h.numbers = append(h.numbers, dir, f, first)
	}
	if err := state.UseUp(b.m, b.kv, 0); err != nil {
		t.Fatal(err)
	}
	last := ""
	defer func() {
		if what := recover(); what != nil {
			t.Fatalf("a request panics: %v\n%.2000s", what, last)
		}
	}()
	answers := map[string]int{}
	for range testseed.Of(1500, 30_000) {
		req := h.request(h.rng.IntN(1 << 16))
		last = req.String()
		answer := kind(c.do(req))
		if answers[answer]++; answer == "session expired" {
			c = b.open(nil)
		}
	}
	t.Logf("answers: %v", answers)
	b.check()
}
