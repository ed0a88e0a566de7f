// Package capability makes and verifies the capabilities that callers of
// chunkservers show: signed permissions to read or write the chunks of some
// stripes, to repair some chunks, or to read some objects. A path-scoped
// certificate thereby confines bytes as it confines names.
//
// The metadata service signs one for each grant, for each page of extents of a
// session that is confined to a directory, and for the intents of each repair.
// A chunkserver verifies it with the public keys that come with heartbeats, so
// that no request is needed, and remembers what it has verified: a capability
// costs one signature and one verification, however often it is shown.
//
// A capability names its holder: a session, whose token the connection must
// show, or the node of a server. It is of no use to anybody else. It ends with
// its term, with the incarnation of the metadata, and, as the token of an ended
// session is not renewed, with its session.
package capability

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"slices"
	"sort"

	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// MaxRanges is the most ranges of stripes in one capability.
	MaxRanges = 64
	// MaxParts is the most parts of chunks, and ranges of objects, in one capability: a page of extents has up to
	// 1,000, of which those of one stripe cross from chunk to chunk 31 times at most.
	MaxParts = 2048
)

// domain separates what is signed from session tokens, which the same key signs.
const domain = "moraine capability\x00"

// Sign returns the encoded capability for claims, which must be as Verify wants them.
func Sign(key ed25519.PrivateKey, claims *wire.CapabilityClaims) ([]byte, error) {
	if err := wellFormed(claims); err != nil {
		return nil, &moraine.Error{Op: "capability.Sign", Kind: moraine.InvalidArgument, Err: err}
	}
	c, err := proto.Marshal(claims)
	if err != nil {
		return nil, &moraine.Error{Op: "capability.Sign", Kind: moraine.InvalidArgument, Err: err}
	}
	b, err := proto.Marshal(&wire.Capability{Claims: c, Signature: ed25519.Sign(key, signed(c))})
	if err != nil {
		return nil, &moraine.Error{Op: "capability.Sign", Kind: moraine.InvalidArgument, Err: err}
	}
	return b, nil
}

func signed(claims []byte) []byte { return append([]byte(domain), claims...) }

// Parse returns the claims of an encoded capability without verifying them: for
// its holder, who only needs to know what it is good for.
func Parse(b []byte) (*wire.CapabilityClaims, error) {
	_, claims, err := decode(b)
	return claims, err
}

// decode refuses what Sign does not write: every other encoding of the same claims, and
// claims that mean nothing. What is signed covers the claims' bytes alone, so that anybody
// could add to what is around them.
func decode(b []byte) (*wire.Capability, *wire.CapabilityClaims, error) {
	c, claims := new(wire.Capability), new(wire.CapabilityClaims)
	if err := exactly(b, c); err != nil {
		return nil, nil, err
	}
	if err := exactly(c.Claims, claims); err != nil {
		return nil, nil, err
	}
	if len(c.Signature) != ed25519.SignatureSize {
		return nil, nil, denied("the capability is damaged: a signature of %d bytes", len(c.Signature))
	}
	return c, claims, wellFormed(claims)
}

// exactly decodes a message of which b is the shortest encoding, with no unknown field.
func exactly(b []byte, m proto.Message) error {
	if err := proto.Unmarshal(b, m); err != nil {
		return denied("the capability is damaged: %w", err)
	}
	if len(m.ProtoReflect().GetUnknown()) > 0 || proto.Size(m) != len(b) {
		return denied("the capability is damaged: %d bytes that say nothing", len(b)-proto.Size(m)+len(m.ProtoReflect().GetUnknown()))
	}
	return nil
}

// wellFormed checks what every capability has, and what those of its right have and no other.
func wellFormed(c *wire.CapabilityClaims) error {
	stripes, objects, intents, parts := len(c.Stripes) > 0, len(c.Objects) > 0, len(c.Intents) > 0, len(c.Parts) > 0
	ok := false
	switch c.Right {
	case wire.CapabilityRight_CAPABILITY_RIGHT_READ:
		ok = (stripes || objects || parts) && !intents && c.Chunks == 0
	case wire.CapabilityRight_CAPABILITY_RIGHT_WRITE:
		ok = stripes && !objects && !intents && !parts && c.Inode == 0 && c.Chunks > 0 && c.Chunks <= moraine.MaxChunks
	case wire.CapabilityRight_CAPABILITY_RIGHT_REPAIR:
		ok = intents && !stripes && !objects && !parts && c.Inode == 0 && c.Chunks == 0
	}
	switch {
	case !ok || len(c.Cluster) != len(moraine.UUID{}) || c.Session == 0 && c.Node == "":
		return denied("the claims of the capability do not fit its right")
	case len(c.Stripes) > MaxRanges || !inOrder(c.Stripes):
		return denied("the stripes of the capability are too many, empty, or out of order")
	case len(c.Objects) > MaxParts || !objectsInOrder(c.Objects):
		return denied("the objects of the capability are too many, empty, or out of order")
	case len(c.Parts) > MaxParts || !partsInOrder(c.Parts):
		return denied("the parts of chunks of the capability are too many, empty, or out of order")
	}
	return nil
}

// inOrder reports whether no range is empty, passes the largest number, or touches or
// overlaps the one before it.
func inOrder(ranges []*wire.StripeRange) bool {
	for n, r := range ranges {
		if r.First == 0 || r.Count == 0 || r.First+r.Count < r.First {
			return false
		}
		if n > 0 && r.First <= ranges[n-1].First+ranges[n-1].Count {
			return false
		}
	}
	return true
}

// Verify checks the signature of an encoded capability and returns its claims.
// Whose it is, whether its term has ended and what it covers is for Holds and the
// Covers functions to judge. Errors have kind PermissionDenied, or Unavailable where
// the key is not known here yet.
func Verify(b []byte, keys transport.Keys) (*wire.CapabilityClaims, error) {
	c, claims, err := decode(b)
	if err != nil {
		return nil, err
	}
	var key ed25519.PublicKey
	if keys != nil {
		key = keys(claims.Key)
	}
	switch {
	case len(key) != ed25519.PublicKeySize:
		return nil, &moraine.Error{Op: op, Kind: moraine.Unavailable, Err: fmt.Errorf("the signing key %d of the capability is not known here yet", claims.Key)}
	case !ed25519.Verify(key, signed(c.Claims), c.Signature):
		return nil, denied("the signature of the capability is wrong")
	}
	return claims, nil
}

const op = "capability"

// errExpired says that the term of a capability has ended.
var errExpired = errors.New("the capability expired: ask the metadata service for another")

// Holds fails with PermissionDenied unless the claims are of this cluster, of an
// incarnation that is not past, within their term at now (seconds since the
// epoch), and peer's. peer is nil in a call over no connection, which may hold
// any.
func Holds(c *wire.CapabilityClaims, peer *transport.Peer, cluster moraine.UUID, incarnation uint64, now int64) error {
	switch {
	case string(c.Cluster) != string(cluster[:]):
		return denied("the capability is of another cluster")
	case c.Incarnation < incarnation:
		return denied("the capability is of the metadata's incarnation %d, and %d is the present one", c.Incarnation, incarnation)
	case now >= c.Expires:
		return denied("%w", errExpired)
	case peer == nil:
		return nil
	case peer.Token != nil && (c.Session == 0 || peer.Token.Session != c.Session):
		return denied("the capability is another session's")
	case peer.Token == nil && (c.Node == "" || !peer.Role.Server() || c.Node != peer.Node):
		return denied("the capability is another node's")
	}
	return nil
}

// CoversStripe reports whether the claims cover all chunks of a stripe.
func CoversStripe(c *wire.CapabilityClaims, stripe uint64) bool {
	n := sort.Search(len(c.Stripes), func(n int) bool { return c.Stripes[n].First > stripe })
	return n > 0 && stripe-c.Stripes[n-1].First < c.Stripes[n-1].Count
}

// CoversRead reports whether the claims cover a range of a chunk. To repair a chunk its holder
// reads the others, so that an intent covers its stripe.
func CoversRead(c *wire.CapabilityClaims, stripe uint64, index uint32, offset, length uint64) bool {
	if CoversStripe(c, stripe) || repairs(c, stripe) {
		return true
	}
	in := func(copies bool, index uint32) bool {
		n := sort.Search(len(c.Parts), func(n int) bool { return after(c.Parts[n], stripe, index, offset) })
		if n == 0 {
			return false
		}
		p := c.Parts[n-1]
		return p.Stripe == stripe && p.Index == index && p.Copies == copies && length <= p.Length && offset-p.Offset <= p.Length-length
	}
	return in(false, index) || in(true, 0)
}

// repairs reports whether the claims have an intent for a chunk of a stripe.
func repairs(c *wire.CapabilityClaims, stripe uint64) bool {
	return slices.ContainsFunc(c.Intents, func(in *wire.Intent) bool { return in.Stripe == stripe })
}

// CoversPart reports whether the claims cover any byte of a stripe.
func CoversPart(c *wire.CapabilityClaims, stripe uint64) bool {
	n := sort.Search(len(c.Parts), func(n int) bool { return c.Parts[n].Stripe >= stripe })
	return n < len(c.Parts) && c.Parts[n].Stripe == stripe || CoversStripe(c, stripe) || repairs(c, stripe)
}

// CoversSome reports whether the claims cover any byte of a chunk.
func CoversSome(c *wire.CapabilityClaims, stripe uint64, index uint32) bool {
	if CoversStripe(c, stripe) || repairs(c, stripe) {
		return true
	}
	n := sort.Search(len(c.Parts), func(n int) bool { return c.Parts[n].Stripe >= stripe })
	for ; n < len(c.Parts) && c.Parts[n].Stripe == stripe; n++ {
		if c.Parts[n].Copies || c.Parts[n].Index == index {
			return true
		}
	}
	return false
}

// CoversChunk reports whether the claims have an intent for the chunk, just so.
func CoversChunk(c *wire.CapabilityClaims, stripe uint64, index, device, version uint32) bool {
	return slices.ContainsFunc(c.Intents, func(in *wire.Intent) bool {
		return in.Stripe == stripe && in.Index == index && in.Device == device && in.Version == version
	})
}

// Ranges returns stripe numbers, which it sorts, as ranges in order.
func Ranges(stripes []uint64) []*wire.StripeRange {
	slices.Sort(stripes)
	var out []*wire.StripeRange
	for _, s := range stripes {
		if n := len(out); n > 0 && s-out[n-1].First <= out[n-1].Count {
			out[n-1].Count = max(out[n-1].Count, s-out[n-1].First+1)
			continue
		}
		out = append(out, &wire.StripeRange{First: s, Count: 1})
	}
	return out
}

func denied(format string, args ...any) error {
	return &moraine.Error{Op: op, Kind: moraine.PermissionDenied, Err: fmt.Errorf(format, args...)}
}
