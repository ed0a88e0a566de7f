package mem

import (
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/tiers"
)

// A dirty chunk is written with the sums of its arrival, and may have lain in memory for
// long: a bit that flipped meanwhile is then on the device, with a sum that does not match.
// Nobody is served that; but nobody would know before the next scrub that there is a copy
// less. So a chunk that stayed in memory for verifyAge is verified when it is written, and
// Where reports it. It is written all the same: its intact blocks may be the last copy.
// A chunk that leaves memory sooner is as safe as its buffer was while it arrived. To read
// it once more would cost a tenth of a host's throughput at level memory.

// verifyAge is how long a chunk stays in memory unverified.
const verifyAge = 10 * time.Second

// maxRotten bounds how many such chunks are remembered; the scrub finds the others.
const maxRotten = 1024

// rotten are chunks on the device that rotted before they were written.
type rotten map[moraine.ChunkID]moraine.LayoutVersion

// verify compares a dirty chunk that is about to be written with its checksums, if it is old
// enough. The caller holds its claim.
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
		t.m.deps.Log.Error("chunk checksum mismatch in memory before it was written", "chunk", h.ID.String(), "block", i, "got", got, "want", want)
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

// isRotten reports whether a chunk of the device is one of them.
func (b *behind) isRotten(h *tiers.Header) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	version, ok := b.rotten[h.ID]
	return ok && version == h.Version
}

// forgetRotten forgets what was deleted.
func (b *behind) forgetRotten(d tiers.Deletion) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if version, ok := b.rotten[d.ID]; ok && version < d.Below {
		delete(b.rotten, d.ID)
	}
}
