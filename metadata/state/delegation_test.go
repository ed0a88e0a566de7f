package state_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/delegation"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

func leased(op *wire.OpenSession) { op.Leases = true }

func (c *client) delegate(dir uint64, numbers uint32) *wire.DelegateReply {
	c.t.Helper()
	return c.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Delegate{Delegate: &wire.Delegate{Inode: dir, Numbers: numbers}}})).GetDelegate()
}

// batch sends changes and returns the kinds of their results.
func (c *client) batch(ops ...*wire.BatchOp) []string {
	c.t.Helper()
	var kinds []string
	for _, r := range c.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Batch{Batch: &wire.Batch{Ops: ops}}})).GetBatch().GetResults() {
		kinds = append(kinds, kind(&wire.MetaResponse{Error: r.GetError()}))
	}
	return kinds
}

func making(id, parent uint64, name string, typ wire.FileType) *wire.BatchOp {
	return &wire.BatchOp{Inode: id, Op: &wire.BatchOp_Create{Create: &wire.Create{Parent: parent, Name: name, Type: typ, Mode: 0o755}}}
}

func makingFile(id, parent uint64, name string) *wire.BatchOp {
	return making(id, parent, name, wire.FileType_FILE_TYPE_REGULAR)
}

func holdKinds(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("%s: %q, want %q", what, got, want)
	}
}

// Reserved numbers are used once, in rising order, by the session that has them.
func TestReservedNumbersRise(t *testing.T) {
	b := newBench(t)
	c, other := b.open(leased), b.open(leased)
	dir, theirs := c.mkdir(c.root, "d"), c.mkdir(c.root, "o")
	first := c.delegate(dir, 10).First
	foreign := other.delegate(theirs, 10).First
	plain := c.mkfile(c.root, "plain")
	holdKinds(t, "numbers", c.batch(makingFile(first+2, dir, "a"), makingFile(first+2, dir, "b"), makingFile(first+1, dir, "c"), makingFile(foreign, dir, "d"),
		makingFile(plain, dir, "e"), makingFile(plain+1, dir, "f"), makingFile(0, dir, "g"), makingFile(first+3, dir, "a"), makingFile(first+4, dir, "h"), makingFile(first+10, dir, "i")),
		"ok", "invalid argument", "invalid argument", "invalid argument", "invalid argument", "invalid argument", "invalid argument", "already exists", "ok", "invalid argument")
	var starts []uint64
	for i := range 16 {
		starts = append(starts, c.delegate(0, 3).First)
		c.mkfile(c.root, fmt.Sprintf("between%d", i))
	}
	if r := c.delegate(0, 3); starts[14] == 0 || r.Count != 0 {
		t.Fatalf("reservations %v, and then %v: at most 16 are kept", starts, r)
	}
	holdKinds(t, "numbers of kept reservations", c.batch(makingFile(starts[0]+1, dir, "j"), makingFile(starts[1], dir, "k"), makingFile(starts[4], dir, "l"), makingFile(starts[2], dir, "m")),
		"ok", "ok", "ok", "invalid argument")
	if got := kind(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Delegate{Delegate: &wire.Delegate{Numbers: 65_537}}})); got != "invalid argument" {
		t.Fatalf("too many numbers are answered %q", got)
	}
	b.check()
	b.replays()
}

// A session reserves more numbers only as it uses them, so that it cannot use up those of all. Neither
// the use of a late number nor the end of its directories gives it more.
func TestASessionReservesWhatItUses(t *testing.T) {
	b := newBench(t)
	c := b.open(leased)
	dir := c.mkdir(c.root, "d")
	r := c.delegate(dir, 65_536)
	if !r.Delegated || r.Count != 8192 {
		t.Fatalf("the first reservation is %v", r)
	}
	if again := c.delegate(0, 65_536); again.Count != 0 {
		t.Fatalf("a second reservation is %v", again)
	}
	holdKinds(t, "the last number", c.batch(makingFile(r.First+8191, dir, "last")), "ok")
	c.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_EndDelegation{EndDelegation: &wire.EndDelegation{Inodes: []uint64{dir}}}}))
	if r := c.delegate(dir, 65_536); !r.Delegated || r.Count != 2 {
		t.Fatalf("after one number the reservation is %v", r)
	}
	b.check()
	b.replays()
}

// The reservations of a client that makes files without a pause are never refused: it has up to 4,096
// changes in its queue, and reserves twice as many numbers as before, up to 16,384, when a quarter is
// left.
func TestReservationsOfABusyClient(t *testing.T) {
	b := newBench(t)
	c := b.open(leased)
	dir := c.mkdir(c.root, "d")
	var free, queue []uint64
	want, made := uint32(1024), 0
	for made < 40_000 {
		if len(free) < int(want/4) {
			r := c.delegate(dir, want)
			if r.Count == 0 {
				t.Fatalf("the service refuses numbers after %d files", made)
			}
			for i := range uint64(r.Count) {
				free = append(free, r.First+i)
			}
			want = min(2*want, 16_384)
		}
		queue, free, made = append(queue, free[0]), free[1:], made+1
		if len(queue) < 4096 {
			continue
		}
		var ops []*wire.BatchOp
		for _, id := range queue[:512] {
			ops = append(ops, makingFile(id, dir, fmt.Sprint(id)))
		}
		queue = queue[512:]
		for i, kind := range c.batch(ops...) {
			if kind != "ok" {
				t.Fatalf("file %d of a batch: %s", i, kind)
			}
		}
	}
	b.check()
}

// What a hostile session may put in a batch is refused, and changes nothing.
func TestHostileBatches(t *testing.T) {
	b := newBench(t)
	c, confined := b.open(leased), (*client)(nil)
	dir, beside := c.mkdir(c.root, "d"), c.mkdir(c.root, "beside")
	file := c.mkfile(beside, "f")
	confined = b.open(func(op *wire.OpenSession) { op.Leases, op.Scope = true, "/d" })
	first := c.delegate(dir, 100).First
	create := func(change func(*wire.Create)) *wire.BatchOp {
		op := makingFile(first, dir, "x")
		change(op.GetCreate())
		return op
	}
	rename := func(r *wire.Rename) *wire.BatchOp { return &wire.BatchOp{Op: &wire.BatchOp_Rename{Rename: r}} }
	holdKinds(t, "changes", c.batch(
		create(func(op *wire.Create) { op.Unlinked, op.Name = true, "" }),
		create(func(op *wire.Create) { op.Tenant = "t" }),
		create(func(op *wire.Create) { op.Parent = beside }),
		create(func(op *wire.Create) { op.Parent = 1 << 60 }),
		create(func(op *wire.Create) { op.Name = "a/b" }),
		rename(&wire.Rename{Parent: dir, Name: "x", NewParent: beside, NewName: "y"}),
		rename(&wire.Rename{Parent: beside, Name: "f", NewParent: dir, NewName: "y"}),
		rename(&wire.Rename{Parent: dir, Name: "x", NewParent: dir, NewName: "y", Whiteout: true}),
		&wire.BatchOp{Op: &wire.BatchOp_SetAttr{SetAttr: &wire.SetAttr{Inode: file, Valid: 1}}},
		&wire.BatchOp{Op: &wire.BatchOp_Commit{Commit: &wire.Commit{Inode: file, Mode: wire.CommitMode_COMMIT_MODE_REPLACE}}},
		&wire.BatchOp{Op: &wire.BatchOp_Commit{Commit: &wire.Commit{Inode: file, Mode: wire.CommitMode_COMMIT_MODE_OVERLAY}}},
		&wire.BatchOp{Op: &wire.BatchOp_SetAttr{SetAttr: &wire.SetAttr{Inode: dir, Valid: uint32(wire.SetAttrField_SET_ATTR_SIZE)}}},
		&wire.BatchOp{Inode: first},
		&wire.BatchOp{Inode: first, Delegate: true, Op: makingFile(0, dir, "x").Op}),
		"invalid argument", "invalid argument", "stale", "stale", "invalid argument", "stale", "stale", "invalid argument", "stale", "stale", "invalid argument", "invalid argument", "invalid argument", "invalid argument")
	if n := c.attr(dir); n.Nlink != 2 || len(b.ok(c.read(&wire.MetaRequest{Op: &wire.MetaRequest_ReadDir{ReadDir: &wire.ReadDir{Inode: dir}}})).GetReadDir().Entries) != 0 {
		t.Fatalf("refused changes made %v", n)
	}
	holdKinds(t, "a confined session", confined.batch(makingFile(first, beside, "x"), makingFile(first, 1<<60, "x"), makingFile(first, dir, "x")), "stale", "stale", "stale")
	for what, ops := range map[string][]*wire.BatchOp{
		"nothing":  nil,
		"too many": slices.Repeat([]*wire.BatchOp{makingFile(first, dir, "x")}, 513),
	} {
		if got := kind(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Batch{Batch: &wire.Batch{Ops: ops}}})); got != "invalid argument" {
			t.Errorf("%s: %s", what, got)
		}
	}
	var failing []*wire.BatchOp
	for range 512 {
		failing = append(failing, &wire.BatchOp{Op: &wire.BatchOp_Remove{Remove: &wire.Remove{Parent: dir, Name: strings.Repeat("x", 255)}}})
	}
	answer := c.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Batch{Batch: &wire.Batch{Ops: failing}}}))
	if last := answer.GetBatch().Results[511].Error; moraine.Kind(last.Kind) != moraine.NotFound || proto.Size(answer) > 8<<10 {
		t.Errorf("an answer has %d bytes, and %v last", proto.Size(answer), last)
	}
	big := create(func(op *wire.Create) { op.Xattrs = []*wire.Xattr{{Name: "user.x", Value: make([]byte, 1<<20)}} })
	if got := kind(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Batch{Batch: &wire.Batch{Ops: []*wire.BatchOp{big}}}})); got != "too large" {
		t.Errorf("a batch that is too large: %s", got)
	}
	reader := b.open(func(op *wire.OpenSession) { op.Leases, op.ReadOnly = true, true })
	if got := kind(reader.do(&wire.MetaRequest{Op: &wire.MetaRequest_Batch{Batch: &wire.Batch{Ops: []*wire.BatchOp{makingFile(first, dir, "x")}}}})); got != "read only" {
		t.Errorf("a batch of a reader: %s", got)
	}
	b.check()
	b.replays()
}

// The times of what a batch makes are those of the session, within an hour before the entry.
func TestTimesOfABatch(t *testing.T) {
	const hour = int64(3_600_000_000_000)
	b := newBench(t)
	b.wall = 100 * hour
	c := b.open(leased)
	dir := c.mkdir(c.root, "d")
	first := c.delegate(dir, 10).First
	now := b.wall + 1_000_000 // of the batch
	for i, at := range []int64{0, now - 5, now + hour, now - 2*hour} {
		op := makingFile(first+uint64(i), dir, fmt.Sprint(i))
		op.At = at
		now = b.wall + 1_000_000
		want := []int64{now, at, now, now - hour}[i]
		holdKinds(t, "create", c.batch(op), "ok")
		if a := c.attr(first + uint64(i)); a.Mtime != want || a.Ctime != want {
			t.Errorf("at %d: times %d and %d, want %d", at, a.Mtime, a.Ctime, want)
		}
	}
}

// Which directories are not delegated, and to whom.
func TestWhatIsNotDelegated(t *testing.T) {
	b := newBench(t)
	c, other, plain := b.open(leased), b.open(leased), b.open(nil)
	dir, file := c.mkdir(c.root, "d"), c.mkfile(c.root, "f")
	hold := func(who *client, what string, inode uint64, want bool) {
		t.Helper()
		if r := who.delegate(inode, 0); r.Delegated != want || (r.Why == "") != want {
			t.Errorf("%s: %v", what, r)
		}
	}
	if got := kind(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Delegate{Delegate: &wire.Delegate{Inode: file}}})); got != "not a directory" {
		t.Errorf("a file: %s", got)
	}
	hold(plain, "a session without leases", dir, false)
	hold(c, "a directory", dir, true)
	hold(c, "again", dir, true)
	hold(other, "a directory of another session", dir, false)
	c.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_EndDelegation{EndDelegation: &wire.EndDelegation{Inodes: []uint64{dir}}}}))
	b.as("admin", "admin", &wire.MetaRequest{Op: &wire.MetaRequest_SetQuota{SetQuota: &wire.SetQuota{Inode: c.root, Inodes: 1000}}})
	hold(c, "below a quota", c.mkdir(c.root, "limited"), false)
	b.as("admin", "admin", &wire.MetaRequest{Op: &wire.MetaRequest_SetQuota{SetQuota: &wire.SetQuota{Inode: c.root}}})
	hold(c, "after the quota", dir, true)
	c.do(&wire.MetaRequest{Op: &wire.MetaRequest_CloseSession{CloseSession: &wire.CloseSession{}}})
	hold(other, "a directory of a session that has ended", dir, true)
	b.check()
	b.replays()
}

// A directory with a trash is not delegated: removals make entries in it. Below a policy of another
// tenant that is the highest directory of the tenant.
func TestADirectoryWithATrashIsNotDelegated(t *testing.T) {
	b := newBench(t)
	c := b.open(leased)
	tenant := b.ok(c.create(&wire.Create{Parent: c.root, Name: "tenant", Type: wire.FileType_FILE_TYPE_DIRECTORY, Mode: 0o755, Tenant: "t"})).GetEntry().GetAttr().GetInode()
	sub, beside := c.mkdir(tenant, "sub"), c.mkdir(c.root, "beside")
	off, own := c.mkdir(tenant, "off"), c.mkdir(tenant, "own")
	c.ok(c.setTrash(c.root, hourMillis))
	c.ok(c.setTrash(off, 1))
	c.ok(c.setTrash(own, hourMillis))
	for inode, want := range map[uint64]bool{c.root: false, tenant: false, own: false, sub: true, beside: true, off: true} {
		if r := c.delegate(inode, 0); r.Delegated != want || (r.Why == "") != want {
			t.Errorf("inode %d, want %t: %v", inode, want, r)
		}
	}
	f := c.mkfile(sub, "f")
	c.ok(c.remove(&wire.Remove{Parent: sub, Name: "f"}))
	c.in(c.hour("/tenant")+"/sub/f", f)
	c.ok(c.setTrash(c.root, 0))
	if r := c.delegate(tenant, 0); !r.Delegated {
		t.Errorf("without the policy: %s", r.Why)
	}
	b.check()
	b.replays()
}

// The cleanup of a session takes a bounded number of directories with each command. What remains
// delays nobody, and the end of a directory ends its delegation.
func TestDelegationsOfEndedSessions(t *testing.T) {
	b := newBench(t)
	c, other := b.open(leased), b.open(leased)
	top := c.mkdir(c.root, "d")
	first := c.delegate(top, 5000).First
	many := 0
	for n := uint64(0); n < delegation.MaxDirs+10; n += 200 {
		var ops []*wire.BatchOp
		for i := range uint64(200) {
			op := making(first+n+i, top, fmt.Sprint(n+i), wire.FileType_FILE_TYPE_DIRECTORY)
			op.Delegate = true
			ops = append(ops, op)
		}
		for _, r := range c.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Batch{Batch: &wire.Batch{Ops: ops}}})).GetBatch().GetResults() {
			if r.Undelegated {
				many++
			}
		}
	}
	if want := 4200 - (delegation.MaxDirs - 1); many != want {
		t.Fatalf("%d directories were not delegated, want %d", many, want)
	}
	b.check()
	holdKinds(t, "rmdir of a delegated directory", c.batch(&wire.BatchOp{Op: &wire.BatchOp_Remove{Remove: &wire.Remove{Parent: top, Name: "7", Directory: true}}}), "ok")
	b.check()
	c.do(&wire.MetaRequest{Op: &wire.MetaRequest_CloseSession{CloseSession: &wire.CloseSession{}}})
	b.check()
	other.mkfile(first+3000, "met by nobody")
	if r := other.delegate(first+3001, 0); !r.Delegated {
		t.Fatal(r.Why)
	}
	other.ok(other.do(&wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: top, Name: "3001", Directory: true}}}))
	for range 60 {
		b.ok(b.apply(&statepb.Command{Op: &statepb.Command_Tick{Tick: &statepb.Tick{Millis: 1000}}}).Response)
		b.check()
	}
	if n := len(keysOfSession(b, c.id)); n > 0 {
		t.Errorf("%d rows of the session are left", n)
	}
	b.replays()
}

// keysOfSession returns the rows about the delegations of a session.
func keysOfSession(b *bench, id uint64) (rows [][]byte) {
	for _, prefix := range [][]byte{b.m.K.SessionDirs(moraine.SessionID(id)), b.m.K.SessionNumbers(moraine.SessionID(id))} {
		keys, err := b.m.View(b.kv).KeysUnder(prefix, 10)
		if err != nil {
			b.t.Fatal(err)
		}
		rows = append(rows, keys...)
	}
	return rows
}

// A batch brings whole small files: created with their content, or committed later.
func TestABatchBringsContent(t *testing.T) {
	b := newBench(t)
	c := b.open(leased)
	dir := c.mkdir(c.root, "d")
	first := c.delegate(dir, 10).First
	whole := makingFile(first, dir, "whole")
	whole.GetCreate().Content, whole.GetCreate().Exclusive = []byte("content"), true
	commit := &wire.BatchOp{Op: &wire.BatchOp_Commit{Commit: &wire.Commit{Inode: first + 1, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Content: []byte("later content")}}}
	holdKinds(t, "batch", c.batch(whole, makingFile(first+1, dir, "later"), commit), "ok", "ok", "ok")
	for i, size := range []uint64{7, 13} {
		if a := c.attr(first + uint64(i)); a.Size != size || a.Level != uint32(moraine.NVMe) {
			t.Errorf("file %d: %v", i, a)
		}
	}
	holdKinds(t, "removed again", c.batch(&wire.BatchOp{Op: &wire.BatchOp_Remove{Remove: &wire.Remove{Parent: dir, Name: "whole"}}}), "ok")
	b.check()
	b.replays()
}

// The state keeps content that is answered up to a sixteenth past its bound, and says that it is full.
func TestAnsweredContentHasRoomPastTheBound(t *testing.T) {
	b := newBench(t)
	b.m.InlineLimit = 160
	c := b.open(leased)
	dir := c.mkdir(c.root, "d")
	first := c.delegate(dir, 10).First
	var ops []*wire.BatchOp
	for i, size := range []int{160, 5, 5, 1} {
		op := makingFile(first+uint64(i), dir, string(rune('a'+i)))
		op.GetCreate().Content, op.GetCreate().Exclusive, op.Answered = letters(size), true, true
		ops = append(ops, op)
	}
	commit := &wire.Commit{Inode: first + 3, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Content: letters(1)}
	ops = append(ops, &wire.BatchOp{Answered: true, Op: &wire.BatchOp_Commit{Commit: commit}})
	results := c.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Batch{Batch: &wire.Batch{Ops: ops}}})).GetBatch().GetResults()
	want := []wire.BatchResult{{}, {Full: true}, {Full: true}, {Full: true, Empty: true}, {Error: &wire.Error{Kind: uint32(moraine.NoSpace)}}}
	for i, r := range results {
		if r.Full != want[i].Full || r.Empty != want[i].Empty || r.GetError().GetKind() != want[i].GetError().GetKind() {
			t.Errorf("change %d: %v", i, r)
		}
	}
	for i, size := range []uint64{160, 5, 5, 0} {
		if a := c.attr(first + uint64(i)); a.Size != size {
			t.Errorf("file %d: %v", i, a)
		}
	}
	b.check()
	b.replays()
}

// A file whose content the state must not keep is made without it, so that later changes of the batch find
// it.
func TestABatchMakesAFileWhoseContentHasNoRoom(t *testing.T) {
	b := newBench(t)
	b.m.InlineLimit = 50
	c := b.open(leased)
	dir := c.mkdir(c.root, "d")
	first := c.delegate(dir, 10).First
	fits, full := makingFile(first, dir, "a"), makingFile(first+1, dir, "b")
	fits.GetCreate().Content, full.GetCreate().Content = letters(50), letters(1)
	fits.GetCreate().Exclusive, full.GetCreate().Exclusive = true, true
	rename := &wire.BatchOp{Op: &wire.BatchOp_Rename{Rename: &wire.Rename{Parent: dir, Name: "b", NewParent: dir, NewName: "c"}}}
	results := c.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Batch{Batch: &wire.Batch{Ops: []*wire.BatchOp{fits, full, rename}}}})).GetBatch().GetResults()
	for i, r := range results {
		if r.Error != nil || r.Empty != (i == 1) {
			t.Errorf("change %d: %v", i, r)
		}
	}
	if got := c.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_SetAttr{SetAttr: &wire.SetAttr{Inode: first + 1}}})).GetEntry().GetAttr(); got.GetInode() != first+1 || got.GetSize() != 0 {
		t.Errorf("the file without content is %v", got)
	}
	b.check()
	b.replays()
}
