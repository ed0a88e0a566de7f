package vfs

import "math/rand/v2"

// Crash returns what a power cut at this moment would leave, as a new file system;
// m itself continues. Synced state survives. Any subset of the rest survives:
// blocks of 4 KiB and sizes one by one. Changes of names survive one by one too,
// except that a change of a name needs the earlier changes of that name. rng makes
// the choices (nil: the Mem's own).
func (m *Mem) Crash(rng *rand.Rand) *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	if rng == nil {
		rng = m.rng
	}
	out := NewMem(rng.Uint64())
	out.capacity = m.capacity
	c := &crasher{
		rng:    rng,
		bytes:  survival(rng),
		names:  m.survivingNames(rng),
		copies: map[*node]*node{},
	}
	out.root = c.copy(m.root)
	for _, n := range c.copies {
		for _, p := range n.live {
			if p != nil {
				out.used += blockSize
			}
		}
	}
	return out
}

// survival draws the probability with which each unsynced item survives a cut. The
// extremes are as likely as the mixtures, since bugs hide in both.
func survival(rng *rand.Rand) float64 {
	switch rng.IntN(4) {
	case 0:
		return 0
	case 1:
		return 1
	default:
		return rng.Float64()
	}
}

// survivingNames decides which pending changes of names survive, and returns the
// entries of the directories that they change.
func (m *Mem) survivingNames(rng *rand.Rand) map[*node]map[string]*node {
	keep := make([]bool, len(m.pending))
	if rng.IntN(4) == 0 {
		chance := survival(rng)
		for i := range keep {
			keep[i] = rng.Float64() < chance
		}
	} else {
		// Three runs, each whole: as with an ordered journal, or in reverse.
		a, b := rng.IntN(len(keep)+1), rng.IntN(len(keep)+1)
		a, b = min(a, b), max(a, b)
		for _, run := range [][]bool{keep[:a], keep[a:b], keep[b:]} {
			survives := rng.IntN(2) == 0
			for i := range run {
				run[i] = survives
			}
		}
	}
	dropFollowers(m.pending, keep)
	names := map[*node]map[string]*node{}
	for i, op := range m.pending {
		if !keep[i] {
			continue
		}
		for _, c := range op.changes {
			if names[c.dir] == nil {
				names[c.dir] = map[string]*node{}
				for name, n := range c.dir.kept {
					names[c.dir][name] = n
				}
			}
			applyChange(names[c.dir], c)
		}
	}
	return names
}

// entry is one name of one directory.
type entry struct {
	dir  *node
	name string
}

// addForerunners extends keep by the ops on which the kept ones depend.
func addForerunners(ops []*nameOp, keep []bool) {
	need := map[entry]bool{}
	for i := len(ops) - 1; i >= 0; i-- {
		for _, c := range ops[i].changes {
			keep[i] = keep[i] || need[entry{c.dir, c.name}]
		}
		if keep[i] {
			for _, c := range ops[i].changes {
				need[entry{c.dir, c.name}] = true
			}
		}
	}
}

// dropFollowers removes from keep the ops that depend on one that is not kept.
func dropFollowers(ops []*nameOp, keep []bool) {
	lost := map[entry]bool{}
	for i, op := range ops {
		for _, c := range op.changes {
			keep[i] = keep[i] && !lost[entry{c.dir, c.name}]
		}
		if !keep[i] {
			for _, c := range op.changes {
				lost[entry{c.dir, c.name}] = true
			}
		}
	}
}

// crasher copies the surviving part of a tree.
type crasher struct {
	rng    *rand.Rand
	bytes  float64 // probability that an unsynced block survives
	names  map[*node]map[string]*node
	copies map[*node]*node
}

func (c *crasher) copy(n *node) *node {
	if done := c.copies[n]; done != nil {
		done.links++
		return done
	}
	var out *node
	if n.dir {
		out = newDir()
		c.copies[n] = out
		from := n.kept
		if changed, ok := c.names[n]; ok {
			from = changed
		}
		for _, name := range sortedNames(from) {
			child := c.copy(from[name])
			out.children[name] = child
			out.kept[name] = child
		}
	} else {
		out = c.copyFile(n)
		c.copies[n] = out
	}
	out.links = 1
	return out
}

// copyFile picks for each unsynced block, and for the size, the old or the new.
func (c *crasher) copyFile(n *node) *node {
	out := &node{size: n.keptSize, live: append([]*page(nil), n.durable...)}
	if n.size != n.keptSize && c.rng.Float64() < c.bytes {
		out.size = n.size
	}
	for _, i := range n.dirty {
		if n.live[i] != n.durable[i] && c.rng.Float64() < c.bytes {
			out.live[i] = copyPage(n.live[i])
		}
	}
	// Bytes past the size are lost: a later growth uncovers zeros.
	blocks := int((out.size + blockSize - 1) / blockSize)
	if len(out.live) > blocks {
		out.live = out.live[:blocks]
	}
	if at := out.size % blockSize; at != 0 && len(out.live) == blocks && out.live[blocks-1] != nil {
		last := copyPage(out.live[blocks-1])
		clear(last[at:])
		out.live[blocks-1] = last
	}
	out.durable = append([]*page(nil), out.live...)
	out.keptSize = out.size
	return out
}

// copyPage copies a page that its file may still write in place.
func copyPage(p *page) *page {
	if p == nil || p == reserved {
		return p
	}
	q := *p
	return &q
}
