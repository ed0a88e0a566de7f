package mem

import (
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/tiers"
)

// A dirty chunk is written with the checksums of its arrival, and may have been in
// memory for long. A bit that flipped meanwhile is then on the device, with a
// checksum that does not match. No reader gets these bytes, but before the next
// scrub nothing would report that a copy is missing. So a chunk that stayed in
// memory for verifyAge is verified when it is written, and Where reports the
// damage. The device still gets the chunk: its intact blocks may be the last copy.
//
// A chunk that leaves memory sooner is as safe as its buffer was while it arrived.
// To read it once more would cost a tenth of a host's throughput at level memory.

// verifyAge is how long a chunk stays in memory unverified.
const verifyAge = 10 * time.Second

// maxRotten limits how many such chunks are remembered; the scrub finds the others.
const maxRotten = 1024

// rotten holds the chunks on the device that were damaged before they were written.
type rotten map[moraine.ChunkID]moraine.LayoutVersion

// verify verifies a dirty chunk that is about to be written against its checksums,
// if it is old enough. The caller holds its claim.
func (t *Tier) verify(d *dirtyChunk) {
	if t.m.deps.Clock.Since(d.arrived) < verifyAge {
		return
	}
	h := &d.held.header
	for i, want := range d.sums {
		b := d.data[int64(i)*block : min(int64(i+1)*block, h.Length)]
		got := crc.Sum(b)
		if got == want {
			continue
		}
		t.m.deps.Log.Error("memory chunk checksum mismatch before write", "chunk", h.ID.String(), "block", i, "got", got, "want", want)
		t.behind.noteRotten(h)
		return
	}
}

func (b *behind) noteRotten(h *tiers.Header) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rotten == nil {
		b.rotten = rotten{}
	}
	if len(b.rotten) < maxRotten {
		b.rotten[h.ID] = h.Version
	}
}

// isRotten reports whether a chunk of the device was damaged before it was written.
func (b *behind) isRotten(h *tiers.Header) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	version, ok := b.rotten[h.ID]
	return ok && version == h.Version
}

// forgetRotten forgets a deleted chunk.
func (b *behind) forgetRotten(d tiers.Deletion) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if version, ok := b.rotten[d.ID]; ok && version < d.Below {
		delete(b.rotten, d.ID)
	}
}
