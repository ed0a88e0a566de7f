package check

import (
	"encoding/binary"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/layout"
	"github.com/morainefs/moraine/metadata/state/record"
)

// inMemory checks the table of chunks in memory against the stripe records.
func (c *contentChecks) inMemory() error {
	rows := map[string]bool{}
	err := c.each(record.TabMemory, func(key, _ []byte) error {
		rows[string(key)] = true
		chunk := fleet.ChunkOfKey(key)
		d := moraine.DeviceID(binary.BigEndian.Uint32(key[3:]))
		s := c.stripes[chunk.Stripe]
		if s == nil || int(chunk.Index) >= len(s.Chunks) || s.Chunks[chunk.Index].Device != d || !fleet.IsInMemory(&s.Chunks[chunk.Index]) {
			c.problem("the index has chunk %s in the memory of device %d, but no stripe has it there", chunk, d)
		}
		return nil
	})
	if err != nil || len(rows) == 0 {
		return err
	}
	for _, s := range c.stripes {
		listed := 0
		for n := range s.Chunks {
			ch := &s.Chunks[n]
			if rows[string(c.K.MemoryChunk(ch.Device, s.MemoryAt, moraine.ChunkID{Stripe: s.ID, Index: uint8(n)}))] {
				listed++
			} else if fleet.IsInMemory(ch) && listed > 0 {
				c.problem("chunk %d of stripe %s is in memory, but not in the index", n, s.ID)
			}
		}
	}
	return nil
}

// unsafeRows finds files below nvme without a row, which would never rise. It also finds files
// whose recorded level differs from their stripes, and files with an object whose stripes no
// inspection would cover.
func (c *contentChecks) unsafeRows() error {
	for _, i := range c.sorted() {
		if i.Typ != record.TypeFile || i.Content == 0 || i.Level == record.LevelLost {
			continue // a clone in progress has no level yet, like a lost file
		}
		_, row, err := c.R.Get(c.K.UnsafeFile(i.Id))
		if err != nil {
			return err
		}
		if i.Level < moraine.NVMe && !row {
			c.problem("file %s is at level %s, but has no row to raise it", i.Id, i.Level)
		}
		if i.Level == moraine.NVMe || i.Level > moraine.NVMe && !row {
			if err := c.safe(i); err != nil {
				return err
			}
		}
	}
	return nil
}

// safe checks the tables of a file against the chunks that are, or were, only in memory.
func (c *contentChecks) safe(i *record.Inode) error {
	if len(c.unsafe) == 0 {
		return nil
	}
	return layout.RefsFrom(c.View, i.Content, -1, func(r record.Ref) (bool, error) {
		if c.unsafe[r.Table] {
			c.problem("file %s is at level %s, but its table %s has chunks below nvme", i.Id, i.Level, r.Table)
		}
		return true, nil
	})
}
