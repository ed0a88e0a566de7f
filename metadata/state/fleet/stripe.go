package fleet

import (
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// Stripe returns a stripe's record; nil if there is none.
func Stripe(v *kvtx.View, id moraine.StripeID) (*moraine.Stripe, error) {
	b, ok, err := v.R.Get(v.K.Stripe(id))
	if err != nil || !ok {
		return nil, err
	}
	return record.DecodeStripe(id, b)
}

// InsertStripe writes a new stripe and its entries in the index of devices.
func InsertStripe(t *kvtx.Tx, s *moraine.Stripe) {
	t.Insert(t.K.Stripe(s.ID), record.EncodeStripe(s))
	presence := record.EncodePresence(t.Index) // shared by all entries, since nobody changes it
	for i, c := range s.Chunks {
		t.Insert(t.K.DeviceChunk(c.Device, moraine.ChunkID{Stripe: s.ID, Index: uint8(i)}), presence)
	}
	t.Count[record.CStripes]++
}

// putStripe writes a changed stripe and updates the index of devices. old are the devices in the
// index.
func putStripe(t *kvtx.Tx, old []moraine.DeviceID, s *moraine.Stripe) {
	for i, c := range s.Chunks {
		if old[i] == c.Device {
			continue
		}
		id := moraine.ChunkID{Stripe: s.ID, Index: uint8(i)}
		t.Del(t.K.DeviceChunk(old[i], id))
		t.Put(t.K.DeviceChunk(c.Device, id), record.EncodePresence(t.Index))
	}
	t.Put(t.K.Stripe(s.ID), record.EncodeStripe(s))
}

// NewStripe checks a new stripe of a commit and returns its first record for the tenant, without
// references and origin.
func NewStripe(w *wire.Stripe, tenant moraine.Tenant) (*moraine.Stripe, error) {
	bad := func(format string, args ...any) (*moraine.Stripe, error) {
		return nil, kvtx.Fail(moraine.InvalidArgument, "commit", moraine.StripeID(w.GetId()).String(), format, args...)
	}
	s := &moraine.Stripe{}
	if err := wire.StripeFromWire(s, w); err != nil {
		return bad("%v", err)
	}
	if s.Version > 1 {
		return bad("a new stripe cannot have layout version %d", s.Version)
	}
	s.Version, s.Tenant, s.LiveBytes, s.RefCount = 1, tenant, 0, 0
	for i := range s.Chunks {
		c := &s.Chunks[i]
		if c.Level != moraine.Memory && c.Level != moraine.NVMe {
			return bad("chunk %d is at level %d, but a commit needs level memory or nvme", i, w.Chunks[i].GetLevel())
		}
		if c.Level != moraine.Memory {
			c.Epoch = 0
		}
	}
	return s, nil
}

// SameChunks reports whether have is the record that a commit of want made, possibly with chunks
// that a repair has moved since.
func SameChunks(have, want *moraine.Stripe) bool {
	if have.Scheme != want.Scheme || have.Length != want.Length || have.Cipher != want.Cipher || have.KeyID != want.KeyID {
		return false
	}
	for i := range have.Chunks {
		if have.Chunks[i].CRC != want.Chunks[i].CRC {
			return false
		}
	}
	return true
}

// protects returns how many failure domains, whichever they are, may be lost with the stripe still
// readable. It is the greatest j such that the j domains with the most chunks, plus the chunks
// already missing, have at most M chunks. domains names the domain of each present chunk; missing
// chunks are omitted. The result is at most M.
func protects(scheme moraine.Scheme, domains []string) int {
	spare := len(domains) - int(scheme.K)
	if spare <= 0 {
		return 0
	}
	var counts []int
	seen := make(map[string]int, len(domains))
	for _, d := range domains {
		i, ok := seen[d]
		if !ok {
			i = len(counts)
			seen[d] = i
			counts = append(counts, 0)
		}
		counts[i]++
	}
	slices.SortFunc(counts, func(a, b int) int { return b - a })
	j := 0
	for _, n := range counts {
		if spare -= n; spare < 0 {
			break
		}
		j++
	}
	return min(j, int(scheme.M))
}

// SigningKeys returns the keys that sign session tokens, oldest ID first, with private halves as
// the service encrypted them.
func SigningKeys(r *kvtx.View) ([]*wire.SigningKey, error) {
	return signingKeys(r)
}

// StripeByID returns a stripe's record; nil if there is none.
func StripeByID(r *kvtx.View, id moraine.StripeID) (*moraine.Stripe, error) {
	return Stripe(r, id)
}

// GrantInfo is a live grant.
type GrantInfo struct {
	First   moraine.StripeID
	Count   uint32
	Session moraine.SessionID
	Tenant  moraine.Tenant
	// Chunks is the largest number of chunks of a stripe, ChunkLength the largest length of a chunk
	// in bytes.
	Chunks, ChunkLength uint32
}

// LiveGrant returns the live grant that covers a stripe number; false if none
// does.
func LiveGrant(r *kvtx.View, id moraine.StripeID) (GrantInfo, bool, error) {
	g, err := grantIn(r, record.TabGrant, id)
	if err != nil || g == nil {
		return GrantInfo{}, false, err
	}
	chunks, length := g.PerStripe()
	return GrantInfo{g.First, g.Count, g.Session, g.Tenant, chunks, length}, true, nil
}
