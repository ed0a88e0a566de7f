package vfs

import "slices"

// Clone returns a copy of m in its current state; what is not durable stays so.
// This is what remains when every process ends at this moment. The copy holds no
// locks; m itself continues.
func (m *Mem) Clone() *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := NewMem(m.rng.Uint64())
	out.capacity, out.used = m.capacity, m.used
	c := cloner{}
	out.root = c.copy(m.root)
	for _, op := range m.pending {
		changes := slices.Clone(op.changes)
		for i := range changes {
			changes[i].dir, changes[i].to = c.copy(changes[i].dir), c.copy(changes[i].to)
		}
		out.pending = append(out.pending, &nameOp{changes: changes})
	}
	return out
}

// cloner holds the copies made so far.
type cloner map[*node]*node

func (c cloner) copy(n *node) *node {
	if n == nil || c[n] != nil {
		return c[n]
	}
	out := &node{dir: n.dir, links: n.links, size: n.size, keptSize: n.keptSize,
		live: slices.Clone(n.live), durable: slices.Clone(n.durable), dirty: slices.Clone(n.dirty)}
	c[n] = out
	for _, i := range n.dirty {
		if n.live[i] != n.durable[i] {
			out.live[i] = copyPage(n.live[i])
		}
	}
	if n.dir {
		out.children, out.kept = c.names(n.children), c.names(n.kept)
	}
	return out
}

func (c cloner) names(of map[string]*node) map[string]*node {
	out := make(map[string]*node, len(of))
	for name, n := range of {
		out[name] = c.copy(n)
	}
	return out
}
