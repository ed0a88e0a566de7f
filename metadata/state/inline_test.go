package state_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// content commits the whole content of a file, which the state keeps.
func (c *client) content(file uint64, b []byte) *wire.MetaResponse {
	return c.commit(&wire.Commit{Inode: file, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Content: b})
}

// inline reads a file whose bytes are all in the state. A hole reads as zeros.
func (c *client) inline(file uint64) []byte {
	c.t.Helper()
	reply := c.extents(file, 0, 0).GetExtents()
	out := make([]byte, reply.GetAttr().GetSize())
	for _, e := range reply.GetExtents() {
		if e.Inline == 0 || uint64(len(e.Content)) != e.Length || crc.Sum(e.Content) != e.ContentCrc {
			c.t.Fatalf("extent %v is not in the state, or has other bytes than its length and checksum say", e)
		}
		copy(out[e.Offset:], e.Content)
	}
	return out
}

// records returns how many records with content the state has.
func (b *bench) records() (n int) {
	b.t.Helper()
	v := b.m.View(b.kv)
	if err := v.EachIn(v.K.Table(record.TabInline), func(_, _ []byte) (bool, error) { n++; return true, nil }); err != nil {
		b.t.Fatal(err)
	}
	return n
}

func (b *bench) hasStripe(id uint64) bool {
	b.t.Helper()
	s, err := fleet.StripeByID(b.m.View(b.kv), moraine.StripeID(id))
	if err != nil {
		b.t.Fatal(err)
	}
	return s != nil
}

func letters(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = 'a' + byte(i%26)
	}
	return b
}

// TestContentInTheMetadata covers the operations of a file whose content the state has: each reads
// what it must, the state stays sound, and no record outlives its file.
func TestContentInTheMetadata(t *testing.T) {
	size := func(n uint64) func(*client, uint64) *wire.MetaResponse {
		return func(c *client, f uint64) *wire.MetaResponse {
			return c.resize(f, n)
		}
	}
	punch := func(from, to uint64) func(*client, uint64) *wire.MetaResponse {
		return func(c *client, f uint64) *wire.MetaResponse {
			return c.commit(&wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_OVERLAY, PunchFrom: from, PunchTo: to})
		}
	}
	zeros := make([]byte, 100)
	for name, row := range map[string]struct {
		do     func(*client, uint64) *wire.MetaResponse
		want   []byte
		inline uint64
	}{
		"as committed":   {func(c *client, f uint64) *wire.MetaResponse { return c.content(f, letters(10)) }, letters(10), 10},
		"replaced":       {func(c *client, f uint64) *wire.MetaResponse { return c.content(f, letters(moraine.MaxInline)) }, letters(moraine.MaxInline), moraine.MaxInline},
		"cut":            {size(30), letters(30), 30},
		"extended":       {size(120), append(letters(100), zeros[:20]...), 100},
		"emptied":        {size(0), nil, 0},
		"with a hole":    {punch(10, 20), append(append(letters(10), zeros[:10]...), letters(100)[20:]...), 90},
		"all of it hole": {punch(0, 100), zeros, 0},
		"cloned onto itself": {func(c *client, f uint64) *wire.MetaResponse {
			return c.clone(&wire.Clone{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_APPEND, Ranges: []*wire.CloneRange{{Inode: f, Offset: 90, Length: 10}}})
		}, append(letters(100), letters(100)[90:]...), 110},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 3).open(nil)
			f := c.mkfile(c.root, "f")
			a := c.ok(c.content(f, letters(100))).GetCommit().GetAttr()
			if a.Inline != 100 || a.Stored != 100 || a.Size != 100 || moraine.Level(a.Level) != moraine.NVMe {
				t.Fatalf("committed %v", a)
			}
			c.ok(row.do(c, f))
			if got := c.inline(f); !bytes.Equal(got, row.want) {
				t.Errorf("read %q, want %q", got, row.want)
			}
			if a := c.attr(f); a.Inline != row.inline || a.Stored != row.inline {
				t.Errorf("%d bytes are in the metadata and %d are stored, want %d", a.Inline, a.Stored, row.inline)
			}
			c.check()
			c.ok(c.remove(&wire.Remove{Parent: c.root, Name: "f"}))
			if n := c.records(); n != 0 {
				t.Errorf("%d records outlive their file", n)
			}
			c.check()
		})
	}
}

// TestStripesOverContent: stripes are laid over content in the state, and content replaces stripes.
func TestStripesOverContent(t *testing.T) {
	c := newCluster(t, 3).open(nil)
	f := c.mkfile(c.root, "f")
	c.ok(c.content(f, letters(100)))
	lay := func(mode wire.CommitMode, off uint64) uint64 {
		s := c.grant(f, 1)
		c.ok(c.commit(&wire.Commit{Inode: f, Mode: mode, Level: 3, Stripes: []*wire.Stripe{stripe(s, 10, 1, 2, 3)}, Extents: []*wire.Extent{extent(off, 10, s, 0)}}))
		c.check()
		return s
	}
	over, end := lay(wire.CommitMode_COMMIT_MODE_OVERLAY, 50), lay(wire.CommitMode_COMMIT_MODE_APPEND, 0)
	reply := c.extents(f, 0, 0).GetExtents()
	got := ""
	for _, e := range reply.GetExtents() {
		got += fmt.Sprintf("%d+%d %v %s; ", e.Offset, e.Length, e.Stripe != 0, e.Content)
	}
	if want := fmt.Sprintf("0+50 false %s; 50+10 true ; 60+40 false %s; 100+10 true ; ", letters(50), letters(100)[60:]); got != want {
		t.Errorf("the extents are %s, want %s", got, want)
	}
	if a := reply.GetAttr(); a.Inline != 90 || a.Stored != 110 || a.Size != 110 {
		t.Errorf("the file is %v", a)
	}
	c.ok(c.content(f, letters(5)))
	if got := c.inline(f); string(got) != "abcde" || c.hasStripe(over) || c.hasStripe(end) || c.records() != 1 {
		t.Errorf("read %q; %d records", got, c.records())
	}
	c.check()
}

// TestCommitMakesItsFile: one command makes a file with its attributes, content and name, and what is
// refused leaves nothing.
func TestCommitMakesItsFile(t *testing.T) {
	c := newCluster(t, 3).open(nil)
	dir := c.mkdir(c.root, "dir")
	commit := func(name string, change func(*wire.Commit)) *wire.MetaResponse {
		op := &wire.Commit{Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Content: letters(20), Final: true, Link: &wire.LinkTarget{Parent: dir, Name: name},
			NewFile: &wire.NewFile{Mode: 0o640, Uid: 3, Gid: 4, Xattrs: []*wire.Xattr{{Name: "user.a", Value: []byte("b")}}}}
		if change != nil {
			change(op)
		}
		return c.commit(op)
	}
	a := c.ok(commit("f", nil)).GetCommit().GetAttr()
	if a.Size != 20 || a.Inline != 20 || a.Nlink != 1 || a.Mode != 0o640 || a.Uid != 3 || a.Gid != 4 || a.Generation&(1<<56-1) != 2 || !bytes.Equal(c.inline(a.Inode), letters(20)) {
		t.Errorf("made %v", a)
	}
	if got := c.read(&wire.MetaRequest{Op: &wire.MetaRequest_GetXattr{GetXattr: &wire.GetXattr{Inode: a.Inode, Name: "user.a"}}}).GetXattr(); string(got.GetValue()) != "b" {
		t.Errorf("the attribute is %v", got)
	}
	c.check()
	if b := c.ok(commit("f", func(op *wire.Commit) { op.Link.Replace, op.Content = true, nil })).GetCommit().GetAttr(); b.Size != 0 || b.Inode == a.Inode {
		t.Errorf("replaced by %v", b)
	}
	if n := c.records(); n != 0 {
		t.Errorf("%d records outlive their file", n)
	}
	c.check()
	for _, row := range []struct {
		want   string
		change func(*wire.Commit)
	}{
		{"already exists", nil},
		{"invalid argument", func(op *wire.Commit) { op.Link = nil }},
		{"invalid argument", func(op *wire.Commit) { op.Inode = a.Inode }},
		{"invalid argument", func(op *wire.Commit) { op.Mode = wire.CommitMode_COMMIT_MODE_APPEND }},
		{"invalid argument", func(op *wire.Commit) { op.Stripes = []*wire.Stripe{stripe(1, 10, 1, 2, 3)} }},
		{"invalid argument", func(op *wire.Commit) { op.NewFile.Xattrs = append(op.NewFile.Xattrs, op.NewFile.Xattrs[0]) }},
		{"too large", func(op *wire.Commit) { op.Content = letters(moraine.MaxInline + 1) }},
		{"not found", func(op *wire.Commit) { op.Link.Parent = 1 << 40 }},
		{"conflict", func(op *wire.Commit) { op.Link.Name, op.Link.Expect = "g", &wire.Expect{Inode: 9} }},
	} {
		if got := kind(commit("f", row.change)); got != row.want {
			t.Errorf("got %s, want %s", got, row.want)
		}
		c.check()
	}
	if n := c.records(); n != 0 {
		t.Errorf("refused commits left %d records", n)
	}
}

// TestCreateWithContent: one command makes a file with its content and name.
func TestCreateWithContent(t *testing.T) {
	c := newCluster(t, 3).open(nil)
	create := func(name string, change func(*wire.Create)) *wire.MetaResponse {
		op := &wire.Create{Parent: c.root, Name: name, Type: wire.FileType_FILE_TYPE_REGULAR, Mode: 0o644, Exclusive: true, Content: letters(20)}
		if change != nil {
			change(op)
		}
		return c.create(op)
	}
	a := c.ok(create("f", nil)).GetEntry().GetAttr()
	if a.Size != 20 || a.Inline != 20 || moraine.Level(a.Level) != moraine.NVMe || !bytes.Equal(c.inline(a.Inode), letters(20)) {
		t.Errorf("created %v", a)
	}
	for _, row := range []struct {
		name   string
		want   string
		change func(*wire.Create)
	}{
		{"f", "already exists", nil},
		{"shared", "invalid argument", func(op *wire.Create) { op.Exclusive = false }},
		{"dir", "invalid argument", func(op *wire.Create) { op.Type = wire.FileType_FILE_TYPE_DIRECTORY }},
		{"", "invalid argument", func(op *wire.Create) { op.Unlinked, op.Exclusive = true, false }},
		{"long", "too large", func(op *wire.Create) { op.Content = letters(moraine.MaxInline + 1) }},
	} {
		if got := kind(create(row.name, row.change)); got != row.want {
			t.Errorf("create of %q: %s, want %s", row.name, got, row.want)
		}
	}
	c.check()
}

// TestRefusedContent: no commit brings content that the state must not keep, and the limit of the
// state is not passed.
func TestRefusedContent(t *testing.T) {
	b := newCluster(t, 3)
	b.m.InlineLimit = 50
	c := b.open(nil)
	f, dir := c.mkfile(c.root, "f"), c.mkdir(c.root, "d")
	other := b.open(nil)
	hidden := other.unnamed()
	replace := wire.CommitMode_COMMIT_MODE_REPLACE
	s := c.grant(f, 1)
	for _, row := range []struct {
		what, want string
		op         *wire.Commit
	}{
		{"more than a file may have", "too large", &wire.Commit{Inode: f, Mode: replace, Content: letters(moraine.MaxInline + 1)}},
		{"more than the state may have", "no space", &wire.Commit{Inode: f, Mode: replace, Content: letters(51)}},
		{"an overlay", "invalid argument", &wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_OVERLAY, Content: letters(5)}},
		{"an append", "invalid argument", &wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_APPEND, Content: letters(5)}},
		{"stripes", "invalid argument", &wire.Commit{Inode: f, Mode: replace, Content: letters(5), Stripes: []*wire.Stripe{stripe(s, 5, 1, 2, 3)}, Extents: []*wire.Extent{extent(0, 5, s, 0)}}},
		{"an extent of the state", "invalid argument", &wire.Commit{Inode: f, Mode: replace, Extents: []*wire.Extent{{Length: 5, Inline: 1 << 40, Content: letters(5)}}}},
		{"a directory", "is a directory", &wire.Commit{Inode: dir, Mode: replace, Content: letters(5)}},
		{"another generation", "conflict", &wire.Commit{Inode: f, Mode: replace, Content: letters(5), ExpectGeneration: 77}},
		{"another session's file", "permission denied", &wire.Commit{Inode: hidden, Mode: replace, Content: letters(5)}},
	} {
		if got := kind(c.commit(row.op)); got != row.want {
			t.Errorf("%s: %s, want %s", row.what, got, row.want)
		}
	}
	c.ok(c.content(f, letters(50)))
	if got := kind(c.content(c.mkfile(c.root, "g"), letters(1))); got != "no space" {
		t.Errorf("content past the limit: %s", got)
	}
	c.ok(c.content(f, nil))
	if n := c.records(); n != 0 {
		t.Errorf("%d records are left of an emptied file", n)
	}
	c.check()
}

// TestContentIsLinkedOnce: a commit that names a file with content can be sent again under another
// number.
func TestContentIsLinkedOnce(t *testing.T) {
	c := newCluster(t, 3).open(nil)
	f := c.unnamed()
	op := func() *wire.Commit {
		return &wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Content: letters(9), Link: &wire.LinkTarget{Parent: c.root, Name: "f"}}
	}
	first := c.ok(c.commit(op())).GetCommit().GetAttr()
	again := c.ok(c.commit(op())).GetCommit().GetAttr()
	if first.Generation != again.Generation || c.records() != 1 {
		t.Errorf("the second commit made generation %d of %d", again.Generation, first.Generation)
	}
	other := op()
	other.Content = letters(8)
	if got := kind(c.commit(other)); got != "invalid argument" {
		t.Errorf("other content of a file with a name: %s", got)
	}
	c.check()
}
