package state_test

import (
	"fmt"
	"math"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

func (m *model) mayWrite(c *client) *modelNode {
	return m.pick(func(n *modelNode) bool { return isFile(n) && (n.owner == nil || n.owner == c) })
}

func (m *model) stepTruncate(c *client) {
	f := m.mayWrite(c)
	if f == nil {
		return
	}
	size := m.rng.IntN(len(f.cells)*3/2 + 10)
	if m.rng.IntN(4) == 0 {
		size = 0
	}
	resp := m.mutate(c, &wire.MetaRequest{Op: &wire.MetaRequest_SetAttr{SetAttr: &wire.SetAttr{Inode: f.id, Valid: uint32(wire.SetAttrField_SET_ATTR_SIZE), Size: uint64(size)}}})
	if overQuota(resp) {
		return
	}
	m.expect(resp, "ok", "truncate")
	f.resize(size)
}

func (n *modelNode) resize(size int) {
	if size <= len(n.cells) {
		n.cells = n.cells[:size:size]
		return
	}
	n.cells = append(n.cells, make([]modelCell, size-len(n.cells))...)
}

// number takes an unused stripe number of the client's grants.
func (m *model) number(c *client) uint64 {
	if len(m.grants[c]) == 0 {
		count := uint32(1 + m.rng.IntN(300))
		resp := m.mutate(c, &wire.MetaRequest{Op: &wire.MetaRequest_Grant{Grant: &wire.Grant{Count: count}}})
		m.expect(resp, "ok", "grant")
		for n := range uint64(count) {
			m.grants[c] = append(m.grants[c], resp.GetGrant().GetFirst()+n)
		}
	}
	id := m.grants[c][0]
	m.grants[c] = m.grants[c][1:]
	return id
}

func (m *model) stepCommit(c *client) {
	f := m.mayWrite(c)
	if f == nil {
		return
	}
	op := &wire.Commit{Inode: f.id, Level: uint32(moraine.NVMe), Mode: wire.CommitMode(1 + m.rng.IntN(3))}
	if op.Mode == wire.CommitMode_COMMIT_MODE_REPLACE && m.rng.IntN(3) > 0 {
		op.Mode = wire.CommitMode_COMMIT_MODE_APPEND
	}
	at := uint64(0)
	if op.Mode == wire.CommitMode_COMMIT_MODE_OVERLAY {
		at = m.rng.Uint64N(uint64(len(f.cells)) + 20)
	}
	if op.Mode == wire.CommitMode_COMMIT_MODE_REPLACE && m.rng.IntN(2) == 0 {
		op.Content = m.randomBytes(1 + m.rng.IntN(40))
	} else {
		m.makeExtents(c, op, at)
	}
	var link *modelNode
	if f.owner != nil && m.rng.IntN(2) == 0 {
		link = m.pick(isDir)
		op.Link = &wire.LinkTarget{Parent: link.id, Name: m.name(), Replace: m.rng.IntN(2) == 0}
	}
	resp := m.mutate(c, &wire.MetaRequest{Op: &wire.MetaRequest_Commit{Commit: op}})
	if overQuota(resp) {
		return
	}
	if link != nil && link.children[op.Link.Name] != nil {
		have := link.children[op.Link.Name]
		switch {
		case isDir(have):
			m.expect(resp, "is a directory", "link over a directory")
			return
		case !op.Link.Replace || !isFile(have):
			m.expect(resp, "already exists", "link")
			return
		}
		m.forget(have)
	}
	m.expect(resp, "ok", "commit %v of %d extents", op.Mode, len(op.Extents))
	if link != nil {
		link.children[op.Link.Name], f.parent, f.owner, f.names = f, link, nil, 1
	}
	f.lay(op)
	if got := resp.GetCommit().GetAttr().GetSize(); got != uint64(len(f.cells)) {
		m.t.Fatalf("size is %d, want %d", got, len(f.cells))
	}
}

// stepClone lays ranges of files over a file.
func (m *model) stepClone(c *client) {
	f := m.mayWrite(c)
	if f == nil {
		return
	}
	op := &wire.Clone{Inode: f.id, Mode: []wire.CommitMode{wire.CommitMode_COMMIT_MODE_REPLACE, wire.CommitMode_COMMIT_MODE_APPEND}[m.rng.IntN(2)]}
	var cells []modelCell
	if op.Mode == wire.CommitMode_COMMIT_MODE_APPEND {
		cells = f.cells
	}
	cells = slices.Clip(cells)
	past := false
	for range 1 + m.rng.IntN(4) {
		src := m.mayWrite(c)
		if m.rng.IntN(4) == 0 {
			src = f
		}
		r := &wire.CloneRange{Inode: src.id}
		if m.rng.IntN(3) > 0 {
			r.Offset = m.rng.Uint64N(uint64(len(src.cells)) + 1)
			r.Length = m.rng.Uint64N(uint64(len(src.cells)) - r.Offset + 1)
		}
		if m.rng.IntN(30) == 0 {
			r.Length, past = uint64(len(src.cells))+1, true
		}
		op.Ranges = append(op.Ranges, r)
		if past {
			continue
		}
		to := r.Offset + r.Length
		if r.Length == 0 {
			to = uint64(len(src.cells))
		}
		cells = append(cells, src.cells[r.Offset:to]...)
	}
	resp := m.mutate(c, &wire.MetaRequest{Op: &wire.MetaRequest_Clone{Clone: op}})
	switch {
	case overQuota(resp):
	case kind(resp) == "too large": // of many small extents
	case past:
		m.expect(resp, "invalid argument", "clone past the end")
	default:
		if m.expect(resp, "ok", "clone"); resp.GetCommit().GetAttr().GetSize() != uint64(len(cells)) {
			m.t.Fatalf("size is %d, want %d", resp.GetCommit().GetAttr().GetSize(), len(cells))
		}
		f.cells = cells
	}
}

// stepTier queues a move of a file or tree, or lets a mover work, which may die midway.
func (m *model) stepTier() {
	if m.rng.IntN(2) == 0 {
		n := m.pick(func(n *modelNode) bool { return isFile(n) || n != m.root && m.rng.IntN(4) == 0 })
		if n == nil {
			return
		}
		m.tier.queue([]wire.JobKind{flushJob, flushJob, evictJob, stageJob}[m.rng.IntN(4)], n.id)
		return
	}
	m.noteContent()
	m.tier.runTrees()
	m.tier.arrive()
	if m.rng.IntN(3) == 0 {
		m.tier.crash = &crash{at: m.rng.IntN(9), how: []string{"before", "after", "late", "twice"}[m.rng.IntN(4)]}
	}
	node := fmt.Sprint("n", 1+m.rng.IntN(3))
	if m.movers[node] == nil {
		m.movers[node] = m.tier.mover(node)
	}
	for range 1 + m.rng.IntN(4) {
		m.movers[node].work()
		if c := m.tier.crash; c != nil && c.hit != "" {
			break
		}
	}
	m.tier.crash = nil
	if m.rng.IntN(4) == 0 {
		m.tier.wait(5 + m.rng.IntN(20))
	}
}

// noteContent records the content of each file by its generation before movers read files. An
// object has the content of the generation that it was made from.
func (m *model) noteContent() {
	for _, n := range m.nodes {
		if isFile(n) {
			m.content[fmt.Sprintf("%x/%x", n.id, m.tier.c.attr(n.id).Generation)] = n.cells
		}
	}
}

// settleTier ends all jobs and compares the bucket with the state.
func (m *model) settleTier() {
	m.t.Helper()
	m.noteContent()
	m.tier.drain()
	var files []uint64
	for _, n := range m.nodes {
		if isFile(n) {
			files = append(files, n.id)
		}
	}
	m.tier.sound(files...)
	m.t.Logf("%d files, the tier %v", len(files), m.tier.status())
	m.compare()
}

// inlineCell returns the cell of a byte that the state has.
func inlineCell(b byte) modelCell { return modelCell{math.MaxUint64, uint64(b)} }

// randomBytes returns n random bytes.
func (m *model) randomBytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(m.rng.Uint32())
	}
	return b
}

// bytesOf returns the bytes that an extent maps to.
func (m *model) bytesOf(e *wire.Extent, objects []*wire.Object) []modelCell {
	cells := make([]modelCell, e.Length)
	if e.Inline != 0 {
		for b := range cells {
			cells[b] = inlineCell(e.Content[b])
		}
		return cells
	}
	from := m.staged[e.Stripe]
	if e.Object != 0 {
		at := slices.IndexFunc(objects, func(o *wire.Object) bool { return o.Id == e.Object })
		from = m.content[fmt.Sprintf("%x/%x", objects[at].Inode, objects[at].Generation)]
	}
	for b := range cells {
		if from != nil {
			cells[b] = from[e.StripeOffset+uint64(b)]
		} else {
			cells[b] = modelCell{e.Stripe, e.StripeOffset + uint64(b)}
		}
	}
	return cells
}

// makeExtents fills op with stripes and extents from offset at on: runs, gaps, and several extents
// of one stripe.
func (m *model) makeExtents(c *client, op *wire.Commit, at uint64) {
	count := 1 + m.rng.IntN(4)
	if m.rng.IntN(5) == 0 {
		count = 60 + m.rng.IntN(60)
	}
	for range count {
		s := stripe(m.number(c), 1+m.rng.Uint64N(8), m.devices()...)
		op.Stripes = append(op.Stripes, s)
		for from := uint64(0); from < s.Length; {
			length := 1 + m.rng.Uint64N(s.Length-from)
			if m.rng.IntN(4) == 0 {
				at += m.rng.Uint64N(6)
			}
			op.Extents = append(op.Extents, extent(at, length, s.Id, from))
			at, from = at+length, from+length
		}
		if len(op.Extents) > 240 {
			break
		}
	}
}

func (m *model) devices() []uint32 {
	n := []int{1, 2, 3, 6}[m.rng.IntN(4)]
	var out []uint32
	for _, d := range m.rng.Perm(7)[:n] {
		out = append(out, uint32(d+1))
	}
	return out
}

func (n *modelNode) lay(op *wire.Commit) {
	base := 0
	switch op.Mode {
	case wire.CommitMode_COMMIT_MODE_REPLACE:
		n.cells = nil
	case wire.CommitMode_COMMIT_MODE_APPEND:
		base = len(n.cells)
	}
	n.cells = slices.Clone(n.cells)
	for _, b := range op.Content {
		n.cells = append(n.cells, inlineCell(b))
	}
	for _, e := range op.Extents {
		from := base + int(e.Offset)
		n.resize(max(len(n.cells), from+int(e.Length)))
		for b := range int(e.Length) {
			n.cells[from+b] = modelCell{e.Stripe, e.StripeOffset + uint64(b)}
		}
	}
}
