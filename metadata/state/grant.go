package state

import (
	"math"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// MaxGrant is the most stripes that one grant reserves.
	MaxGrant = 1024
	// MaxSessionGrants is the most live grants of one session.
	MaxSessionGrants = 256
	// MaxSessionBytes is the most bytes of chunks that the live grants of one session
	// allow on a device: nothing else bounds what a session puts and does not commit.
	// Clients hold a grant of 4 GiB at most, so that they meet MaxSessionGrants first.
	MaxSessionBytes = 1 << 40
)

// grantIn returns the grant of one of the two tables that covers id, nil if
// none does.
func (v *view) grantIn(table byte, id moraine.StripeID) (*record.Grant, error) {
	var g *record.Grant
	var bad error
	prefix := v.k.table(table)
	err := v.r.Scan(v.k.u64(table, uint64(id)), prefixEnd(prefix), func(_, value []byte) bool {
		g, bad = record.DecodeGrant(value)
		return false
	})
	if err == nil {
		err = bad
	}
	if err != nil || g == nil || !g.Covers(id) {
		return nil, err
	}
	return g, nil
}

// grantOf returns the grant that covers a stripe number, live or ended; nil if
// none is known any more.
func (v *view) grantOf(id moraine.StripeID) (g *record.Grant, live bool, err error) {
	if g, err = v.grantIn(record.TabGrant, id); err != nil || g != nil {
		return g, g != nil, err
	}
	g, err = v.grantIn(record.TabEndedGrant, id)
	return g, false, err
}

// grant reserves stripe numbers for the session. Where each is to go is the
// leader's advice, added to the reply.
func (m *Machine) grant(t *tx, op *wire.Grant) (*wire.MetaResponse, error) {
	if op.GetCount() == 0 || op.GetCount() > MaxGrant {
		return nil, fail(moraine.InvalidArgument, "grant", "", "%d stripes; 1 to %d can be granted at once", op.GetCount(), MaxGrant)
	}
	place := moraine.InodeID(op.GetInode())
	if place == 0 {
		place = t.scope.root
	}
	i, err := t.named(place)
	if err != nil {
		return nil, err
	}
	live, err := t.keysUnder(t.k.sessionGrants(t.session.Id), MaxSessionGrants)
	if err != nil {
		return nil, err
	}
	if len(live) == MaxSessionGrants {
		return nil, fail(moraine.TooLarge, "grant", "", "the session has %d grants: end one", MaxSessionGrants)
	}
	g := &record.Grant{Count: op.GetCount(), Session: t.session.Id, Tenant: i.Tenant, Used: make([]byte, (op.GetCount()+7)/8)}
	if op.GetChunkLength() != 0 {
		chunks := uint64(op.GetScheme().GetK()) + uint64(op.GetScheme().GetM())
		g.Chunks, g.Length = uint32(min(chunks, math.MaxUint32)), uint32(min(op.GetChunkLength(), math.MaxUint32))
		if !record.ValidChunks(g.Chunks, g.Length) {
			return nil, fail(moraine.InvalidArgument, "grant", "", "stripes of %d chunks of %d bytes", chunks, op.GetChunkLength())
		}
	}
	if err := t.boundGrants(live, g); err != nil {
		return nil, err
	}
	first, err := t.nextIDs(record.CStripe, uint64(op.GetCount()))
	if err != nil {
		return nil, err
	}
	g.First = moraine.StripeID(first)
	t.insert(t.k.grant(g.Last()), g.Encode())
	t.insert(t.k.sessionGrant(g.Session, g.Last()), []byte{record.GrantVersion})
	s, err := t.usageState()
	if err != nil {
		return nil, err
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Grant{Grant: &wire.GrantReply{
		First: uint64(g.First), Count: g.Count, Tenant: uint32(g.Tenant), Quotas: s.Quotas > 0,
	}}}, nil
}

// boundGrants refuses a grant that would allow the session more bytes than it may put. live
// are the keys of its grants.
func (t *tx) boundGrants(live [][]byte, g *record.Grant) error {
	all := g.Bytes()
	for _, key := range live {
		b, ok, err := t.Get(t.k.grant(moraine.StripeID(record.LastU64(key))))
		if err == nil && !ok {
			err = &moraine.Error{Op: "grant", Ref: g.Session.String(), Kind: moraine.Corrupt}
		}
		if err != nil {
			return err
		}
		other, err := record.DecodeGrant(b)
		if err != nil {
			return err
		}
		all += other.Bytes()
	}
	if all > MaxSessionBytes {
		return fail(moraine.TooLarge, "grant", "", "the grants of the session would allow %d bytes of chunks, %d at most: end one", all, int64(MaxSessionBytes))
	}
	return nil
}

// endGrant gives back what is left of a grant; one that is over already is
// fine. So is another session's, which stays: nobody learns which numbers others have.
func (m *Machine) endGrant(t *tx, op *wire.EndGrant) (*wire.MetaResponse, error) {
	g, err := t.grantIn(record.TabGrant, moraine.StripeID(op.GetFirst()))
	if err != nil {
		return nil, err
	}
	if g == nil || g.Session != t.session.Id {
		return done(), nil
	}
	m.finishGrant(t, g)
	return done(), nil
}

// finishGrant ends a grant. It stays as a range that explains the chunks put
// under it and never committed, until every device has reported past its end.
func (m *Machine) finishGrant(t *tx, g *record.Grant) {
	t.del(t.k.grant(g.Last()))
	t.del(t.k.sessionGrant(g.Session, g.Last()))
	g.EndedAt, g.EndedSince = t.index, t.clusterTime()
	t.put(t.k.endedGrant(g.Last()), g.Encode())
}

// endSessionGrants ends at most budget grants of a session.
func (m *Machine) endSessionGrants(t *tx, id moraine.SessionID, budget int) (int, error) {
	keys, err := t.keysUnder(t.k.sessionGrants(id), (budget+2)/3)
	if err != nil {
		return 0, err
	}
	for _, key := range keys {
		b, ok, err := t.Get(t.k.grant(moraine.StripeID(record.LastU64(key))))
		if err != nil {
			return 0, err
		}
		if !ok {
			return 0, &moraine.Error{Op: "end grants", Ref: id.String(), Kind: moraine.Corrupt}
		}
		g, err := record.DecodeGrant(slices.Clone(b))
		if err != nil {
			return 0, err
		}
		m.finishGrant(t, g)
	}
	return 3 * len(keys), nil
}
