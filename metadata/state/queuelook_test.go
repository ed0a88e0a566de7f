package state_test

import (
	"fmt"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/transport/wire"
)

// The list of known bad chunks is returned in pages.
func TestBadChunksAreReportedInPages(t *testing.T) {
	b := newCluster(t, 3)
	c := b.open(nil)
	f := c.mkfile(c.root, "f")
	first := c.grant(f, 4)
	op := &wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Level: 3}
	for i := range uint64(4) {
		op.Stripes = append(op.Stripes, stripe(first+i, 10, 1, 2, 3))
		op.Extents = append(op.Extents, extent(10*i, 10, first+i, 0))
	}
	b.ok(c.commit(op))
	b.tellAt(first, 0, 1, 1)
	b.tellAt(first, 2, 3, 1)
	b.tellAt(first+2, 1, 2, 1)
	b.tellAt(first+3, 1, 2, 1)
	for _, want := range []struct {
		from uint64
		page string
	}{{0, fmt.Sprintf("[{%d 5} {%d 2}], on from %d", first, first+2, first+3)}, {first + 1, fmt.Sprintf("[{%d 2} {%d 2}], on from 0", first+2, first+3)},
		{first + 3, fmt.Sprintf("[{%d 2}], on from 0", first+3)}, {first + 4, "[], on from 0"}} {
		page, next, err := fleet.BadChunks(b.m.View(b.kv), moraine.StripeID(want.from), 2)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, s := range page {
			got = append(got, fmt.Sprintf("{%d %d}", uint64(s.Stripe), s.Chunks))
		}
		if now := fmt.Sprintf("%v, on from %d", got, uint64(next)); now != want.page {
			t.Errorf("from %d: %s, want %s", want.from, now, want.page)
		}
	}
}
