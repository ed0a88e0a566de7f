package state_test

import (
	"testing"

	"github.com/morainefs/moraine/transport/wire"
)

// A clone shares whole tables whatever they contain. It rewrites the tables that it cuts, and their
// number is bounded.
func TestCloneIsBounded(t *testing.T) {
	c := newCluster(t, 3).open(nil)
	f, into := c.mkfile(c.root, "f"), c.mkfile(c.root, "into")
	for range 4 { // four full tables
		g := c.grant(f, 1)
		op := &wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_APPEND, Stripes: []*wire.Stripe{stripe(g, 512, 1, 2, 3)}}
		for n := range uint64(256) {
			op.Extents = append(op.Extents, extent(2*n, 2, g, 2*n))
		}
		c.ok(c.commit(op))
	}
	clone := func(n int, r *wire.CloneRange) *wire.MetaResponse {
		op := &wire.Clone{Inode: into, Mode: wire.CommitMode_COMMIT_MODE_REPLACE}
		for range n {
			op.Ranges = append(op.Ranges, r)
		}
		before := c.kv.Sets + c.kv.Deletes
		resp := c.clone(op)
		if wrote := c.kv.Sets + c.kv.Deletes - before; wrote > 2500 {
			t.Errorf("a clone of %d ranges wrote %d keys", n, wrote)
		}
		return resp
	}
	for _, row := range []struct {
		what   string
		ranges int
		r      *wire.CloneRange
		want   string
	}{
		{"whole tables", 128, &wire.CloneRange{Inode: f}, "ok"},
		{"one table more", 129, &wire.CloneRange{Inode: f}, "too large"},
		{"cut tables", 2, &wire.CloneRange{Inode: f, Offset: 1, Length: 511}, "ok"},
		{"one extent more", 3, &wire.CloneRange{Inode: f, Offset: 1, Length: 511}, "too large"},
		{"single extents", 512, &wire.CloneRange{Inode: f, Offset: 511, Length: 1}, "ok"},
		{"too many ranges", 513, &wire.CloneRange{Inode: f, Offset: 511, Length: 1}, "too large"},
	} {
		if got := kind(clone(row.ranges, row.r)); got != row.want {
			t.Errorf("%s: %s, want %s", row.what, got, row.want)
		}
	}
	c.check()
}
