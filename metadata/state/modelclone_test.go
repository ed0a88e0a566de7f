package state_test

import (
	"maps"
	"slices"

	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// stepCloneTree clones a directory in pieces of random sizes, or cancels the clone midway.
func (m *model) stepCloneTree(c *client) {
	src, dir, name := m.pick(isDir), m.pick(isDir), m.name()
	resp := m.mutate(c, &wire.MetaRequest{Op: &wire.MetaRequest_CloneTree{CloneTree: &wire.CloneTree{Inode: src.id, Parent: dir.id, Name: name}}})
	switch {
	case overQuota(resp):
		return
	case dir.children[name] != nil:
		m.expect(resp, "already exists", "clone of a tree over a name")
		return
	}
	m.expect(resp, "ok", "clone of a tree")
	job := resp.GetJobs().GetJobs()[0].Id
	cancel := m.rng.IntN(4) == 0
	for m.live(job) {
		if cancel && m.rng.IntN(4) == 0 {
			m.expect(m.applyBoth(&statepb.Command{Caller: &statepb.Caller{Node: "a", Role: "admin"}, Op: &statepb.Command_Request{
				Request: &wire.MetaRequest{Op: &wire.MetaRequest_CancelJob{CancelJob: &wire.CancelJob{Id: job}}}}}), "ok", "cancel")
		}
		m.expect(m.applyBoth(&statepb.Command{Op: &statepb.Command_RunJob{RunJob: &statepb.RunJob{Id: job, Limit: uint32(1 + m.rng.IntN(200))}}}), "ok", "run job")
	}
	switch j := m.clients[0].ended(job); {
	case j.State == wire.JobState_JOB_STATE_CANCELED && cancel:
	case j.State == wire.JobState_JOB_STATE_DONE:
		copied := m.like(src)
		copied.parent = dir
		dir.children[name] = copied
		m.found(copied, m.clients[0].inodeAt(dir.id, name))
	case len(m.quotas) > 0: // files of two names become two files
	default:
		m.t.Fatalf("the clone ended %s: %s", j.State, j.Error)
	}
}

func (m *model) live(job uint64) bool {
	return m.clients[0].ended(job).State == wire.JobState_JOB_STATE_PENDING
}

// like is a copy of a node and all below it.
func (m *model) like(n *modelNode) *modelNode {
	out := &modelNode{typ: n.typ, cells: slices.Clip(n.cells), target: n.target, rdev: n.rdev, names: 1, xattrs: maps.Clone(n.xattrs), attr: n.attr}
	if isDir(n) {
		out.children = map[string]*modelNode{}
	}
	for name, child := range n.children {
		out.children[name] = m.like(child)
		out.children[name].parent = out
	}
	return out
}

// found assigns to a node, and all below it, the numbers from the state.
func (m *model) found(n *modelNode, id uint64) {
	n.id = id
	m.nodes = append(m.nodes, n)
	for _, name := range slices.Sorted(mapKeys(n.children)) {
		m.found(n.children[name], m.clients[0].inodeAt(id, name))
	}
}

// inodeAt returns the inode under a name in a directory.
func (c *client) inodeAt(dir uint64, name string) uint64 {
	c.t.Helper()
	return c.ok(c.read(&wire.MetaRequest{Op: &wire.MetaRequest_Lookup{Lookup: &wire.Lookup{Parent: dir, Name: name}}})).GetEntry().GetAttr().GetInode()
}
