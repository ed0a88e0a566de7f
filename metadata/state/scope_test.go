package state_test

import (
	"fmt"
	"testing"

	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// A session gets at most what its holder's certificate grants; the same holds for a request without
// a session.
func TestCertificateBoundsTheSession(t *testing.T) {
	b := newCluster(t, 1)
	admin := b.open(nil)
	home := admin.mkdir(admin.root, "home")
	mine := admin.mkdir(home, "mine")
	secret := admin.mkfile(home, "secret")
	b.ok(admin.content(secret, letters(100)))
	open := func(caller *statepb.Caller, op *wire.OpenSession) *wire.MetaResponse {
		op.Node, op.Nonce = caller.Node, fmt.Appendf(nil, "%016d", b.index)
		return b.apply(&statepb.Command{Caller: caller, Op: &statepb.Command_Request{
			Request: &wire.MetaRequest{Op: &wire.MetaRequest_OpenSession{OpenSession: op}}}}).Response
	}
	for _, row := range []struct {
		certificate, asked, want string
	}{
		{"/home/mine", "/home/mine", "ok"},
		{"/home", "/home/mine", "ok"},
		{"", "/home", "ok"},
		{"/", "", "ok"},
		{"/home/mine", "/home", "permission denied"},
		{"/home/mine", "/", "permission denied"},
		{"/home/mine", "/home/mineral", "permission denied"},
		{"/home", "/home/gone", "not found"},
	} {
		resp := open(&statepb.Caller{Node: "c9", Scope: row.certificate}, &wire.OpenSession{Scope: row.asked})
		if got := kind(resp); got != row.want {
			t.Errorf("certificate for %q asks for %q: %s, want %s", row.certificate, row.asked, got, row.want)
		}
	}

	caller := &statepb.Caller{Node: "c1", Scope: "/home/mine", Squash: true}
	r := b.ok(open(caller, &wire.OpenSession{Scope: "/home/mine"})).GetSession()
	if r.GetRoot() != mine {
		t.Fatalf("root is %x, want %x", r.GetRoot(), mine)
	}
	c := &client{bench: b, id: r.GetSession(), root: r.GetRoot()}
	if uid := b.ok(c.create(&wire.Create{Parent: mine, Name: "f", Type: wire.FileType_FILE_TYPE_REGULAR})).GetEntry().GetAttr().GetUid(); uid != 65534 {
		t.Errorf("root makes files as %d", uid)
	}
	for what, req := range map[string]*wire.MetaRequest{
		"create above":      createReq(home, "x"),
		"create in another": createReq(admin.root, "x"),
		"truncate":          {Op: &wire.MetaRequest_SetAttr{SetAttr: &wire.SetAttr{Inode: secret, Valid: 8}}},
		"rename into":       {Op: &wire.MetaRequest_Rename{Rename: &wire.Rename{Parent: home, Name: "secret", NewParent: mine, NewName: "s"}}},
		"rename out of":     {Op: &wire.MetaRequest_Rename{Rename: &wire.Rename{Parent: mine, Name: "f", NewParent: home, NewName: "f"}}},
		"remove":            {Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: home, Name: "secret"}}},
		"grant":             {Op: &wire.MetaRequest_Grant{Grant: &wire.Grant{Inode: secret, Count: 1}}},
		"commit":            {Op: &wire.MetaRequest_Commit{Commit: &wire.Commit{Inode: secret, Mode: wire.CommitMode_COMMIT_MODE_APPEND}}},
	} {
		if got := kind(c.do(req)); got != "not found" {
			t.Errorf("%s: %s", what, got)
		}
	}
	own := b.ok(c.create(&wire.Create{Parent: mine, Name: "own", Type: wire.FileType_FILE_TYPE_REGULAR})).GetEntry().GetAttr().GetInode()
	b.ok(c.content(own, letters(10)))
	files := b.ok(c.read(&wire.MetaRequest{Op: &wire.MetaRequest_GetExtents{GetExtents: &wire.GetExtents{Inode: own, Also: []uint64{secret, own, home, 1 << 40}}}})).GetExtents()
	if len(files.Also) != 1 || files.Also[0].Inode != own || string(files.Also[0].Extents[0].Content) != string(letters(10)) {
		t.Errorf("content of other files: %v", files.Also)
	}
	dirs := b.ok(c.read(&wire.MetaRequest{Op: &wire.MetaRequest_ReadDir{ReadDir: &wire.ReadDir{Inode: mine, Also: []uint64{home, own, 1 << 40}}}})).GetReadDir()
	if len(dirs.Also) != 0 {
		t.Errorf("other directories: %v", dirs.Also)
	}
	for what, req := range map[string]*wire.MetaRequest{
		"stat":    {Op: &wire.MetaRequest_GetAttr{GetAttr: &wire.GetAttr{Inode: secret}}},
		"lookup":  {Op: &wire.MetaRequest_Lookup{Lookup: &wire.Lookup{Parent: home, Name: "secret"}}},
		"readdir": {Op: &wire.MetaRequest_ReadDir{ReadDir: &wire.ReadDir{Inode: home}}},
		"extents": {Op: &wire.MetaRequest_GetExtents{GetExtents: &wire.GetExtents{Inode: secret}}},
		"walk":    {Op: &wire.MetaRequest_Walk{Walk: &wire.Walk{From: admin.root, Path: "home/secret"}}},
	} {
		if got := kind(c.read(req)); got != "not found" {
			t.Errorf("%s: %s", what, got)
		}
		// Without a session the certificate also limits the read.
		req.Session = 0
		resp, err := b.m.Read(b.kv, caller, req)
		if err != nil || kind(resp) != "not found" {
			t.Errorf("%s without a session: %v %v", what, resp, err)
		}
	}
	b.check()
}
