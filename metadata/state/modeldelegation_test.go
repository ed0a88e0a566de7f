package state_test

import (
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
	"google.golang.org/protobuf/proto"
)

// stepDelegate delegates a directory to a client, which sends a batch. Meanwhile what another client
// requests there has no effect. Then the delegation ends.
func (m *model) stepDelegate(c, other *client) {
	var dirs []*modelNode
	for _, n := range m.nodes {
		if isDir(n) && n.names > 0 {
			dirs = append(dirs, n)
		}
	}
	dir := dirs[m.delegationDice.IntN(len(dirs))]
	resp := m.replicate(c, c.request(&wire.MetaRequest{Op: &wire.MetaRequest_Delegate{Delegate: &wire.Delegate{Inode: dir.id, Numbers: 20}}}))
	if kind(resp) == "not found" { // in a tree that is being removed
		return
	}
	m.expect(resp, "ok", "delegate")
	if r := resp.GetDelegate(); !r.Delegated {
		if len(m.quotas) == 0 {
			m.t.Fatalf("directory %x is not delegated: %s", dir.id, r.Why)
		}
		return
	}
	m.stepBatch(c, dir, resp.GetDelegate().First)
	if c != other {
		meets := m.applyAll(m.command(&statepb.Command{Caller: &statepb.Caller{Node: other.node},
			Op: &statepb.Command_Request{Request: other.request(&wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{
				Parent: dir.id, Name: "met", Type: wire.FileType_FILE_TYPE_REGULAR}}})}}))[0]
		if len(meets.Met) != 1 || uint64(meets.Met[0].Dir) != dir.id || uint64(meets.Met[0].Session) != c.id || len(meets.Touched) > 0 {
			m.t.Fatalf("a create in a delegated directory gives %v", meets)
		}
	}
	if m.delegationDice.IntN(2) == 0 {
		m.expect(m.replicate(c, c.request(&wire.MetaRequest{Op: &wire.MetaRequest_EndDelegation{EndDelegation: &wire.EndDelegation{Inodes: []uint64{dir.id}}}})), "ok", "end delegation")
	} else {
		m.expect(m.applyBoth(&statepb.Command{Op: &statepb.Command_RevokeDelegation{RevokeDelegation: &statepb.RevokeDelegation{Inode: dir.id, Session: c.id}}}), "ok", "revoke delegation")
	}
	late := m.replicate(c, c.request(&wire.MetaRequest{Op: &wire.MetaRequest_Batch{Batch: &wire.Batch{Ops: []*wire.BatchOp{
		{Op: &wire.BatchOp_Remove{Remove: &wire.Remove{Parent: dir.id, Name: "a"}}}}}}}))
	if e := late.GetBatch().GetResults()[0].GetError(); kind(&wire.MetaResponse{Error: e}) != "stale" {
		m.t.Fatalf("a change after the delegation: %v", e)
	}
}

// stepBatch sends a batch of random changes of files in a directory, some of which fail.
func (m *model) stepBatch(c *client, dir *modelNode, next uint64) {
	b := &wire.Batch{}
	var want []string
	add := func(op *wire.BatchOp, outcome string) {
		op.At = m.wall - m.delegationDice.Int64N(2_000_000)
		b.Ops, want = append(b.Ops, op), append(want, outcome)
	}
	var made []*modelNode
	for range 1 + m.delegationDice.IntN(6) {
		name := string(rune('a' + m.delegationDice.IntN(12)))
		have := dir.children[name]
		switch {
		case have == nil:
			n := &modelNode{id: next, typ: wire.FileType_FILE_TYPE_REGULAR, parent: dir, names: 1}
			op := &wire.Create{Parent: dir.id, Name: name, Type: n.typ, Mode: 0o640}
			add(&wire.BatchOp{Inode: next, Op: &wire.BatchOp_Create{Create: op}}, "ok")
			dir.children[name], made = n, append(made, n)
			m.nodes = append(m.nodes, n)
		case isDir(have):
			add(&wire.BatchOp{Op: &wire.BatchOp_Remove{Remove: &wire.Remove{Parent: dir.id, Name: name}}}, "is a directory")
		case m.delegationDice.IntN(3) == 0:
			add(&wire.BatchOp{Inode: next, Op: &wire.BatchOp_Create{Create: &wire.Create{Parent: dir.id, Name: name, Type: wire.FileType_FILE_TYPE_REGULAR}}}, "already exists")
		case m.delegationDice.IntN(3) > 0 && dir.children["batch"] == nil && have.names == 1:
			add(&wire.BatchOp{Op: &wire.BatchOp_Rename{Rename: &wire.Rename{Parent: dir.id, Name: name, NewParent: dir.id, NewName: "batch"}}}, "ok")
			delete(dir.children, name)
			dir.children["batch"] = have
		default:
			add(&wire.BatchOp{Op: &wire.BatchOp_Remove{Remove: &wire.Remove{Parent: dir.id, Name: name}}}, "ok")
			delete(dir.children, name)
			m.forget(have)
		}
		next++
	}
	req := c.request(&wire.MetaRequest{Op: &wire.MetaRequest_Batch{Batch: b}})
	resp := m.replicate(c, proto.CloneOf(req))
	m.expect(resp, "ok", "batch")
	for i, r := range resp.GetBatch().GetResults() {
		if got := kind(&wire.MetaResponse{Error: r.GetError()}); got != want[i] {
			m.t.Fatalf("change %v of a batch is answered %v, want %s", b.Ops[i], r, want[i])
		}
	}
	if again := m.replicate(c, req); !proto.Equal(again, resp) {
		m.t.Fatalf("a repeated batch is answered %v, the first time %v", again, resp)
	}
	for _, n := range made {
		if n.names > 0 {
			n.attr = attrOf(c.attr(n.id))
		}
	}
}
