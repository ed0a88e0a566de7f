package check

import (
	"cmp"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/layout"
	"github.com/morainefs/moraine/metadata/state/record"
)

// contentChecks check the contents of files: references, tables, stripes and grants.
type contentChecks struct {
	*nameChecks
	objects *objectChecks
	refs    map[moraine.TableID]uint32
	base    map[moraine.TableID]int64   // length of the range of one reference
	inlines map[moraine.InlineID]uint32 // tables that refer to a record with bytes
	stripes map[moraine.StripeID]*moraine.Stripe
	uses    map[moraine.StripeID]uint32
	unsafe  map[moraine.TableID]bool // tables that refer to stripes with chunks that are, or were, only in memory
	chunks  map[string]bool          // required keys of the index of devices
}

func (c *contentChecks) allRefs() error {
	dead := make(map[uint64]bool)
	err := c.each(record.TabDead, func(key, _ []byte) error {
		dead[record.LastU64(key)] = true
		return nil
	})
	if err != nil {
		return err
	}
	counts := make(map[uint64]uint64)
	ends := make(map[uint64]int64)
	err = c.each(record.TabRef, func(key, value []byte) error {
		content := record.LastU64(key[:11])
		r, err := record.DecodeRef(key, value)
		if err != nil {
			return err
		}
		if !dead[content] && c.content[content] == nil {
			c.problem("no file has content %d", content)
		}
		c.refs[r.Table]++
		if dead[content] {
			return nil // dead content needs no place in a file
		}
		if r.Base < ends[content] || r.Base >= r.End {
			c.problem("content %d: range %d-%d is empty or overlaps the previous one", content, r.Base, r.End)
		}
		if span, ok := c.base[r.Table]; ok && span != r.End-r.Base {
			c.problem("table %s has references with ranges of %d and %d bytes", r.Table, span, r.End-r.Base)
		}
		counts[content]++
		ends[content] = r.End
		c.base[r.Table] = r.End - r.Base
		return nil
	})
	for _, i := range c.sorted() {
		if i.Refs != counts[i.Content] && i.Content != 0 {
			c.problem("inode %s counts %d tables, but has %d", i.Id, i.Refs, counts[i.Content])
		}
		if i.Content != 0 && ends[i.Content] > min(i.LastEnd, i.Size) {
			c.problem("inode %s has size %d and last end %d, but its last extent ends at %d", i.Id, i.Size, i.LastEnd, ends[i.Content])
		}
	}
	return err
}

func (c *contentChecks) tables() error {
	heads := make(map[moraine.TableID]record.TableHead)
	err := c.each(record.TabTable, func(key, value []byte) error {
		id := moraine.TableID(record.LastU64(key))
		h, err := record.DecodeTableHead(value)
		if err != nil {
			return err
		}
		heads[id] = h
		if h.Refs != c.refs[id] && !(h.Refs == 0 && c.refs[id] == 1) {
			c.problem("table %s counts %d references, but has %d", id, h.Refs, c.refs[id])
		}
		if h.Refs > 1 && !h.Sealed {
			c.problem("table %s is shared, but not sealed", id)
		}
		return c.table(id, h)
	})
	if err != nil {
		return err
	}
	for _, i := range c.sorted() {
		var sum record.Inode
		err := layout.RefsFrom(c.View, i.Content, -1, func(r record.Ref) (bool, error) {
			sum.Count(heads[r.Table])
			return true, nil
		})
		if err != nil {
			return err
		}
		if sum.Stored != i.Stored || sum.Evicted != i.Evicted || sum.Inline != i.Inline {
			c.problem("inode %s counts %d stored bytes, %d of them in objects and %d in the metadata, but has %d, %d and %d",
				i.Id, i.Stored, i.Evicted, i.Inline, sum.Stored, sum.Evicted, sum.Inline)
		}
	}
	return nil
}

// table checks the extents of one table and counts it as a user of stripes.
func (c *contentChecks) table(id moraine.TableID, h record.TableHead) error {
	exts, err := layout.ExtsFrom(c.View, record.Ref{Table: id}, 0, layout.NoLimit)
	if err != nil {
		return err
	}
	if len(exts) != int(h.Count) || layout.SumLengths(exts) != h.Bytes || len(exts) > moraine.MaxTableExtents {
		c.problem("table %s counts %d extents with %d bytes, but has %d with %d", id, h.Count, h.Bytes, len(exts), layout.SumLengths(exts))
	}
	if layout.SumEvicted(exts) != h.Evicted {
		c.problem("table %s counts %d bytes in objects, but has %d", id, h.Evicted, layout.SumEvicted(exts))
	}
	if err := c.useInlines(id, h, exts); err != nil {
		return err
	}
	if err := c.objects.useObjects(id, exts); err != nil {
		return err
	}
	named := liveByStripe(exts)
	end := int64(0)
	for _, e := range exts {
		if e.Offset < end || e.Length <= 0 {
			c.problem("table %s: the extent at %d is empty or overlaps the previous one", id, e.Offset)
		}
		end = e.End()
		if e.Object != 0 || e.Inline != 0 {
			continue
		}
		s := c.stripes[e.Stripe]
		if s == nil {
			if s, err = fleet.Stripe(c.View, e.Stripe); err != nil {
				return err
			}
			if s == nil {
				c.problem("table %s refers to stripe %s, which does not exist", id, e.Stripe)
				continue
			}
			c.stripes[e.Stripe] = s
		}
		for n := range s.Chunks {
			if fleet.IsInMemory(&s.Chunks[n]) || fleet.IsVoid(&s.Chunks[n]) {
				c.unsafe[id] = true
			}
		}
		if e.StripeOffset+e.Length > s.Length || named[e.Stripe] > s.LiveBytes {
			c.problem("table %s uses %d bytes of stripe %s, which has %d bytes, %d of them live", id, named[e.Stripe], e.Stripe, s.Length, s.LiveBytes)
		}
		if named[e.Stripe] > 0 {
			c.uses[e.Stripe]++
			named[e.Stripe] = 0
		}
	}
	if span, ok := c.base[id]; ok && end != span {
		c.problem("table %s ends at %d, but its reference ends at %d", id, end, span)
	}
	return nil
}

// liveByStripe counts, for each stripe, the bytes that extents refer to, each byte once.
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

func (c *contentChecks) allStripes() error {
	err := c.each(record.TabStripe, func(key, value []byte) error {
		s, err := record.DecodeStripe(moraine.StripeID(record.LastU64(key)), value)
		if err != nil {
			return err
		}
		c.stripes[s.ID] = s
		if s.RefCount == 0 || s.RefCount != c.uses[s.ID] {
			c.problem("stripe %s counts %d tables, but has %d", s.ID, s.RefCount, c.uses[s.ID])
		}
		for n, ch := range s.Chunks {
			c.chunks[string(c.K.DeviceChunk(ch.Device, moraine.ChunkID{Stripe: s.ID, Index: uint8(n)}))] = true
		}
		return nil
	})
	if err != nil {
		return err
	}
	have := 0
	err = c.each(record.TabDeviceChunk, func(key, _ []byte) error {
		have++
		if !c.chunks[string(key)] {
			c.problem("the index of devices has key %x, which belongs to no stripe", key)
		}
		return nil
	})
	if have != len(c.chunks) {
		c.problem("the index of devices has %d chunks, but the stripes have %d", have, len(c.chunks))
	}
	return err
}

func (c *contentChecks) grants() error {
	live := make(map[string]bool)
	var end moraine.StripeID
	err := c.each(record.TabGrant, func(key, value []byte) error {
		g, err := record.DecodeGrant(value)
		if err != nil {
			return err
		}
		if g.First <= end || g.Last() != moraine.StripeID(record.LastU64(key)) {
			c.problem("grant %s overlaps the previous one, or has the key of another", g.First)
		}
		end = g.Last()
		if !c.known(g.Session) {
			c.problem("grant %s belongs to session %s, which has ended", g.First, g.Session)
		}
		live[string(c.K.SessionGrant(g.Session, g.Last()))] = true
		for id := g.First; id <= g.Last(); id++ {
			if c.stripes[id] != nil && !g.IsUsed(id) {
				c.problem("stripe %s exists, but its grant has it as unused", id)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return c.each(record.TabSessionGrant, func(key, _ []byte) error {
		if !live[string(key)] {
			c.problem("the index of sessions has the grant of key %x, which does not exist", key)
		}
		delete(live, string(key))
		return nil
	})
}

func (c *contentChecks) counts() error {
	n, err := c.Counters()
	if err != nil {
		return err
	}
	live, ended := uint64(0), uint64(0)
	for _, isLive := range c.sessions {
		if isLive {
			live++
		} else {
			ended++
		}
	}
	for _, row := range []struct {
		what      string
		have, has uint64
	}{
		{"sessions", n[record.CSessions], live},
		{"ended sessions", n[record.CEndedSessions], ended},
		{"inodes", n[record.CInodes], uint64(len(c.inodes))},
		{"stripes", n[record.CStripes], uint64(len(c.stripes))},
	} {
		if row.have != row.has {
			c.problem("the counter of %s is %d, but the state has %d", row.what, row.have, row.has)
		}
	}
	return err
}
