package state_test

import (
	"slices"
	"sort"

	"github.com/morainefs/moraine/metadata/state/statetest"
	"github.com/morainefs/moraine/transport/wire"
)

// compare compares the whole state with the model and the replica.
func (m *model) compare() {
	m.t.Helper()
	m.check()
	if d := statetest.Diff(m.own(), m.replica); d != "" {
		m.t.Fatalf("replicas differ: %s", d)
	}
	c := m.clients[0]
	m.compareDir(c, m.root)
	m.compareUsage(c)
	m.comparePolicies(c)
	for _, n := range m.nodes {
		if n.owner != nil && isFile(n) {
			m.compareFile(c, n)
		}
		m.compareXattrs(c, n)
		m.compareLocks(c, n)
		a := c.attr(n.id)
		if attrOf(a) != n.attr {
			m.t.Fatalf("%x has %+v, want %+v", n.id, attrOf(a), n.attr)
		}
		m.compareLease(c, a)
	}
}

func (m *model) compareDir(c *client, n *modelNode) {
	m.t.Helper()
	var names []string
	after := ""
	for {
		r := m.ok(c.read(&wire.MetaRequest{Op: &wire.MetaRequest_ReadDir{ReadDir: &wire.ReadDir{Inode: n.id, After: after, Limit: 3}}})).GetReadDir()
		for _, e := range r.GetEntries() {
			names = append(names, e.Name)
			child := n.children[e.Name]
			if child == nil || child.id != e.Attr.Inode || child.typ != e.Attr.Type || child.target != e.Attr.Target || child.rdev != e.Attr.Rdev ||
				(!child.linked && e.Attr.Parent != n.id) || (!isDir(child) && (int(e.Attr.Nlink) < child.names || (!child.linked && int(e.Attr.Nlink) != child.names))) {
				m.t.Fatalf("entry %q is %v, want %+v", e.Name, e.Attr, child)
			}
			after = e.Name
		}
		if !r.GetMore() {
			break
		}
	}
	if len(names) != len(n.children) || !sort.StringsAreSorted(names) {
		m.t.Fatalf("directory has %q, want %d entries", names, len(n.children))
	}
	for _, name := range names {
		switch child := n.children[name]; {
		case isDir(child):
			m.compareDir(c, child)
		case isFile(child):
			m.compareFile(c, child)
		}
	}
}

func (m *model) compareFile(c *client, n *modelNode) {
	m.t.Helper()
	have := make([]modelCell, len(n.cells))
	limit := uint32(1 + m.rng.IntN(40))
	for off := uint64(0); ; {
		r := m.ok(c.extents(n.id, off, limit)).GetExtents()
		if r.GetAttr().GetSize() != uint64(len(n.cells)) {
			m.t.Fatalf("file %x has %d bytes, want %d", n.id, r.GetAttr().GetSize(), len(n.cells))
		}
		for _, e := range r.GetExtents() {
			copy(have[e.Offset:], m.bytesOf(e, r.GetObjects()))
			off = e.Offset + e.Length
		}
		if !r.GetMore() {
			break
		}
	}
	if !slices.Equal(have, n.cells) {
		m.t.Fatalf("file %x: content differs", n.id)
	}
}
