package state_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/content"
	"github.com/morainefs/moraine/transport/wire"
)

// limited says for each stripe of a file, by number, whether a client may read the whole stripe.
func (c *client) limited(t *testing.T, f uint64) (out string) {
	t.Helper()
	page := c.ok(c.extents(f, 0, 0)).GetExtents()
	slices.SortFunc(page.Stripes, func(a, b *wire.Stripe) int { return int(a.Id) - int(b.Id) })
	for _, s := range page.Stripes {
		if slices.Contains(page.Limited, s.Id) {
			out += "-"
		} else {
			out += "+"
		}
	}
	return out
}

// A session confined to a directory may read a whole stripe if the stripe was made for a file in
// its scope, or if its file refers to all of it. Of any other stripe it reads only the ranges that
// its file refers to.
func TestWhoReadsAWholeStripe(t *testing.T) {
	b := newCluster(t, 3)
	c := b.open(nil)
	mine, theirs := c.mkdir(c.root, "mine"), c.mkdir(c.root, "theirs")
	in := b.open(func(op *wire.OpenSession) { op.Scope = "/mine" })
	file := func(dir uint64, name string) uint64 {
		f := c.mkfile(dir, name)
		s := c.grant(f, 1)
		b.ok(c.commit(&wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Level: 3,
			Stripes: []*wire.Stripe{stripe(s, 100, 1, 2, 3)}, Extents: []*wire.Extent{extent(0, 100, s, 0)}}))
		return f
	}
	over := func(f, off, n uint64) {
		s := c.grant(f, 1)
		b.ok(c.commit(&wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_OVERLAY, Level: 3,
			Stripes: []*wire.Stripe{stripe(s, n, 1, 2, 3)}, Extents: []*wire.Extent{extent(off, n, s, 0)}}))
	}
	clone := func(from, off, n uint64, dir uint64, name string) uint64 {
		f := c.mkfile(dir, name)
		b.ok(c.clone(&wire.Clone{Inode: f, Ranges: []*wire.CloneRange{{Inode: from, Offset: off, Length: n}}, Mode: wire.CommitMode_COMMIT_MODE_REPLACE}))
		return f
	}
	want := func(what string, f uint64, want string) {
		t.Helper()
		if got := in.limited(t, f); got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
		if got := c.limited(t, f); strings.Contains(got, "-") {
			t.Errorf("%s, of a session of the root: %s", what, got)
		}
	}
	own, foreign := file(mine, "own"), file(theirs, "foreign")
	want("its own file", own, "+")
	want("a clone of a part of its own", clone(own, 10, 20, mine, "own-part"), "+")
	over(own, 10, 20)
	want("its own file, written over in part", own, "++")
	want("a clone of a part of a foreign file", clone(foreign, 10, 20, mine, "part"), "-")
	whole := clone(foreign, 0, 100, mine, "whole")
	want("a clone of all of it", whole, "+")
	over(whole, 10, 20)
	want("which is written over in part", whole, "-+")
	linked := file(theirs, "linked")
	over(linked, 10, 20)
	b.ok(c.link(linked, mine, "linked"))
	want("a file with a name inside", linked, "++")
	moved := file(theirs, "moved")
	part := clone(moved, 10, 20, mine, "moved-part")
	want("a clone of a part of a file outside", part, "-")
	b.ok(c.rename(&wire.Rename{Parent: theirs, Name: "moved", NewParent: mine, NewName: "moved"}))
	want("which came inside", part, "+")
	b.ok(c.remove(&wire.Remove{Parent: mine, Name: "moved"}))
	want("which was removed", part, "-")
	b.check()
}

// A session may read a whole pack if the nearest directory above all its files is in the session's
// scope. A session with only a file that was renamed away reads just that file's bytes.
func TestWhoReadsAWholePack(t *testing.T) {
	b := newPacking(t)
	dir := b.c.mkdir(b.c.root, "dir")
	sub := b.c.mkdir(dir, "sub")
	other := b.c.mkdir(b.c.root, "other")
	for n, to := range []uint64{dir, sub, dir, sub} {
		name := string([]byte{'f', byte('0' + n)})
		b.ok(b.c.rename(&wire.Rename{Parent: b.c.root, Name: name, NewParent: to, NewName: name}))
	}
	b.begin()
	b.ok(b.commit(b.op()))
	if got := b.packed(); got != "1111" {
		t.Fatalf("packed %s", got)
	}
	if got := b.stripe(b.fresh).Origin; got != moraine.InodeID(dir) {
		t.Errorf("the origin is %v, not %x", got, dir)
	}
	confined := func(scope string) *client { return b.open(func(op *wire.OpenSession) { op.Scope = scope }) }
	in, below, out := confined("/dir"), confined("/dir/sub"), confined("/other")
	if got := in.limited(t, b.files[0]) + in.limited(t, b.files[1]) + below.limited(t, b.files[1]); got != "++-" {
		t.Errorf("in the directories: %s", got)
	}
	b.ok(b.c.rename(&wire.Rename{Parent: dir, Name: "f0", NewParent: other, NewName: "f0"}))
	if got := out.limited(t, b.files[0]) + in.limited(t, b.files[1]); got != "-+" {
		t.Errorf("after a rename: %s", got)
	}
	b.ok(b.finish(""))
	b.check()
}

// The mover packs files below the nearest directory to which a session is confined, or otherwise
// below a directory at depth two.
func TestPackDomain(t *testing.T) {
	b := newCluster(t, 1)
	c := b.open(nil)
	path := []uint64{c.root}
	for _, name := range []string{"a", "b", "c", "d"} {
		path = append(path, c.mkdir(path[len(path)-1], name))
	}
	scopes := func(at ...int) map[moraine.InodeID]bool {
		m := map[moraine.InodeID]bool{}
		for _, n := range at {
			m[moraine.InodeID(path[n])] = true
		}
		return m
	}
	for _, row := range []struct {
		dir    int
		scopes map[moraine.InodeID]bool
		want   int
	}{
		{0, nil, 0}, {1, nil, 1}, {2, nil, 2}, {3, nil, 2}, {4, nil, 2},
		{4, scopes(3), 3}, {4, scopes(1, 4), 4}, {4, scopes(1), 1}, {2, scopes(3), 2}, {3, scopes(4), 2},
	} {
		got, err := content.PackDomain(b.m.View(b.kv), moraine.InodeID(path[row.dir]), row.scopes)
		if err != nil || got != moraine.InodeID(path[row.want]) {
			t.Errorf("depth %d: %v %v, want depth %d", row.dir, got, err, row.want)
		}
	}
}
