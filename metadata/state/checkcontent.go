package state

import (
	"cmp"
	"slices"

	"github.com/morainefs/moraine"
)

func (c *checker) allRefs() error {
	dead := make(map[uint64]bool)
	err := c.each(tabDead, func(key, _ []byte) error {
		dead[lastU64(key)] = true
		return nil
	})
	if err != nil {
		return err
	}
	counts := make(map[uint64]uint64)
	ends := make(map[uint64]int64)
	err = c.each(tabRef, func(key, value []byte) error {
		content := lastU64(key[:11])
		r, err := decodeRef(key, value)
		if err != nil {
			return err
		}
		if !dead[content] && c.content[content] == nil {
			c.problem("content %d belongs to no file", content)
		}
		c.refs[r.table]++
		if dead[content] {
			return nil // what is dead needs no place in a file
		}
		if r.base < ends[content] || r.base >= r.end {
			c.problem("content %d: range %d-%d overlaps the one before it, or is empty", content, r.base, r.end)
		}
		if span, ok := c.base[r.table]; ok && span != r.end-r.base {
			c.problem("table %s is referred to with ranges of %d and %d bytes", r.table, span, r.end-r.base)
		}
		counts[content]++
		ends[content] = r.end
		c.base[r.table] = r.end - r.base
		return nil
	})
	for _, i := range c.sorted() {
		if i.refs != counts[i.content] && i.content != 0 {
			c.problem("inode %s counts %d tables and has %d", i.id, i.refs, counts[i.content])
		}
		if i.content != 0 && ends[i.content] > min(i.lastEnd, i.size) {
			c.problem("inode %s has size %d, last end %d and an extent up to %d", i.id, i.size, i.lastEnd, ends[i.content])
		}
	}
	return err
}

func (c *checker) tables() error {
	stored, evicted := make(map[moraine.TableID]int64), make(map[moraine.TableID]int64)
	err := c.each(tabTable, func(key, value []byte) error {
		id := moraine.TableID(lastU64(key))
		h, err := decodeTableHead(value)
		if err != nil {
			return err
		}
		stored[id], evicted[id] = h.bytes, h.evicted
		if h.refs != c.refs[id] && !(h.refs == 0 && c.refs[id] == 1) {
			c.problem("table %s counts %d references and has %d", id, h.refs, c.refs[id])
		}
		if h.refs > 1 && !h.sealed {
			c.problem("table %s is shared and not sealed", id)
		}
		return c.table(id, h)
	})
	if err != nil {
		return err
	}
	for _, i := range c.sorted() {
		var sum, gone int64
		err := c.refsFrom(i.content, -1, func(r ref) (bool, error) {
			sum += stored[r.table]
			gone += evicted[r.table]
			return true, nil
		})
		if err != nil {
			return err
		}
		if sum != i.stored || gone != i.evicted {
			c.problem("inode %s counts %d bytes stored, %d of them in objects, and has %d and %d", i.id, i.stored, i.evicted, sum, gone)
		}
	}
	return nil
}

// table checks the extents of one table and counts it as a user of stripes.
func (c *checker) table(id moraine.TableID, h tableHead) error {
	exts, err := c.extsFrom(ref{table: id}, 0, noLimit)
	if err != nil {
		return err
	}
	if len(exts) != int(h.count) || sumLengths(exts) != h.bytes || len(exts) > moraine.MaxTableExtents {
		c.problem("table %s counts %d extents of %d bytes and has %d of %d", id, h.count, h.bytes, len(exts), sumLengths(exts))
	}
	if sumEvicted(exts) != h.evicted {
		c.problem("table %s counts %d bytes in objects and has %d", id, h.evicted, sumEvicted(exts))
	}
	if err := c.useObjects(id, exts); err != nil {
		return err
	}
	named := liveByStripe(exts)
	end := int64(0)
	for _, e := range exts {
		if e.Offset < end || e.Length <= 0 {
			c.problem("table %s: extent at %d overlaps the one before it, or is empty", id, e.Offset)
		}
		end = e.End()
		if e.Object != 0 {
			continue
		}
		s := c.stripes[e.Stripe]
		if s == nil {
			if s, err = c.stripe(e.Stripe); err != nil {
				return err
			}
			if s == nil {
				c.problem("table %s: stripe %s does not exist", id, e.Stripe)
				continue
			}
			c.stripes[e.Stripe] = s
		}
		for n := range s.Chunks {
			if inMemory(&s.Chunks[n]) || void(&s.Chunks[n]) {
				c.unsafe[id] = true
			}
		}
		if e.StripeOffset+e.Length > s.Length || named[e.Stripe] > s.LiveBytes {
			c.problem("table %s names %d bytes of stripe %s, which has %d, %d of them live", id, named[e.Stripe], e.Stripe, s.Length, s.LiveBytes)
		}
		if named[e.Stripe] > 0 {
			c.uses[e.Stripe]++
			named[e.Stripe] = 0
		}
	}
	if span, ok := c.base[id]; ok && end != span {
		c.problem("table %s ends at %d, its reference at %d", id, end, span)
	}
	return nil
}

// liveByStripe counts the bytes of each stripe that extents name, once each.
func liveByStripe(exts []moraine.Extent) map[moraine.StripeID]int64 {
	byPlace := slices.Clone(exts)
	slices.SortFunc(byPlace, func(a, b moraine.Extent) int {
		return cmp.Or(cmp.Compare(a.Stripe, b.Stripe), cmp.Compare(a.StripeOffset, b.StripeOffset))
	})
	out := make(map[moraine.StripeID]int64)
	var end int64
	for n, e := range byPlace {
		if n == 0 || byPlace[n-1].Stripe != e.Stripe {
			end = 0
		}
		if last := e.StripeOffset + e.Length; last > end {
			out[e.Stripe] += last - max(end, e.StripeOffset)
			end = last
		}
	}
	return out
}

func (c *checker) allStripes() error {
	err := c.each(tabStripe, func(key, value []byte) error {
		s, err := decodeStripe(moraine.StripeID(lastU64(key)), value)
		if err != nil {
			return err
		}
		c.stripes[s.ID] = s
		if s.RefCount == 0 || s.RefCount != c.uses[s.ID] {
			c.problem("stripe %s counts %d tables and has %d", s.ID, s.RefCount, c.uses[s.ID])
		}
		for n, ch := range s.Chunks {
			c.chunks[string(c.k.deviceChunk(ch.Device, moraine.ChunkID{Stripe: s.ID, Index: uint8(n)}))] = true
		}
		return nil
	})
	if err != nil {
		return err
	}
	have := 0
	err = c.each(tabDeviceChunk, func(key, _ []byte) error {
		have++
		if !c.chunks[string(key)] {
			c.problem("the index of devices has %x, which no stripe has", key)
		}
		return nil
	})
	if have != len(c.chunks) {
		c.problem("the index of devices has %d chunks, the stripes %d", have, len(c.chunks))
	}
	return err
}

func (c *checker) grants() error {
	live := make(map[string]bool)
	var end moraine.StripeID
	err := c.each(tabGrant, func(key, value []byte) error {
		g, err := decodeGrant(value)
		if err != nil {
			return err
		}
		if g.first <= end || g.last() != moraine.StripeID(lastU64(key)) {
			c.problem("grant %s overlaps the one before it, or has another's key", g.first)
		}
		end = g.last()
		if !c.known(g.session) {
			c.problem("grant %s belongs to session %s, which is gone", g.first, g.session)
		}
		live[string(c.k.sessionGrant(g.session, g.last()))] = true
		for id := g.first; id <= g.last(); id++ {
			if c.stripes[id] != nil && !g.isUsed(id) {
				c.problem("stripe %s exists and its grant does not know", id)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return c.each(tabSessionGrant, func(key, _ []byte) error {
		if !live[string(key)] {
			c.problem("the index of sessions has grant %x, which does not exist", key)
		}
		delete(live, string(key))
		return nil
	})
}
