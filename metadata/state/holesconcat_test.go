package state_test

import (
	"slices"
	"testing"

	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// TestHolesUnderMergesClonesAndConcatenations: files with holes, whose tables were merged and then
// shared, become parts of others, at once and by a job, and the bytes are as they were.
func TestHolesUnderMergesClonesAndConcatenations(t *testing.T) {
	m := newModel(t, testseed.First(t))
	c := m.clients[0]
	var files []*modelNode
	for _, name := range []string{"a", "b"} {
		n := &modelNode{typ: wire.FileType_FILE_TYPE_REGULAR, parent: m.root, names: 1}
		a := m.ok(m.mutate(c, &wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{Parent: m.root.id, Name: name, Type: n.typ}}})).GetEntry().Attr
		n.id, n.attr = a.Inode, attrOf(a)
		m.nodes, m.root.children[name], files = append(m.nodes, n), n, append(files, n)
	}
	for range 150 {
		f := files[m.rng.IntN(2)]
		op := &wire.Commit{Inode: f.id, Level: 3, Mode: wire.CommitMode_COMMIT_MODE_OVERLAY}
		m.makeExtents(c, op, m.rng.Uint64N(uint64(len(f.cells))+20))
		m.expect(m.mutate(c, &wire.MetaRequest{Op: &wire.MetaRequest_Commit{Commit: op}}), "ok", "commit")
		f.lay(op)
		if left := m.grants[c]; len(left) > 0 { // the unused numbers of a session are limited
			m.expect(m.mutate(c, &wire.MetaRequest{Op: &wire.MetaRequest_EndGrant{EndGrant: &wire.EndGrant{First: left[0]}}}), "ok", "end of a grant")
			delete(m.grants, c)
		}
		m.punch(c, f)
		m.cloneOver(c, f)
		if m.rng.IntN(5) == 0 {
			m.merge(c, f)
		}
	}
	m.compare()
	for _, ranges := range []int{3, 200, 2000} {
		m.concat(c, files, ranges)
		m.compare()
	}
}

// concat makes a file of ranges of others, by a job if they are many.
func (m *model) concat(c *client, files []*modelNode, ranges int) {
	n := &modelNode{typ: wire.FileType_FILE_TYPE_REGULAR, parent: m.root, names: 1}
	a := m.ok(m.mutate(c, &wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{Parent: m.root.id, Unlinked: true, Type: n.typ}}})).GetEntry().Attr
	n.id, n.attr = a.Inode, attrOf(a)
	op := &wire.Concat{Inode: n.id, Link: &wire.LinkTarget{Parent: m.root.id, Name: "whole", Replace: true}}
	for range ranges {
		src := files[m.rng.IntN(len(files))]
		from := m.rng.Uint64N(uint64(len(src.cells)))
		length := min(1+m.rng.Uint64N(40), uint64(len(src.cells))-from)
		op.Ranges = append(op.Ranges, &wire.CloneRange{Inode: src.id, Offset: from, Length: length})
		n.cells = append(n.cells, src.cells[from:from+length]...)
	}
	resp := m.ok(m.mutate(c, &wire.MetaRequest{Op: &wire.MetaRequest_Concat{Concat: op}}))
	for _, j := range resp.GetJobs().GetJobs() {
		for m.live(j.Id) {
			m.expect(m.applyBoth(&statepb.Command{Op: &statepb.Command_RunJob{RunJob: &statepb.RunJob{Id: j.Id, Limit: uint32(1 + m.rng.IntN(200))}}}), "ok", "run job")
		}
	}
	if old := m.root.children["whole"]; old != nil {
		m.nodes = slices.DeleteFunc(m.nodes, func(o *modelNode) bool { return o == old })
	}
	m.root.children["whole"], m.nodes = n, append(m.nodes, n)
}
