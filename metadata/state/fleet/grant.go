package fleet

import (
	"math"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/metadata/state/usage"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// MaxGrant is the largest number of stripes in one grant.
	MaxGrant = 1024
	// maxSessionGrants is the largest number of live grants of one session.
	maxSessionGrants = 256
	// MaxSessionBytes bounds the bytes of chunks that the live grants of one session allow on a
	// device. Nothing else bounds the bytes that a session writes and does not commit. Clients use
	// grants of at most 4 GiB, so that they reach maxSessionGrants first.
	MaxSessionBytes = 1 << 40
)

// grantIn returns the grant in one of the two tables that covers id; nil if there is none.
func grantIn(v *kvtx.View, table byte, id moraine.StripeID) (*record.Grant, error) {
	var g *record.Grant
	prefix := v.K.Table(table)
	err := v.Each(v.K.U64(table, uint64(id)), kvtx.PrefixEnd(prefix), func(_, value []byte) (_ bool, err error) {
		g, err = record.DecodeGrant(value)
		return false, err
	})
	if err != nil || g == nil || !g.Covers(id) {
		return nil, err
	}
	return g, nil
}

// grantOf returns the grant that covers a stripe number, live or ended; nil if none is known.
func grantOf(v *kvtx.View, id moraine.StripeID) (g *record.Grant, live bool, err error) {
	if g, err = grantIn(v, record.TabGrant, id); err != nil || g != nil {
		return g, g != nil, err
	}
	g, err = grantIn(v, record.TabEndedGrant, id)
	return g, false, err
}

// Grant reserves stripe numbers for the session. The leader adds to the reply where to place each
// stripe.
func Grant(t *kvtx.Tx, op *wire.Grant) (*wire.MetaResponse, error) {
	if op.GetCount() == 0 || op.GetCount() > MaxGrant {
		return nil, kvtx.Fail(moraine.InvalidArgument, "grant", "", "the request is for %d stripes, but must be for 1 to %d", op.GetCount(), MaxGrant)
	}
	place := moraine.InodeID(op.GetInode())
	if place == 0 {
		place = t.Scope.Root
	}
	i, err := tree.Named(t, place)
	if err != nil {
		return nil, err
	}
	live, err := t.KeysUnder(t.K.SessionGrants(t.Session.Id), maxSessionGrants)
	if err != nil {
		return nil, err
	}
	if len(live) == maxSessionGrants {
		return nil, kvtx.Fail(moraine.TooLarge, "grant", "", "the session has %d grants, which is the limit: end one", maxSessionGrants)
	}
	g := &record.Grant{Count: op.GetCount(), Session: t.Session.Id, Tenant: i.Tenant, Used: make([]byte, (op.GetCount()+7)/8)}
	if op.GetChunkLength() != 0 {
		chunks := uint64(op.GetScheme().GetK()) + uint64(op.GetScheme().GetM())
		g.Chunks, g.Length = uint32(min(chunks, math.MaxUint32)), uint32(min(op.GetChunkLength(), math.MaxUint32))
		if !record.ValidChunks(g.Chunks, g.Length) {
			return nil, kvtx.Fail(moraine.InvalidArgument, "grant", "", "a stripe cannot have %d chunks of %d bytes", chunks, op.GetChunkLength())
		}
	}
	if err := boundGrants(t, live, g); err != nil {
		return nil, err
	}
	first, err := t.NextIDs(record.CStripe, uint64(op.GetCount()))
	if err != nil {
		return nil, err
	}
	g.First = moraine.StripeID(first)
	t.Insert(t.K.Grant(g.Last()), g.Encode())
	t.Insert(t.K.SessionGrant(g.Session, g.Last()), []byte{record.GrantVersion})
	s, err := usage.UsageState(&t.View)
	if err != nil {
		return nil, err
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Grant{Grant: &wire.GrantReply{
		First: uint64(g.First), Count: g.Count, Tenant: uint32(g.Tenant), Quotas: s.Quotas > 0,
	}}}, nil
}

// boundGrants refuses a grant that would let the session write too many bytes. live are the keys of
// its grants.
func boundGrants(t *kvtx.Tx, live [][]byte, g *record.Grant) error {
	all := g.Bytes()
	for _, key := range live {
		b, ok, err := t.Get(t.K.Grant(moraine.StripeID(record.LastU64(key))))
		if err == nil && !ok {
			err = kvtx.Corrupt("grant", g.Session.String(), "the session has a grant without a record")
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
		return kvtx.Fail(moraine.TooLarge, "grant", "", "the grants of the session would allow %d bytes of chunks, %d at most: end a grant", all, int64(MaxSessionBytes))
	}
	return nil
}

// EndGrant ends a grant of the session; it succeeds if the grant has already ended. It also
// succeeds, without effect, for another session's grant, so that a session cannot learn which
// numbers others have.
func EndGrant(t *kvtx.Tx, op *wire.EndGrant) (*wire.MetaResponse, error) {
	g, err := grantIn(&t.View, record.TabGrant, moraine.StripeID(op.GetFirst()))
	if err != nil {
		return nil, err
	}
	if g == nil || g.Session != t.Session.Id {
		return kvtx.Done(), nil
	}
	finishGrant(t, g)
	return kvtx.Done(), nil
}

// finishGrant ends a grant. The ended grant explains the uncommitted chunks written under it, until
// every device has reported after its end.
func finishGrant(t *kvtx.Tx, g *record.Grant) {
	t.Del(t.K.Grant(g.Last()))
	t.Del(t.K.SessionGrant(g.Session, g.Last()))
	g.EndedAt, g.EndedSince = t.Index, t.ClusterTime()
	t.Put(t.K.EndedGrant(g.Last()), g.Encode())
}

// EndSessionGrants ends at most budget grants of a session.
func EndSessionGrants(t *kvtx.Tx, id moraine.SessionID, budget int) (int, error) {
	keys, err := t.KeysUnder(t.K.SessionGrants(id), (budget+2)/3)
	if err != nil {
		return 0, err
	}
	for _, key := range keys {
		b, ok, err := t.Get(t.K.Grant(moraine.StripeID(record.LastU64(key))))
		if err != nil {
			return 0, err
		}
		if !ok {
			return 0, kvtx.Corrupt("end grants", id.String(), "the session has a grant without a record")
		}
		g, err := record.DecodeGrant(slices.Clone(b))
		if err != nil {
			return 0, err
		}
		finishGrant(t, g)
	}
	return 3 * len(keys), nil
}

// OwnGrant returns the live grant of the command's session that covers a stripe number; nil if
// there is none. Within one command every call returns the same record, which TakeStripes changes.
func OwnGrant(t *kvtx.Tx, id moraine.StripeID) (*record.Grant, error) {
	if t.Granted != nil && t.Granted.Covers(id) {
		return t.Granted, nil
	}
	hint := t.B.Space.Hints.Of(t.Session.Id)
	g, err := grantEnding(&t.View, moraine.StripeID(hint.Load()))
	if err == nil && (g == nil || !g.Covers(id)) {
		g, err = grantIn(&t.View, record.TabGrant, id)
	}
	if err != nil || g == nil || g.Session != t.Session.Id {
		return nil, err
	}
	t.Granted = g
	hint.Store(uint64(g.Last()))
	return g, nil
}

// grantEnding returns the live grant whose last number is last; nil if there is none. Grants do not
// overlap, so if it covers a number, a search would find the same one.
func grantEnding(v *kvtx.View, last moraine.StripeID) (*record.Grant, error) {
	if last == 0 {
		return nil, nil
	}
	b, ok, err := v.R.Get(v.K.Grant(last))
	if err != nil || !ok {
		return nil, err
	}
	return record.DecodeGrant(b)
}
