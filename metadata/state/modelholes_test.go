package state_test

import (
	"github.com/morainefs/moraine/transport/wire"
)

// stepRange changes a range of a file: it makes a hole, or lays a clone over it.
func (m *model) stepRange() {
	rng := m.rng
	m.rng = m.dice
	defer func() { m.rng = rng }()
	c := m.clients[m.rng.IntN(len(m.clients))]
	f := m.mayWrite(c)
	if f == nil {
		return
	}
	if m.rng.IntN(2) == 0 {
		m.punch(c, f)
	} else {
		m.cloneOver(c, f)
	}
}

// merge merges tables of a range, which changes no byte.
func (m *model) merge(c *client, f *modelNode) {
	to := uint64(len(f.cells)) + 1
	for from := m.rng.Uint64N(to); from < to; {
		resp := m.mutate(c, &wire.MetaRequest{Op: &wire.MetaRequest_Commit{Commit: &wire.Commit{Inode: f.id,
			Mode: wire.CommitMode_COMMIT_MODE_OVERLAY, MergeFrom: from, MergeTo: to}}})
		m.expect(resp, "ok", "merge from %d to %d", from, to)
		if from = resp.GetCommit().MergedTo; from == 0 {
			m.t.Fatal("nothing was merged")
		}
	}
}

// punch makes a hole, which may end after the file, and may make it grow.
func (m *model) punch(c *client, f *modelNode) {
	from := m.rng.Uint64N(uint64(len(f.cells)) + 10)
	to := from + 1 + m.rng.Uint64N(uint64(len(f.cells))+10)
	op := &wire.Commit{Inode: f.id, Mode: wire.CommitMode_COMMIT_MODE_OVERLAY, PunchFrom: from, PunchTo: to}
	if m.rng.IntN(3) == 0 {
		op.Size = to
	}

	resp := m.mutate(c, &wire.MetaRequest{Op: &wire.MetaRequest_Commit{Commit: op}})
	if overQuota(resp) {
		return
	}
	m.expect(resp, "ok", "hole from %d to %d", from, to)
	f.clearCells(from, to)
	f.resize(max(len(f.cells), int(op.Size)))
	if got := resp.GetCommit().GetAttr().GetSize(); got != uint64(len(f.cells)) {
		m.t.Fatalf("size is %d after a hole, want %d", got, len(f.cells))
	}
}

// cloneOver lays ranges of files over a range of a file.
func (m *model) cloneOver(c *client, f *modelNode) {
	op := &wire.Clone{Inode: f.id, Mode: wire.CommitMode_COMMIT_MODE_OVERLAY, Offset: m.rng.Uint64N(uint64(len(f.cells)) + 10)}
	var cells []modelCell
	self := false
	for range 1 + m.rng.IntN(3) {
		src := m.mayWrite(c)
		self = self || src == f
		r := &wire.CloneRange{Inode: src.id}
		r.Offset = m.rng.Uint64N(uint64(len(src.cells)) + 1)
		r.Length = m.rng.Uint64N(uint64(len(src.cells)) - r.Offset + 1)
		to := r.Offset + r.Length
		if r.Length == 0 {
			to = uint64(len(src.cells))
		}
		op.Ranges = append(op.Ranges, r)
		cells = append(cells, src.cells[r.Offset:to]...)
	}

	resp := m.mutate(c, &wire.MetaRequest{Op: &wire.MetaRequest_Clone{Clone: op}})
	end := op.Offset + uint64(len(cells))
	switch {
	case overQuota(resp):
	case kind(resp) == "too large": // of many small extents
	case self:
		m.expect(resp, "invalid argument", "clone of a file over itself")
	default:
		m.expect(resp, "ok", "clone over %d to %d", op.Offset, end)
		f.resize(max(len(f.cells), int(end)))
		f.clearCells(op.Offset, end) // also makes the cells this file's own
		copy(f.cells[op.Offset:], cells)
		if got := resp.GetCommit().GetAttr().GetSize(); got != uint64(len(f.cells)) {
			m.t.Fatalf("size is %d after a clone over a range, want %d", got, len(f.cells))
		}
	}
}

// clearCells makes a range a hole, as far as it lies in the file.
func (n *modelNode) clearCells(from, to uint64) {
	size := uint64(len(n.cells))
	own := append([]modelCell(nil), n.cells...) // clones share the old ones
	clear(own[min(from, size):min(to, size)])
	n.cells = own
}
