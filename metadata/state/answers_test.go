package state_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/session"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
	"google.golang.org/protobuf/proto"
)

func createReq(parent uint64, name string) *wire.MetaRequest {
	return &wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{
		Parent: parent, Name: name, Type: wire.FileType_FILE_TYPE_REGULAR, Mode: 0o644, Exclusive: true}}}
}

// numbered sends a request under a number of the caller's choice.
func (c *client) numbered(number, ackedBelow uint64, req *wire.MetaRequest) *wire.MetaResponse {
	c.t.Helper()
	req.Session, req.Number, req.AckedBelow = c.id, number, ackedBelow
	return c.send(req).Response
}

// A retried request gets the first answer and is not applied again, wherever the reply was lost,
// and on every replica.
func TestRepeatsGetTheFirstAnswer(t *testing.T) {
	b := newCluster(t, 3)
	c := b.open(nil)
	first := b.ok(c.numbered(1, 1, createReq(c.root, "f")))
	failed := c.numbered(2, 1, createReq(c.root, "f"))
	if kind(failed) != "already exists" {
		t.Fatalf("second create: %s", kind(failed))
	}
	b.ok(c.numbered(3, 1, &wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: c.root, Name: "f"}}}))
	after := func(where *bench, what string) {
		t.Helper()
		cc := &client{bench: where, id: c.id, root: c.root}
		if again := cc.numbered(1, 1, createReq(c.root, "f")); !proto.Equal(again, first) {
			t.Errorf("%s: the repeated create was answered %v", what, again)
		}
		// The name is free now, but the failure is still kept.
		if again := cc.numbered(2, 1, createReq(c.root, "f")); !proto.Equal(again, failed) {
			t.Errorf("%s: the repeated failure was answered %v", what, again)
		}
		if r := cc.walk("/f"); r.GetWalk().GetFound() {
			t.Errorf("%s: a repeat was applied", what)
		}
		where.check()
	}
	after(b, "same leader")
	// Another replica after a failover: it has the effects of the log and no memory.
	other := *b
	other.m, other.kv = state.New(0), b.kv.Clone()
	after(&other, "after a failover")
	// The same entry holds the request twice: the client sent it to two leaders.
	req := createReq(c.root, "twice")
	req.Session, req.Number, req.AckedBelow = c.id, 4, 1
	cmd := func() *statepb.Command {
		return b.command(&statepb.Command{Caller: &statepb.Caller{Node: b.node}, Op: &statepb.Command_Request{Request: req}})
	}
	res := b.applyAll(cmd(), cmd())
	if !proto.Equal(res[0].Response, res[1].Response) || res[0].Response.GetError() != nil {
		t.Errorf("in one entry: %v and %v", res[0].Response, res[1].Response)
	}
	b.check()
	if *rewriteLogs {
		b.writeLog("v1-answers")
	}
}

// Each row sends one request after the numbers 1 to 3 of the session were answered and 1 was
// acknowledged.
func TestAnswerWindow(t *testing.T) {
	for _, row := range []struct {
		what          string
		number, acked uint64
		want          string
		applied       bool
	}{
		{"the next number", 4, 2, "ok", true},
		{"a number ahead, while earlier ones are under way", 40, 2, "ok", true},
		{"the last number of the window", 2 + session.AnswerWindow - 1, 2, "ok", true},
		{"past the window", 2 + session.AnswerWindow, 2, "busy", false},
		{"past the old window, inside the one that the request itself moves", 2 + session.AnswerWindow, 4, "ok", true},
		{"an acknowledged number", 1, 2, "stale", false},
		{"an acknowledged number that claims nothing", 1, 0, "stale", false},
		{"a mutation without a number", 0, 2, "invalid argument", false},
		{"an acknowledgement of numbers not sent", 5, 1 << 60, "ok", true},
		{"an acknowledgement that goes back", 4, 1, "ok", true},
	} {
		t.Run(row.what, func(t *testing.T) {
			b := newCluster(t, 1)
			c := b.open(nil)
			for n := uint64(1); n <= 3; n++ {
				b.ok(c.numbered(n, min(n, 2), createReq(c.root, fmt.Sprint(n))))
			}
			got := kind(c.numbered(row.number, row.acked, createReq(c.root, "new")))
			if got != row.want {
				t.Errorf("answered %q, want %q", got, row.want)
			}
			if found := c.walk("/new").GetWalk().GetFound(); found != row.applied {
				t.Errorf("applied: %v, want %v", found, row.applied)
			}
			b.check()
		})
	}
}

// An acknowledgement frees kept answers, so that a session of any length keeps at most one window
// of them.
func TestAnswersAreFreed(t *testing.T) {
	b := newCluster(t, 1)
	c := b.open(nil)
	f := c.mkfile(c.root, "f")
	setMode := func() *wire.MetaRequest {
		return &wire.MetaRequest{Op: &wire.MetaRequest_SetAttr{SetAttr: &wire.SetAttr{Inode: f, Valid: 1, Mode: 0o600}}}
	}
	b.ok(c.do(setMode()))
	before := b.kv.Len()
	for range 3000 {
		b.ok(c.do(setMode()))
	}
	if b.kv.Len() != before {
		t.Errorf("%d pairs before, %d after 3,000 acknowledged requests", before, b.kv.Len())
	}
	// A client that acknowledges late frees all answers at once.
	for n := c.number + 1; n <= c.number+1000; n++ {
		b.ok(c.numbered(n, c.number+1, setMode()))
	}
	c.number += 1000
	b.ok(c.do(setMode()))
	if b.kv.Len() != before {
		t.Errorf("%d pairs before, %d after a late acknowledgement", before, b.kv.Len())
	}
	b.check()
}

// After a session expires, every request of it fails, also retried ones, and its belongings are
// gone.
func TestExpiredSession(t *testing.T) {
	b := newCluster(t, 3)
	c := b.open(nil)
	b.ok(c.numbered(1, 1, createReq(c.root, "f")))
	g := b.ok(c.numbered(2, 1, &wire.MetaRequest{Op: &wire.MetaRequest_Grant{Grant: &wire.Grant{Count: 8}}})).GetGrant().GetFirst()
	u := b.ok(c.numbered(3, 1, &wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{Unlinked: true, Type: wire.FileType_FILE_TYPE_REGULAR}}}))
	unlinked := u.GetEntry().GetAttr().GetInode()
	b.ok(c.numbered(4, 1, &wire.MetaRequest{Op: &wire.MetaRequest_Commit{Commit: &wire.Commit{Inode: unlinked, Mode: wire.CommitMode_COMMIT_MODE_APPEND,
		Level: 3, Stripes: []*wire.Stripe{stripe(g, 100, 1, 2, 3)}, Extents: []*wire.Extent{extent(0, 100, g, 0)}}}}))
	expire := &statepb.Command{Op: &statepb.Command_ExpireSessions{ExpireSessions: &statepb.ExpireSessions{Sessions: []uint64{c.id, 77}}}}
	res := b.apply(expire)
	b.ok(res.Response)
	if len(res.Events.SessionsEnded) != 1 || uint64(res.Events.SessionsEnded[0]) != c.id {
		t.Errorf("events: %v", res.Events.SessionsEnded)
	}
	b.check()
	for what, req := range map[string]*wire.MetaRequest{
		"a new mutation":    createReq(c.root, "g"),
		"a commit":          {Op: &wire.MetaRequest_Commit{Commit: &wire.Commit{Inode: unlinked, Mode: wire.CommitMode_COMMIT_MODE_APPEND}}},
		"closing it":        {Op: &wire.MetaRequest_CloseSession{CloseSession: &wire.CloseSession{}}},
		"ending its grants": {Op: &wire.MetaRequest_EndGrant{EndGrant: &wire.EndGrant{First: g}}},
	} {
		if got := kind(c.numbered(9, 1, req)); got != "session expired" {
			t.Errorf("%s: %s", what, got)
		}
	}
	if got := kind(c.numbered(1, 1, createReq(c.root, "f"))); got != "session expired" {
		t.Errorf("a repeat: %s", got)
	}
	n, err := kvtx.ReadCounters(b.m.View(b.kv))
	if err != nil || n.Sessions != 0 || n.Inodes != 2 || n.Stripes != 0 || n.PendingBytes != 3*4096 {
		t.Errorf("counters: %+v %v", n, err)
	}
	// A read under it is refused too.
	resp, err := b.m.Read(b.kv, &statepb.Caller{Node: b.node}, &wire.MetaRequest{Session: c.id, Op: &wire.MetaRequest_GetAttr{GetAttr: &wire.GetAttr{Inode: 1}}})
	if err != nil || kind(resp) != "session expired" {
		t.Errorf("read: %v %v", resp, err)
	}
}

// A session that owns more than one command may remove ends at once; the following ticks remove its
// belongings.
func TestExpiryIsBounded(t *testing.T) {
	b := newCluster(t, 3)
	c := b.open(nil)
	for n := range uint64(600) {
		b.ok(c.numbered(n+1, 1, &wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{Unlinked: true, Type: wire.FileType_FILE_TYPE_REGULAR}}}))
	}
	for n := range uint64(200) {
		b.ok(c.numbered(n+601, 1, &wire.MetaRequest{Op: &wire.MetaRequest_Grant{Grant: &wire.Grant{Count: 8}}}))
	}
	sets := b.kv.Sets + b.kv.Deletes
	b.ok(b.apply(&statepb.Command{Op: &statepb.Command_ExpireSessions{ExpireSessions: &statepb.ExpireSessions{Sessions: []uint64{c.id}}}}).Response)
	if n := b.kv.Sets + b.kv.Deletes - sets; n > 1100 {
		t.Errorf("one command wrote %d keys", n)
	}
	b.check()
	ticks := 0
	for ; ticks < 20; ticks++ {
		b.tick(1000)
		b.check()
		if n, _ := kvtx.ReadCounters(b.m.View(b.kv)); n.Inodes == 1 {
			break
		}
	}
	if ticks == 0 || ticks == 20 {
		t.Errorf("cleaned up after %d ticks", ticks)
	}
}

// A retried OpenSession finds the session that the first one opened.
func TestOpenSessionIsRepeatable(t *testing.T) {
	b := newCluster(t, 1)
	op := &wire.OpenSession{Node: "c1", Scope: "/", Nonce: []byte("0123456789abcdef")}
	open := func(node string, op *wire.OpenSession) *wire.MetaResponse {
		return b.as(node, "client", &wire.MetaRequest{Op: &wire.MetaRequest_OpenSession{OpenSession: op}})
	}
	first, again := open("c1", op), open("c1", op)
	if !proto.Equal(first, again) || first.GetSession().GetSession() == 0 {
		t.Errorf("opened %v, again %v", first, again)
	}
	other := proto.Clone(op).(*wire.OpenSession)
	other.Node = "c2"
	if got := kind(open("c2", other)); got != "permission denied" {
		t.Errorf("another's nonce: %s", got)
	}
	if got := kind(open("c2", op)); got != "permission denied" {
		t.Errorf("another's name: %s", got)
	}
	op.Nonce = nil
	if got := kind(open("c1", op)); got != "invalid argument" {
		t.Errorf("no nonce: %s", got)
	}
	// Only the node that opened a session may use it.
	req := createReq(first.GetSession().GetRoot(), "f")
	req.Session, req.Number = first.GetSession().GetSession(), 1
	if got := kind(b.as("c2", "client", req)); got != "session expired" {
		t.Errorf("another's session: %s", got)
	}
	b.check()
}

// A failed command leaves nothing but its kept answer.
func TestFailureLeavesNothing(t *testing.T) {
	b := newCluster(t, 3)
	c := b.open(nil)
	dir := c.mkdir(c.root, "d")
	c.mkfile(dir, "f")
	u := b.ok(c.create(&wire.Create{Unlinked: true, Type: wire.FileType_FILE_TYPE_REGULAR})).GetEntry().GetAttr().GetInode()
	g := c.grant(0, 4)
	before := b.kv.Clone()
	// The command takes the stripes and lays the extents; only then the link fails.
	resp := c.commit(&wire.Commit{Inode: u, Mode: wire.CommitMode_COMMIT_MODE_APPEND, Level: 3,
		Stripes: []*wire.Stripe{stripe(g, 100, 1, 2, 3)}, Extents: []*wire.Extent{extent(0, 100, g, 0)},
		Link: &wire.LinkTarget{Parent: dir, Name: "f"}})
	if kind(resp) != "already exists" {
		t.Fatalf("commit: %s", kind(resp))
	}
	var changed []string
	have := map[string]string{}
	for _, p := range before.Pairs() {
		have[string(p.Key)] = string(p.Value)
	}
	for _, p := range b.kv.Pairs() {
		if have[string(p.Key)] != string(p.Value) {
			changed = append(changed, fmt.Sprintf("%x", p.Key[:4]))
		}
	}
	// Counters, sum, and the session with its acknowledgement and the answer.
	if want := []string{"00000102", "00000103", "00000800"}; fmt.Sprint(changed) != fmt.Sprint(want) {
		t.Errorf("changed tables %v, want %v", changed, want)
	}
	b.check()
}

// Only the principal that opened a session may use it, whatever node the request names. Two
// sessions never share a number.
func TestASessionIsItsPrincipals(t *testing.T) {
	b := newCluster(t, 1)
	mine, other := bytes.Repeat([]byte{1}, 16), bytes.Repeat([]byte{2}, 16)
	as := func(principal []byte, req *wire.MetaRequest) *wire.MetaResponse {
		return b.apply(&statepb.Command{Caller: &statepb.Caller{Node: "c1", Role: "client", Scope: "/", Principal: principal},
			Op: &statepb.Command_Request{Request: req}}).Response
	}
	open := func(nonce string, drawn uint64) *wire.MetaRequest {
		return &wire.MetaRequest{Op: &wire.MetaRequest_OpenSession{OpenSession: &wire.OpenSession{Node: "c1", Scope: "/", Nonce: []byte(nonce), Drawn: drawn}}}
	}
	id := b.ok(as(mine, open("0123456789abcdef", 1<<40-1))).GetSession().GetSession()
	if moraine.ID(id).Counter() != 1<<40-1 {
		t.Errorf("session %x", id)
	}
	for what, c := range map[string]struct {
		resp *wire.MetaResponse
		want string
	}{
		"its nonce under another":   {as(other, open("0123456789abcdef", 7)), "permission denied"},
		"its nonce under none":      {as(nil, open("0123456789abcdef", 7)), "permission denied"},
		"its number for another":    {as(mine, open("another nonce 16", 1<<40-1)), "already exists"},
		"no number":                 {as(mine, open("another nonce 17", 0)), "ok"}, // the bench draws
		"too long a number":         {as(mine, open("another nonce 18", 1<<40)), "invalid argument"},
		"a change under another":    {as(other, &wire.MetaRequest{Session: id, Number: 1, Op: createReq(uint64(moraine.RootInode), "x").Op}), "session expired"},
		"a change under none":       {as(nil, &wire.MetaRequest{Session: id, Number: 1, Op: createReq(uint64(moraine.RootInode), "x").Op}), "session expired"},
		"a change under its own":    {as(mine, &wire.MetaRequest{Session: id, Number: 1, Op: createReq(uint64(moraine.RootInode), "y").Op}), "ok"},
		"its answer, under another": {as(other, &wire.MetaRequest{Session: id, Number: 1, Op: createReq(uint64(moraine.RootInode), "y").Op}), "session expired"},
		"closing it, under another": {as(other, &wire.MetaRequest{Session: id, Number: 2, Op: &wire.MetaRequest_CloseSession{}}), "session expired"},
	} {
		if got := kind(c.resp); got != c.want {
			t.Errorf("%s: %s, want %s", what, got, c.want)
		}
	}
	read := &wire.MetaRequest{Session: id, Op: &wire.MetaRequest_GetAttr{GetAttr: &wire.GetAttr{Inode: uint64(moraine.RootInode)}}}
	for want, principal := range map[string][]byte{"session expired": other, "ok": mine} {
		resp, err := b.m.Read(b.kv, &statepb.Caller{Node: "c1", Scope: "/", Principal: principal}, read)
		if err != nil {
			t.Fatal(err)
		}
		if got := kind(resp); got != want {
			t.Errorf("read: %s, want %s", got, want)
		}
	}
	b.check()
}

// When a later request says that its caller abandoned a number, a request under that number is not
// applied if it arrives afterwards. If the number had been answered, the caller gets that answer.
// The later request may itself be a retry. The acknowledgement frees the entry.
func TestAbandonedNumbersAreNotApplied(t *testing.T) {
	for _, repeated := range []bool{false, true} {
		b := newCluster(t, 1)
		c := b.open(nil)
		given := func(n, below uint64, name string, given ...uint64) *wire.MetaResponse {
			req := createReq(c.root, name)
			req.Abandoned = given
			return c.numbered(n, below, req)
		}
		first := b.ok(given(3, 1, "3"))
		if repeated {
			b.ok(given(7, 1, "7"))
		}
		b.ok(given(7, 1, "7", 2, 3, 5, 0, 1<<40))
		b.check()
		for _, n := range []uint64{2, 5} {
			if got := kind(given(n, 1, fmt.Sprint(n))); got != "stale" {
				t.Errorf("number %d, given up, was answered %q", n, got)
			}
			if c.walk(fmt.Sprint("/", n)).GetWalk().GetFound() {
				t.Errorf("number %d, given up, was applied", n)
			}
		}
		if again := given(3, 1, "3"); !proto.Equal(again, first) {
			t.Errorf("a number that had an answer was answered %v", again)
		}
		b.ok(given(4, 1, "4"))
		b.ok(given(8, 8, "8", 2)) // 2 is acknowledged, and nothing is kept for it
		b.check()
		if got := kind(given(5, 1, "5")); got != "stale" {
			t.Errorf("an acknowledged number was answered %q", got)
		}
	}
}
