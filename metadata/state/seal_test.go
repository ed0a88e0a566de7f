package state_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/optest"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/morainefs/moraine/transport/wire/ops"
)

// sealed is a run with two committed checkpoints, attempt-1/step-10 and step-20, one that is being
// saved, and a client's other files.
type sealed struct {
	*ckptScript
	c                             *client
	run, attempt, dir, part, open uint64 // of step-10; open is the directory of step-30
	index                         uint64
	file, other, unlinked         uint64
}

func newSealed(t *testing.T) *sealed {
	b := &sealed{ckptScript: &ckptScript{bench: newCluster(t, 3), sessions: map[string]*client{}}}
	b.c = b.session("a")
	for _, line := range strings.Split(strings.TrimSpace(`
a open r launch=L1
a begin step=1/10 rank=0 world=1
a seal step=1/10 rank=0
m lease
m commit step=1/10
a begin step=1/20 rank=0 world=1
a seal step=1/20 rank=0
m lease
m commit step=1/20
a begin step=1/30 rank=0 world=2
a seal step=1/30 rank=0`), "\n") {
		who, rest, _ := strings.Cut(line, " ")
		if out := b.ckptScript.run(who, words(rest)); strings.Contains(out, ": ") {
			t.Fatalf("%s: %s", line, out)
		}
	}
	walk := func(path string) uint64 { return b.c.walk(path).GetWalk().GetAttr().GetInode() }
	b.run, b.attempt, b.dir, b.part = walk("/r"), walk("/r/attempt-1"), walk("/r/attempt-1/step-10"), walk("/r/attempt-1/step-10/part-0")
	b.index = walk("/r/attempt-1/step-10/index")
	key := &wire.StepKey{Run: b.run1, Attempt: 1, Step: 30}
	b.open = b.ok(b.c.read(&wire.MetaRequest{Op: &wire.MetaRequest_GetStep{GetStep: &wire.GetStep{Key: key}}})).GetStep().GetStep().GetDir()
	b.file, b.other = b.c.mkfile(b.c.root, "file"), b.c.mkdir(b.c.root, "other")
	id := b.c.grant(0, 1)
	b.ok(b.c.commit(&wire.Commit{Inode: b.file, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Level: uint32(moraine.NVMe),
		Stripes: []*wire.Stripe{stripe(id, 100, 1, 2, 3)}, Extents: []*wire.Extent{extent(0, 100, id, 0)}}))
	b.unlinked = b.ok(b.c.create(&wire.Create{Parent: b.c.root, Type: wire.FileType_FILE_TYPE_REGULAR, Unlinked: true})).GetEntry().GetAttr().GetInode()
	return b
}

// picture is all that a reader sees of the run: entries, attributes, links.
func (b *sealed) picture() string {
	b.t.Helper()
	var out strings.Builder
	for _, dir := range []uint64{b.attempt, b.dir, b.open} {
		fmt.Fprintln(&out, b.c.attr(dir))
		page := b.ok(b.c.read(&wire.MetaRequest{Op: &wire.MetaRequest_ReadDir{ReadDir: &wire.ReadDir{Inode: dir}}})).GetReadDir()
		for _, e := range page.GetEntries() {
			fmt.Fprintln(&out, e.GetName(), e.GetAttr(), b.c.extents(e.GetAttr().GetInode(), 0, 100), b.c.xattr(e.GetAttr().GetInode(), ""))
		}
	}
	resp, err := b.m.Read(b.kv, &statepb.Caller{Node: b.node}, &wire.MetaRequest{Op: &wire.MetaRequest_ListSteps{ListSteps: &wire.ListSteps{Run: b.run1, All: true}}})
	fmt.Fprintln(&out, b.links(), resp, err)
	return out.String()
}

// stripe makes a stripe that the client may commit.
func (b *sealed) stripe() ([]*wire.Stripe, []*wire.Extent) {
	id := b.c.grant(0, 1)
	return []*wire.Stripe{stripe(id, 100, 1, 2, 3)}, []*wire.Extent{extent(0, 100, id, 0)}
}

// attempts lists, for each request, ways to change a checkpoint's content or place.
var attempts = map[string]func(b *sealed) []*wire.MetaRequest{
	"create": func(b *sealed) (out []*wire.MetaRequest) {
		for _, dir := range []uint64{b.dir, b.open} {
			for _, typ := range []wire.FileType{wire.FileType_FILE_TYPE_REGULAR, wire.FileType_FILE_TYPE_DIRECTORY, wire.FileType_FILE_TYPE_SYMLINK} {
				out = append(out, &wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{Parent: dir, Name: "new", Type: typ, Target: "x"}}})
			}
		}
		return out
	},
	"rename": func(b *sealed) (out []*wire.MetaRequest) {
		for _, r := range []*wire.Rename{
			{Parent: b.dir, Name: "part-0", NewParent: b.dir, NewName: "part-1"},
			{Parent: b.dir, Name: "part-0", NewParent: b.other, NewName: "part-0"},
			{Parent: b.dir, Name: "index", NewParent: b.other, NewName: "index"},
			{Parent: b.dir, Name: "part-0", NewParent: b.dir, NewName: "index", Exchange: true},
			{Parent: b.dir, Name: "part-0", NewParent: b.c.root, NewName: "file", Exchange: true},
			{Parent: b.c.root, Name: "file", NewParent: b.dir, NewName: "part-0"},
			{Parent: b.c.root, Name: "file", NewParent: b.dir, NewName: "part-0", Keep: true},
			{Parent: b.c.root, Name: "file", NewParent: b.dir, NewName: "new"},
			{Parent: b.c.root, Name: "other", NewParent: b.dir, NewName: "new"},
			{Parent: b.attempt, Name: "step-10", NewParent: b.attempt, NewName: "step-11"},
			{Parent: b.attempt, Name: "step-10", NewParent: b.other, NewName: "step-10", Force: true},
			{Parent: b.attempt, Name: "step-10", NewParent: b.attempt, NewName: "step-20", Exchange: true, Force: true},
			{Parent: b.attempt, Name: "step-10", NewParent: b.c.root, NewName: "other", Exchange: true},
			{Parent: b.run, Name: "attempt-1", NewParent: b.run, NewName: "attempt-2"},
			{Parent: b.run, Name: "attempt-1", NewParent: b.other, NewName: "attempt-1", Force: true},
			{Parent: b.c.root, Name: "r", NewParent: b.c.root, NewName: "s"},
			{Parent: b.c.root, Name: "r", NewParent: b.other, NewName: "s"},
			{Parent: b.c.root, Name: "other", NewParent: b.c.root, NewName: "r", Exchange: true},
			{Parent: b.run, Name: "latest", NewParent: b.run, NewName: "before"},
			{Parent: b.c.root, Name: "file", NewParent: b.run, NewName: "latest"},
		} {
			out = append(out, &wire.MetaRequest{Op: &wire.MetaRequest_Rename{Rename: r}})
		}
		return out
	},
	"remove": func(b *sealed) (out []*wire.MetaRequest) {
		for _, r := range []*wire.Remove{
			{Parent: b.dir, Name: "part-0"}, {Parent: b.dir, Name: "part-0", Keep: true},
			{Parent: b.open, Name: "part-0"}, {Parent: b.attempt, Name: "step-10", Directory: true},
			{Parent: b.run, Name: "latest"}, {Parent: b.run, Name: "step-10"},
		} {
			out = append(out, &wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: r}})
		}
		return out
	},
	"remove_tree": func(b *sealed) (out []*wire.MetaRequest) {
		for _, r := range []*wire.RemoveTree{{Parent: b.run, Name: "attempt-1"}, {Parent: b.run, Name: "attempt-1", Force: true}, {Parent: b.c.root, Name: "r"}} {
			out = append(out, &wire.MetaRequest{Op: &wire.MetaRequest_RemoveTree{RemoveTree: r}})
		}
		return out
	},
	"set_attr": func(b *sealed) (out []*wire.MetaRequest) {
		for _, inode := range []uint64{b.dir, b.part, b.index, b.open} {
			for _, f := range []wire.SetAttrField{wire.SetAttrField_SET_ATTR_MODE, wire.SetAttrField_SET_ATTR_UID, wire.SetAttrField_SET_ATTR_GID,
				wire.SetAttrField_SET_ATTR_SIZE, wire.SetAttrField_SET_ATTR_ATIME, wire.SetAttrField_SET_ATTR_MTIME} {
				if f == wire.SetAttrField_SET_ATTR_SIZE && inode != b.part && inode != b.index {
					continue
				}
				for _, size := range []uint64{0, 50, 1000} {
					out = append(out, &wire.MetaRequest{Op: &wire.MetaRequest_SetAttr{SetAttr: &wire.SetAttr{Inode: inode, Valid: uint32(f), Size: size, Mode: 0o700, Uid: 7, Gid: 7}}})
				}
			}
		}
		return out
	},
	"link": func(b *sealed) []*wire.MetaRequest {
		return []*wire.MetaRequest{
			{Op: &wire.MetaRequest_Link{Link: &wire.Link{Inode: b.part, Parent: b.other, Name: "new"}}},
			{Op: &wire.MetaRequest_Link{Link: &wire.Link{Inode: b.part, Parent: b.dir, Name: "new"}}},
			{Op: &wire.MetaRequest_Link{Link: &wire.Link{Inode: b.file, Parent: b.dir, Name: "new"}}},
			{Op: &wire.MetaRequest_Link{Link: &wire.Link{Inode: b.unlinked, Parent: b.dir, Name: "new"}}},
			{Op: &wire.MetaRequest_Link{Link: &wire.Link{Inode: b.unlinked, Parent: b.open, Name: "new"}}},
		}
	},
	"set_xattr": func(b *sealed) (out []*wire.MetaRequest) {
		for _, inode := range []uint64{b.dir, b.part, b.open} {
			out = append(out, &wire.MetaRequest{Op: &wire.MetaRequest_SetXattr{SetXattr: &wire.SetXattr{Inode: inode, Name: "user.x", Value: []byte("y")}}})
		}
		return out
	},
	"commit": func(b *sealed) (out []*wire.MetaRequest) {
		for _, mode := range []wire.CommitMode{wire.CommitMode_COMMIT_MODE_OVERLAY, wire.CommitMode_COMMIT_MODE_REPLACE, wire.CommitMode_COMMIT_MODE_APPEND} {
			stripes, extents := b.stripe()
			out = append(out, &wire.MetaRequest{Op: &wire.MetaRequest_Commit{Commit: &wire.Commit{Inode: b.part, Mode: mode, Stripes: stripes, Extents: extents}}},
				&wire.MetaRequest{Op: &wire.MetaRequest_Commit{Commit: &wire.Commit{Inode: b.part, Mode: mode, Size: 1000}}})
		}
		for _, l := range []*wire.LinkTarget{{Parent: b.dir, Name: "new"}, {Parent: b.dir, Name: "part-0", Replace: true}, {Parent: b.dir, Name: "index", Replace: true}, {Parent: b.open, Name: "new"}} {
			stripes, extents := b.stripe()
			out = append(out, &wire.MetaRequest{Op: &wire.MetaRequest_Commit{Commit: &wire.Commit{Inode: b.unlinked, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Stripes: stripes, Extents: extents, Link: l}}})
		}
		return out
	},
	"clone": func(b *sealed) []*wire.MetaRequest {
		ranges := []*wire.CloneRange{{Inode: b.file}}
		clone := func(inode uint64, mode wire.CommitMode, l *wire.LinkTarget) *wire.MetaRequest {
			return &wire.MetaRequest{Op: &wire.MetaRequest_Clone{Clone: &wire.Clone{Inode: inode, Mode: mode, Ranges: ranges, Link: l}}}
		}
		return []*wire.MetaRequest{
			clone(b.part, wire.CommitMode_COMMIT_MODE_REPLACE, nil), clone(b.part, wire.CommitMode_COMMIT_MODE_APPEND, nil),
			clone(b.unlinked, wire.CommitMode_COMMIT_MODE_REPLACE, &wire.LinkTarget{Parent: b.dir, Name: "new"}),
			clone(b.unlinked, wire.CommitMode_COMMIT_MODE_REPLACE, &wire.LinkTarget{Parent: b.dir, Name: "part-0", Replace: true}),
		}
	},
	"clone_tree": func(b *sealed) []*wire.MetaRequest {
		return []*wire.MetaRequest{{Op: &wire.MetaRequest_CloneTree{CloneTree: &wire.CloneTree{Inode: b.other, Parent: b.dir, Name: "new"}}}}
	},
	"concat": func(b *sealed) []*wire.MetaRequest {
		concat := func(l *wire.LinkTarget, consume uint64) *wire.MetaRequest {
			return &wire.MetaRequest{Op: &wire.MetaRequest_Concat{Concat: &wire.Concat{Inode: b.unlinked, Ranges: []*wire.CloneRange{{Inode: b.file}}, Link: l, Consume: consume}}}
		}
		return []*wire.MetaRequest{
			concat(&wire.LinkTarget{Parent: b.dir, Name: "new"}, 0), concat(&wire.LinkTarget{Parent: b.dir, Name: "part-0", Replace: true}, 0),
			concat(&wire.LinkTarget{Parent: b.other, Name: "new"}, b.dir), concat(&wire.LinkTarget{Parent: b.other, Name: "new"}, b.attempt),
			concat(&wire.LinkTarget{Parent: b.other, Name: "new"}, b.run),
		}
	},
	"adopt_step": func(b *sealed) []*wire.MetaRequest {
		return []*wire.MetaRequest{{Op: &wire.MetaRequest_AdoptStep{AdoptStep: &wire.AdoptStep{Dir: b.other, Parent: b.dir, Name: "nested", Format: dcp}}}}
	},
	"open_run": func(b *sealed) []*wire.MetaRequest {
		return []*wire.MetaRequest{{Op: &wire.MetaRequest_OpenRun{OpenRun: &wire.OpenRun{Parent: b.dir, Name: "nested", Launch: "L9"}}}}
	},
}

// TestNoRequestChangesACheckpoint tries each command on a committed checkpoint and on one that is
// being saved. It fails if a new command is neither tried nor has a reason in package optest.
func TestNoRequestChangesACheckpoint(t *testing.T) {
	b := newSealed(t)
	before := b.picture()
	tried := 0
	for _, o := range ops.All() {
		if o.Effect != wire.Operation_COMMAND {
			continue
		}
		try := attempts[o.Name]
		if (try == nil) == (optest.Requests[o.Name].Sealed == "") {
			t.Errorf("%s must either be tried on a checkpoint here, or internal/optest must say in Sealed why it cannot change one", o.Name)
		}
		if try == nil {
			continue
		}
		for _, req := range try(b) {
			tried++
			if got := kind(b.c.do(req)); got != "immutable" {
				t.Errorf("%v: %s", req, got)
			}
			if after := b.picture(); after != before {
				t.Errorf("%v changed a checkpoint: before\n%s\nafter\n%s", req, before, after)
				before = after
			}
		}
	}
	t.Logf("%d requests were refused", tried)
	b.check()
	b.replays()
}

// TestACheckpointKeepsWhatItSealed: the last rank's seal and the commit find the sealed content,
// whatever a client that guesses numbers does to the files in between. A seal refuses files that
// others can still change.
func TestACheckpointKeepsWhatItSealed(t *testing.T) {
	b := newSealed(t)
	linked := b.ok(b.c.create(&wire.Create{Parent: b.c.root, Type: wire.FileType_FILE_TYPE_REGULAR, Unlinked: true})).GetEntry().GetAttr().GetInode()
	b.ok(b.c.link(linked, b.other, "name"))
	seal := func(inode uint64) string {
		return kind(b.c.do(&wire.MetaRequest{Op: &wire.MetaRequest_SealPart{SealPart: &wire.SealPart{Key: &wire.StepKey{Run: b.run1, Attempt: 1, Step: 30}, Rank: 1,
			Digest: make([]byte, 32), Files: []*wire.PartFile{{Inode: inode, Name: "part-1"}}}}}))
	}
	b.ckptScript.run("a", words("begin step=1/30 rank=1 world=2"))
	if got := seal(linked); got != "invalid argument" {
		t.Errorf("a file with a name was sealed: %s", got)
	}
	// A file that lost its name while it was open stays sealed.
	b.ok(b.c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: b.other, Name: "name", Keep: true}}}))
	if got := seal(linked); got != "ok" {
		t.Errorf("an unlinked file was not sealed: %s", got)
	}
	stripes, extents := b.stripe()
	if got := kind(b.c.commit(&wire.Commit{Inode: linked, Mode: wire.CommitMode_COMMIT_MODE_APPEND, Stripes: stripes, Extents: extents})); got != "immutable" {
		t.Errorf("a handle from before the seal wrote: %s", got)
	}
	b.ckptScript.run("m", words("lease"))
	if out := b.ckptScript.run("m", words("commit step=1/30")); !strings.Contains(out, "committed") {
		t.Error(out)
	}
	b.check()
}
