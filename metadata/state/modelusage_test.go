package state_test

import (
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// modelUsage is the size of what is below a directory, or its limit.
type modelUsage struct{ bytes, inodes uint64 }

func overQuota(resp *wire.MetaResponse) bool { return kind(resp) == "quota exceeded" }

// stepQuota gives a directory a quota close to its usage, removes a quota, or starts a recount that
// continues while other commands are applied.
func (m *model) stepQuota() {
	if m.rng.IntN(3) == 0 {
		m.recounts++
		m.expect(m.applyBoth(&statepb.Command{Caller: &statepb.Caller{Node: "a", Role: "admin"}, Op: &statepb.Command_Request{
			Request: &wire.MetaRequest{Op: &wire.MetaRequest_Recount{Recount: &wire.Recount{}}}}}), "ok", "recount")
		return
	}
	dir := m.pick(isDir)
	q := modelUsage{}
	if m.rng.IntN(3) > 0 {
		u := m.usageOf(dir)
		q = modelUsage{max(1, u.bytes+uint64(m.rng.IntN(300))), max(1, u.inodes+uint64(m.rng.IntN(6)))}
		switch m.rng.IntN(3) {
		case 0:
			q.bytes = 0
		case 1:
			q.inodes = 0
		}
	}
	resp := m.applyBoth(&statepb.Command{Caller: &statepb.Caller{Node: "a", Role: "admin"}, Op: &statepb.Command_Request{
		Request: &wire.MetaRequest{Op: &wire.MetaRequest_SetQuota{SetQuota: &wire.SetQuota{Inode: dir.id, Bytes: q.bytes, Inodes: q.inodes}}}}})
	m.expect(resp, "ok", "set quota")
	if m.quotas[dir] = q; q == (modelUsage{}) {
		delete(m.quotas, dir)
	}
}

func (m *model) usageReply(n *modelNode) *wire.UsageReply {
	m.t.Helper()
	return m.ok(m.clients[0].read(&wire.MetaRequest{Op: &wire.MetaRequest_GetUsage{GetUsage: &wire.GetUsage{Inode: n.id}}})).GetUsage()
}

func (m *model) usageOf(n *modelNode) modelUsage {
	u := m.usageReply(n).GetUsage()
	return modelUsage{u.Bytes, u.Inodes}
}

// quotaUsage is the usage of each directory with a quota.
func (m *model) quotaUsage() map[*modelNode]modelUsage {
	out := map[*modelNode]modelUsage{}
	for n := range m.quotas {
		if !m.alive(n) {
			delete(m.quotas, n)
			continue
		}
		out[n] = m.usageOf(n)
	}
	return out
}

func (m *model) alive(n *modelNode) bool {
	for _, o := range m.nodes {
		if o == n {
			return true
		}
	}
	return false
}

// holdQuotas checks that no command let a tree grow past its quota, except one that removes a name.
// A command that a quota refused must have changed nothing.
func (m *model) holdQuotas(req *wire.MetaRequest, resp *wire.MetaResponse, before map[*modelNode]modelUsage) {
	m.t.Helper()
	refused := overQuota(resp)
	if refused {
		m.overQuota++
	}
	removes := req.GetRemove() != nil || req.GetRemoveTree() != nil
	for n, was := range before {
		resp, err := m.m.Read(m.store(), &statepb.Caller{Node: "a", Role: "admin"}, &wire.MetaRequest{Partition: m.partition, Op: &wire.MetaRequest_GetUsage{GetUsage: &wire.GetUsage{Inode: n.id}}})
		if err != nil {
			m.t.Fatal(err)
		}
		if kind(resp) == "not found" {
			continue // the command removed it
		}
		now := modelUsage{resp.GetUsage().GetUsage().GetBytes(), resp.GetUsage().GetUsage().GetInodes()}
		if refused && now != was {
			m.t.Fatalf("%v was refused for a quota and made %+v of %+v below %x", req, now, was, n.id)
		}
		q := m.quotas[n]
		grew := q.bytes != 0 && now.bytes > was.bytes && now.bytes > q.bytes || q.inodes != 0 && now.inodes > was.inodes && now.inodes > q.inodes
		if replaces := req.GetRename() != nil || req.GetCommit() != nil; grew && !removes && !(replaces && m.anyLinked()) {
			m.t.Fatalf("%v made %+v of %+v below %x, whose quota is %+v", req, now, was, n.id, q)
		}
	}
	if refused && removes {
		m.t.Fatalf("%v was refused for a quota", req)
	}
}

// anyLinked reports whether a file below has had several names. Replacing one name may move the
// file's count to where another name is.
func (m *model) anyLinked() bool {
	for _, n := range m.nodes {
		if n.linked {
			return true
		}
	}
	return false
}

// compareUsage counts what is below each directory by the parents in file records and compares the
// state's counts with it.
func (m *model) compareUsage(c *client) {
	m.t.Helper()
	byID := map[uint64]*modelNode{}
	want := map[uint64]modelUsage{}
	for _, n := range m.nodes {
		byID[n.id] = n
	}
	for _, n := range m.nodes {
		at := c.attr(n.id)
		for up := at.Parent; up != 0; {
			u := want[up]
			want[up] = modelUsage{u.bytes + uint64(len(n.cells)), u.inodes + 1}
			dir := byID[up]
			if dir == nil {
				break // it is in a removed tree and has a name elsewhere
			}
			if up = 0; dir.parent != nil {
				up = dir.parent.id
			}
		}
	}
	for _, n := range m.nodes {
		if !isDir(n) {
			continue
		}
		if have := m.usageOf(n); have != want[n.id] {
			m.t.Fatalf("%x has %+v below it, want %+v", n.id, have, want[n.id])
		}
	}
}
