package check

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/metadata/state/layout"
	"github.com/morainefs/moraine/metadata/state/record"
)

// useInlines checks the extents of one table with bytes in the state, and counts the table as a user
// of their records.
func (c *contentChecks) useInlines(id moraine.TableID, h record.TableHead, exts []moraine.Extent) error {
	if have := layout.SumInline(exts); have != h.Inline {
		c.problem("table %s counts %d bytes in the metadata, but has %d", id, h.Inline, have)
	}
	seen := make(map[moraine.InlineID]bool)
	for _, e := range exts {
		if e.Inline == 0 {
			continue
		}
		b, ok, err := c.R.Get(c.K.Inline(e.Inline))
		if err != nil {
			return err
		}
		r := &record.Inline{}
		if ok {
			if err := r.Decode(b); err != nil {
				return err
			}
		}
		if e.StripeOffset+e.Length > int64(len(r.Bytes)) {
			c.problem("table %s uses bytes up to %d of content %s, which is missing or smaller", id, e.StripeOffset+e.Length, e.Inline)
		}
		if !seen[e.Inline] {
			seen[e.Inline] = true
			c.inlines[e.Inline]++
		}
	}
	return nil
}

// allInlines checks the records with bytes of small files, after tables.
func (c *contentChecks) allInlines() error {
	var records, bytes uint64
	err := c.each(record.TabInline, func(key, value []byte) error {
		id := moraine.InlineID(record.LastU64(key))
		r := &record.Inline{}
		if err := r.Decode(value); err != nil {
			return err
		}
		records, bytes = records+1, bytes+uint64(len(r.Bytes))
		if r.Refs == 0 || r.Refs != c.inlines[id] {
			c.problem("content %s counts %d tables, but has %d", id, r.Refs, c.inlines[id])
		}
		if len(r.Bytes) == 0 || len(r.Bytes) > moraine.MaxInline || crc.Sum(r.Bytes) != r.CRC {
			c.problem("content %s has %d bytes, which do not match its checksum or are too many", id, len(r.Bytes))
		}
		return nil
	})
	if err != nil {
		return err
	}
	n, err := c.Counters()
	if n[record.CInlines] != records || n[record.CInlineBytes] != bytes {
		c.problem("the state counts %d records with %d bytes of small files, but has %d with %d", n[record.CInlines], n[record.CInlineBytes], records, bytes)
	}
	return err
}
