package mem

import "github.com/morainefs/moraine"

// maxLeft is how many chunks Left names.
const maxLeft = 1 << 16

// departures are chunks that have stopped being dirty.
type departures struct {
	written, deleted []moraine.ChunkID
	missed           bool // there were more than maxLeft
}

func (d *departures) add(id moraine.ChunkID, deleted bool) {
	switch {
	case len(d.written)+len(d.deleted) >= maxLeft:
		d.missed = true
	case deleted:
		d.deleted = append(d.deleted, id)
	default:
		d.written = append(d.written, id)
	}
}

// Left returns the chunks that have stopped being dirty since the last call. deleted are those that
// DeleteAll and Deferred.Drop have deleted. written are the others: they are on the device, or Delete or a
// later version has ended them. all: there were more than Left remembers, so any chunk may have left. A
// chunk may be named twice, and may be dirty again.
func (t *Tier) Left() (written, deleted []moraine.ChunkID, all bool) {
	b := t.behind
	b.mu.Lock()
	defer b.mu.Unlock()
	d := b.left
	b.left = departures{}
	return d.written, d.deleted, d.missed
}
