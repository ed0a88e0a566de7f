// Package capability makes and verifies the capabilities that callers present to
// chunkservers. A capability is a signed permission to read or write the chunks of
// some stripes, to repair some chunks, or to read some objects. A path-scoped
// certificate thus confines bytes as it confines names.
//
// The metadata service signs a capability for each grant, and for the intents of
// each repair. For a session that is confined to a directory, it also signs one for
// each page of extents. A chunkserver verifies it with the public keys that come
// with heartbeats, which needs no request, and caches the result. A capability
// costs one signature and one verification, however often it is presented.
//
// A capability names its holder: a session, whose token the connection must
// present, or the node of a server. Nobody else can use it. It ends with its term,
// with the incarnation of the metadata, and with its session, since the token of an
// ended session is not renewed.
//
// One path through the package: the metadata service calls Sign. A chunkserver
// calls Verifier.Verify (verified.go), then Holds for the holder and the term, and
// CoversRead or another Covers function for the request.
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
	// MaxParts is the most parts of chunks, and ranges of objects, in one
	// capability. A page of extents has up to 1,000. Those of one stripe cross from
	// chunk to chunk 31 times at most.
	MaxParts = 2048
)

// domain separates these signatures from those of session tokens, which the same
// key signs.
const domain = "moraine capability\x00"

// Sign returns the encoded capability for claims, which must meet the conditions of
// Verify.
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

// Parse returns the claims of an encoded capability without verification. It is for
// the holder, which only needs to know what the capability covers.
func Parse(b []byte) (*wire.CapabilityClaims, error) {
	_, claims, err := decode(b)
	return claims, err
}

// decode refuses encodings that Sign does not write: every other encoding of the
// same claims, and claims that mean nothing. The signature covers only the bytes of
// the claims, so anybody could append to the bytes around them.
func decode(b []byte) (*wire.Capability, *wire.CapabilityClaims, error) {
	c, claims := new(wire.Capability), new(wire.CapabilityClaims)
	if err := exactly(b, c); err != nil {
		return nil, nil, err
	}
	if err := exactly(c.Claims, claims); err != nil {
		return nil, nil, err
	}
	if len(c.Signature) != ed25519.SignatureSize {
		return nil, nil, denied("capability is damaged: signature of %d bytes", len(c.Signature))
	}
	return c, claims, wellFormed(claims)
}

// exactly decodes a message. b must be its shortest encoding, without unknown
// fields.
func exactly(b []byte, m proto.Message) error {
	if err := proto.Unmarshal(b, m); err != nil {
		return denied("capability is damaged: %w", err)
	}
	if len(m.ProtoReflect().GetUnknown()) > 0 || proto.Size(m) != len(b) {
		return denied("capability is damaged: %d meaningless bytes", len(b)-proto.Size(m)+len(m.ProtoReflect().GetUnknown()))
	}
	return nil
}

// wellFormed checks the claims that every capability has, and those that belong to
// its right.
func wellFormed(c *wire.CapabilityClaims) error {
	stripes, objects, intents, parts := len(c.Stripes) > 0, len(c.Objects) > 0, len(c.Intents) > 0, len(c.Parts) > 0
	ok := false
	switch c.Right {
	case wire.CapabilityRight_CAPABILITY_RIGHT_READ:
		ok = (stripes || objects || parts) && !intents && c.Chunks == 0
	case wire.CapabilityRight_CAPABILITY_RIGHT_WRITE:
		ok = stripes && !objects && !intents && !parts && c.Inode == 0 && c.Chunks > 0 && c.Chunks <= moraine.MaxChunks &&
			c.Length > 0 && c.Length <= moraine.MaxChunkSize
	case wire.CapabilityRight_CAPABILITY_RIGHT_REPAIR:
		ok = intents && !stripes && !objects && !parts && c.Inode == 0 && c.Chunks == 0
	}
	if c.Right != wire.CapabilityRight_CAPABILITY_RIGHT_WRITE && c.Length != 0 {
		ok = false
	}
	switch {
	case !ok || len(c.Cluster) != len(moraine.UUID{}) || c.Session == 0 && c.Node == "":
		return denied("capability has claims that do not fit its right")
	case len(c.Stripes) > MaxRanges || !inOrder(c.Stripes):
		return denied("capability has too many, empty or unordered stripes")
	case len(c.Objects) > MaxParts || !objectsInOrder(c.Objects):
		return denied("capability has too many, empty or unordered objects")
	case len(c.Parts) > MaxParts || !partsInOrder(c.Parts):
		return denied("capability has too many, empty or unordered parts of chunks")
	}
	return nil
}

// inOrder reports whether all ranges are non-empty, within the largest number, and
// in order without touching or overlapping.
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

// Verify verifies the signature of an encoded capability and returns its claims.
// Holds and the Covers functions check the holder, the term and what it covers.
// Errors have kind PermissionDenied, or Unavailable if the key is not known here
// yet.
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
		return nil, &moraine.Error{Op: op, Kind: moraine.Unavailable, Err: fmt.Errorf("signing key %d of the capability is not known here yet: try again", claims.Key)}
	case !ed25519.Verify(key, signed(c.Claims), c.Signature):
		return nil, denied("capability signature is wrong")
	}
	return claims, nil
}

const op = "capability"

// errExpired means that the term of a capability has ended.
var errExpired = errors.New("capability expired: request another from the metadata service")

// Holds returns PermissionDenied unless the claims are of this cluster, and of an
// incarnation that is not superseded. They must be within their term at now
// (seconds since the epoch), and held by peer. peer is nil in a call without a
// connection, which may hold any capability.
func Holds(c *wire.CapabilityClaims, peer *transport.Peer, cluster moraine.UUID, incarnation uint64, now int64) error {
	switch {
	case string(c.Cluster) != string(cluster[:]):
		return denied("capability is of another cluster")
	case c.Incarnation < incarnation:
		return denied("capability is of metadata incarnation %d, the current one is %d", c.Incarnation, incarnation)
	case now >= c.Expires:
		return denied("%w", errExpired)
	case peer == nil:
		return nil
	case peer.Token != nil && (c.Session == 0 || peer.Token.Session != c.Session):
		return denied("capability belongs to another session")
	case peer.Token == nil && (c.Node == "" || !peer.Role.Server() || c.Node != peer.Node):
		return denied("capability belongs to another node")
	}
	return nil
}

// CoversStripe reports whether the claims cover all chunks of a stripe.
func CoversStripe(c *wire.CapabilityClaims, stripe uint64) bool {
	n := sort.Search(len(c.Stripes), func(n int) bool { return c.Stripes[n].First > stripe })
	return n > 0 && stripe-c.Stripes[n-1].First < c.Stripes[n-1].Count
}

// CoversRead reports whether the claims cover a range of a chunk. To repair a chunk
// its holder reads the others, so an intent covers its whole stripe.
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

// CoversChunk reports whether the claims have an intent for exactly this chunk.
func CoversChunk(c *wire.CapabilityClaims, stripe uint64, index, device, version uint32) bool {
	return slices.ContainsFunc(c.Intents, func(in *wire.Intent) bool {
		return in.Stripe == stripe && in.Index == index && in.Device == device && in.Version == version
	})
}

// Ranges sorts stripe numbers, and returns them as ordered ranges.
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
