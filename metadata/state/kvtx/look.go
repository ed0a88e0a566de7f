package kvtx

import (
	"sync/atomic"

	"github.com/morainefs/moraine"
)

// decoder is a record that can be decoded from its bytes.
type decoder[T any] interface {
	*T
	Decode(b []byte) error
}

// Look returns a record that the caller must not change, or nil if there is none. The commands of
// an entry share one decoded copy until a command writes the key. This helps for records that many
// commands read, such as a device or the cluster identity.
func Look[T any, D decoder[T]](v *View, key []byte) (*T, error) {
	var c *cell
	if t, ok := v.R.(*Tx); ok {
		if have := t.B.cells[string(key)]; have == nil || have.writer != t.seq {
			var err error
			if c, err = t.B.Load(key); err != nil {
				return nil, err
			}
			if known, ok := c.decoded.(*T); ok {
				return known, nil
			}
		}
	}
	b, ok, err := v.R.Get(key)
	if err != nil || !ok {
		return nil, err
	}
	record := new(T)
	if err := D(record).Decode(b); err != nil {
		return nil, err
	}
	if c != nil {
		c.decoded = record
	}
	return record, nil
}

// hintSlots is the number of sessions whose last grant is remembered.
const hintSlots = 1024

// grantHints remembers the grant that a session last committed under, so that the next commit finds
// it without a search. It is a guess that the caller verifies against the state; the effect of a
// command never depends on it.
type grantHints [hintSlots]atomic.Uint64

// Of returns the slot of session s. Sessions may share a slot.
func (h *grantHints) Of(s moraine.SessionID) *atomic.Uint64 { return &h[uint64(s)%hintSlots] }
