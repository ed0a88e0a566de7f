package state

import (
	"sync/atomic"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
)

// decoder is a record that can be read from its bytes.
type decoder[T any] interface {
	*T
	Decode(b []byte) error
}

// look returns a record that is not to be changed; nil where there is none. What
// the commands of an entry look at again and again (a device, the cluster's
// identity) is decoded once for all of them, while none writes it.
func look[T any, D decoder[T]](v *view, key []byte) (*T, error) {
	var c *cell
	if t, ok := v.r.(*tx); ok {
		if have := t.b.cells[string(key)]; have == nil || have.writer != t.seq {
			var err error
			if c, err = t.b.load(key); err != nil {
				return nil, err
			}
			if known, ok := c.decoded.(*T); ok {
				return known, nil
			}
		}
	}
	b, ok, err := v.r.Get(key)
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

func (h *grantHints) of(s moraine.SessionID) *atomic.Uint64 { return &h[uint64(s)%hintSlots] }

// ownGrant returns the live grant of the command's session that covers a stripe
// number, nil if none does. Within one command it is the same record each time,
// which takeStripes changes.
func (t *tx) ownGrant(id moraine.StripeID) (*record.Grant, error) {
	if t.granted != nil && t.granted.Covers(id) {
		return t.granted, nil
	}
	hint := t.m.hints.of(t.session.Id)
	g, err := t.grantEnding(moraine.StripeID(hint.Load()))
	if err == nil && (g == nil || !g.Covers(id)) {
		g, err = t.grantIn(record.TabGrant, id)
	}
	if err != nil || g == nil || g.Session != t.session.Id {
		return nil, err
	}
	t.granted = g
	hint.Store(uint64(g.Last()))
	return g, nil
}

// grantEnding returns the live grant whose last number is last, nil if there is
// none. Grants do not overlap, so that one that covers a number is the one that a
// search would find.
func (v *view) grantEnding(last moraine.StripeID) (*record.Grant, error) {
	if last == 0 {
		return nil, nil
	}
	b, ok, err := v.r.Get(v.k.grant(last))
	if err != nil || !ok {
		return nil, err
	}
	return record.DecodeGrant(b)
}
