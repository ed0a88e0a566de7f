package state

import (
	"fmt"
	"math"
	"slices"

	"github.com/morainefs/moraine"
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

// grant is a range of stripe numbers that one session may fill. Its key is its
// last number, so that the first key at or past a number is the grant that may
// cover it.
type grant struct {
	first   moraine.StripeID
	count   uint32
	session moraine.SessionID
	tenant  moraine.Tenant
	// chunks is how many chunks a stripe may have, and length how many bytes a chunk: 0
	// where the leader did not say, which allows what a stripe has at most.
	chunks, length uint32
	// used has a bit for each number that was committed once, so that it is
	// never committed again after its stripe died.
	used []byte
	// Of an ended grant: the log index and the cluster time of its end.
	endedAt    uint64
	endedSince uint64
}

const grantVersion = 1

func (g *grant) last() moraine.StripeID { return g.first + moraine.StripeID(g.count) - 1 }

func (g *grant) covers(id moraine.StripeID) bool { return g.first <= id && id <= g.last() }

func (g *grant) isUsed(id moraine.StripeID) bool {
	n := id - g.first
	return g.used[n/8]&(1<<(n%8)) != 0
}

func (g *grant) use(id moraine.StripeID) {
	n := id - g.first
	g.used[n/8] |= 1 << (n % 8)
}

func (g *grant) encode() []byte {
	b := make([]byte, 0, 48+len(g.used))
	b = append(b, grantVersion)
	b = putFixed64(b, uint64(g.first))
	b = putUvarint(b, uint64(g.count))
	b = putFixed64(b, uint64(g.session))
	b = putUvarint(b, uint64(g.tenant))
	b = putUvarint(putUvarint(b, uint64(g.chunks)), uint64(g.length))
	b = putBytes(b, g.used)
	b = putUvarint(b, g.endedAt)
	return putUvarint(b, g.endedSince)
}

func decodeGrant(b []byte) (*grant, error) {
	d := dec{b: b}
	d.version(grantVersion)
	g := &grant{first: moraine.StripeID(d.fixed64()), count: d.u32()}
	g.session = moraine.SessionID(d.fixed64())
	g.tenant = moraine.Tenant(d.u32())
	g.chunks, g.length = d.u32(), d.u32()
	if d.err == nil && (g.chunks != 0 || g.length != 0) && !validChunks(g.chunks, g.length) {
		d.fail(fmt.Errorf("a grant of %d chunks of %d bytes", g.chunks, g.length))
	}
	g.used = d.bytes()
	g.endedAt = d.uvarint()
	g.endedSince = d.uvarint()
	folded := g.endedAt != 0 && len(g.used) == 0
	if d.err == nil && (g.count == 0 || !folded && uint32(len(g.used)) != (g.count+7)/8) {
		d.fail(errShort)
	}
	return g, d.end("grant")
}

func validChunks(chunks, length uint32) bool {
	return chunks > 0 && chunks <= moraine.MaxChunks && length > 0 && length <= moraine.MaxChunkSize
}

// perStripe returns how many chunks of a stripe may be put, and how long they may be.
func (g *grant) perStripe() (chunks, length uint32) {
	if g.length == 0 {
		return moraine.MaxChunks, moraine.MaxChunkSize
	}
	return g.chunks, g.length
}

// bytes returns how many bytes of chunks may be put under the grant on one device.
func (g *grant) bytes() uint64 {
	chunks, length := g.perStripe()
	return uint64(g.count) * uint64(chunks) * uint64(length)
}

// grantIn returns the grant of one of the two tables that covers id, nil if
// none does.
func (v *view) grantIn(table byte, id moraine.StripeID) (*grant, error) {
	var g *grant
	var bad error
	prefix := v.k.table(table)
	err := v.r.Scan(v.k.u64(table, uint64(id)), prefixEnd(prefix), func(_, value []byte) bool {
		g, bad = decodeGrant(value)
		return false
	})
	if err == nil {
		err = bad
	}
	if err != nil || g == nil || !g.covers(id) {
		return nil, err
	}
	return g, nil
}

// grantOf returns the grant that covers a stripe number, live or ended; nil if
// none is known any more.
func (v *view) grantOf(id moraine.StripeID) (g *grant, live bool, err error) {
	if g, err = v.grantIn(tabGrant, id); err != nil || g != nil {
		return g, g != nil, err
	}
	g, err = v.grantIn(tabEndedGrant, id)
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
	live, err := t.keysUnder(t.k.sessionGrants(t.session.id), MaxSessionGrants)
	if err != nil {
		return nil, err
	}
	if len(live) == MaxSessionGrants {
		return nil, fail(moraine.TooLarge, "grant", "", "the session has %d grants: end one", MaxSessionGrants)
	}
	g := &grant{count: op.GetCount(), session: t.session.id, tenant: i.tenant, used: make([]byte, (op.GetCount()+7)/8)}
	if op.GetChunkLength() != 0 {
		chunks := uint64(op.GetScheme().GetK()) + uint64(op.GetScheme().GetM())
		g.chunks, g.length = uint32(min(chunks, math.MaxUint32)), uint32(min(op.GetChunkLength(), math.MaxUint32))
		if !validChunks(g.chunks, g.length) {
			return nil, fail(moraine.InvalidArgument, "grant", "", "stripes of %d chunks of %d bytes", chunks, op.GetChunkLength())
		}
	}
	if err := t.boundGrants(live, g); err != nil {
		return nil, err
	}
	first, err := t.nextIDs(cStripe, uint64(op.GetCount()))
	if err != nil {
		return nil, err
	}
	g.first = moraine.StripeID(first)
	t.insert(t.k.grant(g.last()), g.encode())
	t.insert(t.k.sessionGrant(g.session, g.last()), []byte{grantVersion})
	s, err := t.usageState()
	if err != nil {
		return nil, err
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Grant{Grant: &wire.GrantReply{
		First: uint64(g.first), Count: g.count, Tenant: uint32(g.tenant), Quotas: s.quotas > 0,
	}}}, nil
}

// boundGrants refuses a grant that would allow the session more bytes than it may put. live
// are the keys of its grants.
func (t *tx) boundGrants(live [][]byte, g *grant) error {
	all := g.bytes()
	for _, key := range live {
		b, ok, err := t.Get(t.k.grant(moraine.StripeID(lastU64(key))))
		if err == nil && !ok {
			err = &moraine.Error{Op: "grant", Ref: g.session.String(), Kind: moraine.Corrupt}
		}
		if err != nil {
			return err
		}
		other, err := decodeGrant(b)
		if err != nil {
			return err
		}
		all += other.bytes()
	}
	if all > MaxSessionBytes {
		return fail(moraine.TooLarge, "grant", "", "the grants of the session would allow %d bytes of chunks, %d at most: end one", all, int64(MaxSessionBytes))
	}
	return nil
}

// endGrant gives back what is left of a grant; one that is over already is
// fine. So is another session's, which stays: nobody learns which numbers others have.
func (m *Machine) endGrant(t *tx, op *wire.EndGrant) (*wire.MetaResponse, error) {
	g, err := t.grantIn(tabGrant, moraine.StripeID(op.GetFirst()))
	if err != nil {
		return nil, err
	}
	if g == nil || g.session != t.session.id {
		return done(), nil
	}
	m.finishGrant(t, g)
	return done(), nil
}

// finishGrant ends a grant. It stays as a range that explains the chunks put
// under it and never committed, until every device has reported past its end.
func (m *Machine) finishGrant(t *tx, g *grant) {
	t.del(t.k.grant(g.last()))
	t.del(t.k.sessionGrant(g.session, g.last()))
	g.endedAt, g.endedSince = t.index, t.clusterTime()
	t.put(t.k.endedGrant(g.last()), g.encode())
}

// endSessionGrants ends at most budget grants of a session.
func (m *Machine) endSessionGrants(t *tx, id moraine.SessionID, budget int) (int, error) {
	keys, err := t.keysUnder(t.k.sessionGrants(id), (budget+2)/3)
	if err != nil {
		return 0, err
	}
	for _, key := range keys {
		b, ok, err := t.Get(t.k.grant(moraine.StripeID(lastU64(key))))
		if err != nil {
			return 0, err
		}
		if !ok {
			return 0, &moraine.Error{Op: "end grants", Ref: id.String(), Kind: moraine.Corrupt}
		}
		g, err := decodeGrant(slices.Clone(b))
		if err != nil {
			return 0, err
		}
		m.finishGrant(t, g)
	}
	return 3 * len(keys), nil
}
