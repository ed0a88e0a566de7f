package kvtx

import (
	"sync/atomic"

	"github.com/morainefs/moraine"
)

// decoder is a record that can be read from its bytes.
type decoder[T any] interface {
	*T
	Decode(b []byte) error
}

// Look returns a record that is not to be changed; nil where there is none. What
// the commands of an entry look at again and again (a device, the cluster's
// identity) is decoded once for all of them, while none writes it.
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

// hintSlots is how many sessions' last grants are remembered.
const hintSlots = 1024

// grantHints remembers which grant a session last committed under, so that the
// next commit finds it without a search. It is a guess, and held against the
// state: what a command does never depends on it.
type grantHints [hintSlots]atomic.Uint64

func (h *grantHints) Of(s moraine.SessionID) *atomic.Uint64 { return &h[uint64(s)%hintSlots] }
