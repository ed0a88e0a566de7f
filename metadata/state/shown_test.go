package state_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/names"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// A session confined to a directory may refer to a file that has another name outside, or came from
// there. No answer about the file reveals that place.
func TestNamesOutsideTheScopeAreNotShown(t *testing.T) {
	y := newTier(t)
	team, other := y.c.mkdir(y.c.root, "team"), y.c.mkdir(y.c.root, "other")
	a := y.c.mkdir(team, "a")
	foreign := y.c.mkdir(other, "sekrit")
	linked := y.c.mkfile(a, "linked")
	y.write(linked, 70)
	y.ok(y.c.link(linked, foreign, "sekrit-link"))
	moved := y.c.mkfile(foreign, "sekrit-moved")
	y.write(moved, 80)
	y.ok(y.setPolicy(foreign, &wire.Policy{Scheme: &wire.Scheme{K: 5, M: 3}}))
	y.ok(y.setQuota(foreign, 123_456, 0))
	jobs := y.queue(flushJob, linked, moved)
	y.drain()
	y.rename(foreign, "sekrit-moved", a, "moved")
	tree := y.c.mkdir(foreign, "sekrit-tree")
	jobs = append(jobs, y.queue(flushJob, tree)...)
	y.rename(foreign, "sekrit-tree", a, "tree")
	in := y.open(func(op *wire.OpenSession) { op.Scope = "/team/a" })
	for _, f := range []uint64{linked, moved} {
		y.report(y.objectOf(f), &wire.ObjectCheck{State: missingState, Error: "no such key: sekrit"})
	}
	bad := in.ok(in.read(&wire.MetaRequest{Op: &wire.MetaRequest_ListBadObjects{ListBadObjects: &wire.ListBadObjects{}}}))
	if s := bad.String(); len(bad.GetBadObjects().GetObjects()) != 2 || strings.Contains(s, "sekrit") {
		t.Errorf("bad objects are %s", s)
	}
	y.write(linked, 90)
	y.write(moved, 90)

	reads := map[string]*wire.MetaRequest{
		"walk the root": {Op: &wire.MetaRequest_Walk{Walk: &wire.Walk{Steps: true}}},
		"walk up":       {Op: &wire.MetaRequest_Walk{Walk: &wire.Walk{Path: "tree/../../..", Steps: true}}},
		"walk":          {Op: &wire.MetaRequest_Walk{Walk: &wire.Walk{Path: "linked", Steps: true}}},
		"walk from it":  {Op: &wire.MetaRequest_Walk{Walk: &wire.Walk{From: linked}}},
		"stat the root": {Op: &wire.MetaRequest_GetAttr{GetAttr: &wire.GetAttr{Inode: a}}},
		"lookup":        {Op: &wire.MetaRequest_Lookup{Lookup: &wire.Lookup{Parent: a, Name: "linked"}}},
		"list":          {Op: &wire.MetaRequest_ReadDir{ReadDir: &wire.ReadDir{Inode: a}}},
		"list lost":     {Op: &wire.MetaRequest_ListLost{ListLost: &wire.ListLost{}}},
	}
	for _, f := range []uint64{linked, moved} {
		reads[fmt.Sprint("stat ", f)] = &wire.MetaRequest{Op: &wire.MetaRequest_GetAttr{GetAttr: &wire.GetAttr{Inode: f}}}
		reads[fmt.Sprint("extents ", f)] = &wire.MetaRequest{Op: &wire.MetaRequest_GetExtents{GetExtents: &wire.GetExtents{Inode: f}}}
		reads[fmt.Sprint("usage ", f)] = &wire.MetaRequest{Op: &wire.MetaRequest_GetUsage{GetUsage: &wire.GetUsage{Inode: f}}}
		reads[fmt.Sprint("policy ", f)] = &wire.MetaRequest{Op: &wire.MetaRequest_GetPolicy{GetPolicy: &wire.GetPolicy{Inode: f}}}
		o := y.objectOf(f)
		reads[fmt.Sprint("object ", f)] = &wire.MetaRequest{Op: &wire.MetaRequest_GetObject{GetObject: &wire.GetObject{Object: o.Id}}}
	}
	for _, j := range jobs {
		reads[fmt.Sprint("job ", j.Id)] = &wire.MetaRequest{Op: &wire.MetaRequest_ListJobs{ListJobs: &wire.ListJobs{Id: j.Id}}}
	}
	outside := regexp.MustCompile(fmt.Sprintf(`sekrit|123456|k:5|(parent|usage:\{inode):\s*(%d|%d|%d)\b`, foreign, team, other))
	look := func(what string, resp *wire.MetaResponse) {
		t.Helper()
		if s := in.ok(resp).String(); outside.MatchString(s) {
			t.Errorf("%s shows what is outside: %s", what, s)
		}
	}
	for what, req := range reads {
		look(what, in.read(req))
	}
	for _, req := range []*wire.MetaRequest{
		{Op: &wire.MetaRequest_QueueMove{QueueMove: &wire.QueueMove{Kind: flushJob, Inodes: []uint64{linked, moved, a}}}},
		{Op: &wire.MetaRequest_SetAttr{SetAttr: &wire.SetAttr{Inode: linked, Valid: uint32(wire.SetAttrField_SET_ATTR_MODE), Mode: 0o600}}},
		{Op: &wire.MetaRequest_SetAttr{SetAttr: &wire.SetAttr{Inode: a, Valid: uint32(wire.SetAttrField_SET_ATTR_MODE), Mode: 0o700}}},
		{Op: &wire.MetaRequest_Link{Link: &wire.Link{Inode: linked, Parent: a, Name: "again"}}},
		{Op: &wire.MetaRequest_Clone{Clone: &wire.Clone{Inode: linked, Mode: wire.CommitMode_COMMIT_MODE_APPEND}}},
		{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: a, Name: "linked"}}},
	} {
		look(fmt.Sprintf("%T", req.Op), in.do(req))
	}
	caller := &statepb.Caller{Node: "c1", Scope: "/team/a"}
	if s, err := names.PolicySchemeFor(y.m.View(y.kv), caller, 0, moraine.InodeID(linked)); err != nil || s.K != 0 {
		t.Errorf("the scheme of new stripes is %v, %v", s, err)
	}
	if w := in.walk("moved"); !strings.Contains(w.String(), fmt.Sprint(a)) {
		t.Errorf("the parent of a file is not shown: %v", w)
	}
	y.check()
}
