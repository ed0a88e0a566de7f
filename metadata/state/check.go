package state

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"github.com/morainefs/moraine"
)

// maxProblems bounds how many problems one Check lists.
const maxProblems = 100

// Check reads every pair of the partition and holds the records against each
// other: reference counts, link counts, indexes, counters and the running sum.
// It returns what does not fit, in words; nil where all does. It keeps the
// whole namespace in memory and is meant for tests and for inspection. An error
// means that the store failed or a value does not decode.
func (m *Machine) Check(r Reader) ([]string, error) {
	c := &checker{view: m.view(r), inodes: make(map[moraine.InodeID]*inode), names: make(map[moraine.InodeID]int),
		content: make(map[uint64]*inode), refs: make(map[moraine.TableID]uint32), base: make(map[moraine.TableID]int64),
		stripes: make(map[moraine.StripeID]*moraine.Stripe), uses: make(map[moraine.StripeID]uint32),
		chunks: make(map[string]bool), sessions: make(map[moraine.SessionID]bool), rows: make(map[string]bool),
		objectUses: make(map[moraine.ObjectID]uint32), uploading: make(map[moraine.ObjectID]bool)}
	passes := []func() error{
		c.sum, c.allSessions, c.allInodes, c.dentries, c.nameRows, c.attributes, c.linkCounts, c.allRefs, c.tables, c.allStripes, c.grants, c.owned, c.holds, c.counts, c.usages, c.quotas,
	}
	for _, pass := range append(append(passes, c.clusterPasses()...), c.objectPasses()...) {
		if err := pass(); err != nil {
			return c.problems, err
		}
	}
	return c.problems, nil
}

type checker struct {
	*view
	problems []string

	inodes   map[moraine.InodeID]*inode
	names    map[moraine.InodeID]int // dentries that name an inode
	content  map[uint64]*inode
	refs     map[moraine.TableID]uint32
	base     map[moraine.TableID]int64 // length of the range of one reference
	stripes  map[moraine.StripeID]*moraine.Stripe
	uses     map[moraine.StripeID]uint32
	chunks   map[string]bool // keys of the index of devices that must be
	sessions map[moraine.SessionID]bool
	rows     map[string]bool // keys of names that must be
	doomed   int

	objectUses                                                         map[moraine.ObjectID]uint32 // tables
	uploading                                                          map[moraine.ObjectID]bool
	objectsSeen, objectBytes, intentsSeen, unsettledKeys, policiesSeen uint64
}

func (c *checker) problem(format string, args ...any) {
	if len(c.problems) < maxProblems {
		c.problems = append(c.problems, fmt.Sprintf(format, args...))
	}
}

// each calls fn with every pair of a table.
func (c *checker) each(table byte, fn func(key, value []byte) error) error {
	var bad error
	prefix := c.k.table(table)
	err := c.r.Scan(prefix, prefixEnd(prefix), func(key, value []byte) bool {
		bad = fn(key, value)
		return bad == nil
	})
	if err == nil {
		err = bad
	}
	return err
}

func (c *checker) sum() error {
	var sum, want Sum
	lo, hi := c.k.all()
	sumKey := c.k.meta(metaSum)
	var bad error
	err := c.r.Scan(lo, hi, func(key, value []byte) bool {
		if bytes.Equal(key, sumKey) {
			want, bad = decodeSum(value)
			return bad == nil
		}
		sum.add(key, value)
		return true
	})
	if err == nil {
		err = bad
	}
	if err == nil && sum != want {
		c.problem("the running sum is %x, the pairs give %x", want, sum)
	}
	return err
}

func (c *checker) allSessions() error {
	err := c.each(tabSession, func(key, value []byte) error {
		s := &session{id: moraine.SessionID(lastU64(key))}
		c.sessions[s.id] = true
		return s.decode(value)
	})
	if err != nil {
		return err
	}
	return c.each(tabEndedSession, func(key, _ []byte) error {
		id := moraine.SessionID(lastU64(key))
		if c.sessions[id] {
			c.problem("session %s is live and ended", id)
		}
		c.sessions[id] = false
		return nil
	})
}

// known reports whether a session is live or still being cleaned up.
func (c *checker) known(id moraine.SessionID) bool {
	_, ok := c.sessions[id]
	return ok
}

func (c *checker) allInodes() error {
	return c.each(tabInode, func(key, value []byte) error {
		i := &inode{id: moraine.InodeID(lastU64(key))}
		if err := i.decode(value); err != nil {
			return err
		}
		c.inodes[i.id] = i
		if i.content != 0 {
			if other := c.content[i.content]; other != nil {
				c.problem("inodes %s and %s have the same content %d", other.id, i.id, i.content)
			}
			c.content[i.content] = i
		}
		return nil
	})
}

func (c *checker) dentries() error {
	entries := make(map[moraine.InodeID]uint64)
	dirs := make(map[moraine.InodeID]uint32)
	n, err := c.counters()
	if err != nil {
		return err
	}
	kept := n[cNames] != 0
	err = c.each(tabDentry, func(key, value []byte) error {
		parent, name := moraine.InodeID(lastU64(key[:11])), string(key[11:])
		e, err := decodeDentry(value)
		if err != nil {
			return err
		}
		entries[parent]++
		c.names[e.inode]++
		child := c.inodes[e.inode]
		switch {
		case c.inodes[parent] == nil:
			c.problem("entry %q of %s: there is no such directory", name, parent)
		case child == nil:
			c.problem("entry %q of %s: inode %s does not exist", name, parent, e.inode)
		case child.typ != e.typ || (!child.manyLinks && child.parent != parent):
			c.problem("entry %q of %s: inode %s has type %d and parent %s", name, parent, e.inode, child.typ, child.parent)
		case !child.manyLinks && child.name != name && (kept || child.name != ""):
			c.problem("entry %q of %s: inode %s keeps the name %q", name, parent, e.inode, child.name)
		case child.manyLinks:
			c.rows[string(c.k.name(e.inode, parent, name))] = true
		case child.typ == typeDirectory:
			dirs[parent]++
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, i := range c.sorted() {
		if i.typ != typeDirectory {
			continue
		}
		if i.entries != entries[i.id] {
			c.problem("directory %s counts %d entries and has %d", i.id, i.entries, entries[i.id])
		}
		if i.nlink != 0 && i.nlink != 2+dirs[i.id] {
			c.problem("directory %s has link count %d and %d directories", i.id, i.nlink, dirs[i.id])
		}
	}
	return nil
}

// nameRows checks the names of what has had two against the directories.
func (c *checker) nameRows() error {
	home := make(map[moraine.InodeID]bool)
	err := c.each(tabName, func(key, _ []byte) error {
		id := moraine.InodeID(lastU64(key[:11]))
		parent, name := nameOfKey(key)
		if !c.rows[string(key)] {
			c.problem("inode %s has the row of name %q in %s, which is not its entry", id, name, parent)
			return nil
		}
		delete(c.rows, string(key))
		i := c.inodes[id]
		if i.parent == parent && (i.name == name || i.name == "") {
			home[id] = true
		}
		return nil
	})
	if len(c.rows) > 0 {
		c.problem("%d names of files with several have no row", len(c.rows))
	}
	for _, i := range c.sorted() {
		if i.manyLinks && i.nlink > 0 && !home[i.id] {
			c.problem("inode %s keeps the name %q in %s, which it does not have", i.id, i.name, i.parent)
		}
		if i.nlink == 0 && (i.name != "" || i.parent != 0) {
			c.problem("inode %s has no name and keeps %q in %s", i.id, i.name, i.parent)
		}
	}
	return err
}

// attributes checks extended attributes against their inodes.
func (c *checker) attributes() error {
	has := make(map[moraine.InodeID]int)
	bytes := make(map[moraine.InodeID]int)
	err := c.each(tabXattr, func(key, value []byte) error {
		id := moraine.InodeID(lastU64(key[:11]))
		v, err := decodeXattr(value)
		has[id]++
		bytes[id] += len(key) - 11 + len(v)
		if c.inodes[id] == nil {
			c.problem("inode %s has extended attributes and does not exist", id)
		}
		return err
	})
	for _, i := range c.sorted() {
		if i.xattrs != (has[i.id] > 0) || has[i.id] > MaxXattrs || bytes[i.id] > MaxXattrBytes {
			c.problem("inode %s has %d extended attributes of %d bytes, its flag is %t", i.id, has[i.id], bytes[i.id], i.xattrs)
		}
	}
	return err
}

// sorted returns the inodes in order, so that problems come in order too.
func (c *checker) sorted() []*inode {
	ids := make([]moraine.InodeID, 0, len(c.inodes))
	for id := range c.inodes {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	out := make([]*inode, len(ids))
	for n, id := range ids {
		out[n] = c.inodes[id]
	}
	return out
}

func (c *checker) linkCounts() error {
	making, err := c.concats()
	if err != nil {
		return err
	}
	for _, i := range c.sorted() {
		if i.typ == typeDirectory {
			continue
		}
		if int(i.nlink) != c.names[i.id] {
			c.problem("inode %s has link count %d and %d names", i.id, i.nlink, c.names[i.id])
		}
		if (i.owner != 0 || making[i.id]) != (i.nlink == 0) {
			c.problem("inode %s has link count %d and owner %s", i.id, i.nlink, i.owner)
		}
	}
	doomed := make(map[moraine.InodeID]bool)
	err = c.each(tabDoomed, func(key, _ []byte) error {
		doomed[moraine.InodeID(lastU64(key))] = true
		return nil
	})
	for _, i := range c.sorted() {
		detached := i.typ == typeDirectory && i.nlink == 0
		if detached && !doomed[i.id] {
			c.problem("directory %s was removed and no job takes it away", i.id)
		}
		if i.typ == typeDirectory && !detached && i.id != c.k.top() && c.names[i.id] != 1 {
			c.unnamedDir(i)
		}
	}
	return err
}

// unnamedDir judges a directory that is not named once. The directory of a
// checkpoint that is not committed yet has no name.
func (c *checker) unnamedDir(i *inode) {
	if c.names[i.id] == 0 && i.owner == 0 {
		c.doomed++ // counted by the checkpoint's own check
		return
	}
	c.problem("directory %s has %d names", i.id, c.names[i.id])
}

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

// owned checks what hangs on sessions.
func (c *checker) owned() error {
	err := c.each(tabSessionInode, func(key, _ []byte) error {
		id, s := moraine.InodeID(lastU64(key)), moraine.SessionID(lastU64(key[:11]))
		if i := c.inodes[id]; i == nil || i.owner != s {
			c.problem("session %s has inode %s, which is not its own", s, id)
		}
		if !c.known(s) {
			c.problem("inode %s belongs to session %s, which is gone", id, s)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return c.each(tabAnswer, func(key, _ []byte) error {
		if s := moraine.SessionID(lastU64(key[:11])); !c.known(s) {
			c.problem("an answer is kept for session %s, which is gone", s)
		}
		return nil
	})
}

func (c *checker) counts() error {
	n, err := c.counters()
	if err != nil {
		return err
	}
	var pending uint64
	err = c.each(tabTombstone, func(_, value []byte) error {
		s, err := decodeTombstone(value)
		pending += uint64(s.bytes)
		return err
	})
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
		{"sessions", n[cSessions], live},
		{"ended sessions", n[cEndedSessions], ended},
		{"inodes", n[cInodes], uint64(len(c.inodes))},
		{"stripes", n[cStripes], uint64(len(c.stripes))},
		{"pending bytes", n[cPendingBytes], pending},
	} {
		if row.have != row.has {
			c.problem("the counter of %s is %d, there are %d", row.what, row.have, row.has)
		}
	}
	return err
}
