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

// MaxRanges is the most ranges of stripes in one capability.
const MaxRanges = 64

// domain separates what is signed from session tokens, which the same key signs.
const domain = "moraine capability\x00"

// Sign returns the encoded capability for claims.
func Sign(key ed25519.PrivateKey, claims *wire.CapabilityClaims) ([]byte, error) {
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
	var c wire.Capability
	claims := new(wire.CapabilityClaims)
	err := proto.Unmarshal(b, &c)
	if err == nil {
		err = proto.Unmarshal(c.Claims, claims)
	}
	if err != nil {
		return nil, denied("the capability is damaged: %w", err)
	}
	return claims, nil
}

// Verify checks the signature of an encoded capability and returns its claims.
// Whose it is, whether its term has ended and what it covers is for Holds and the
// Covers functions to judge. Errors have kind PermissionDenied, or Unavailable where
// the key is not known here yet.
func Verify(b []byte, keys transport.Keys) (*wire.CapabilityClaims, error) {
	var c wire.Capability
	if err := proto.Unmarshal(b, &c); err != nil {
		return nil, denied("the capability is damaged: %w", err)
	}
	claims := new(wire.CapabilityClaims)
	if err := proto.Unmarshal(c.Claims, claims); err != nil {
		return nil, denied("the capability is damaged: %w", err)
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
	case len(claims.Stripes) > MaxRanges || !inOrder(claims.Stripes):
		return nil, denied("the stripes of the capability are too many, or out of order")
	}
	return claims, nil
}

func inOrder(ranges []*wire.StripeRange) bool {
	return slices.IsSortedFunc(ranges, func(a, b *wire.StripeRange) int {
		if a.First+a.Count <= b.First {
			return -1
		}
		return 1
	})
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

// CoversObject reports whether the claims cover an object.
func CoversObject(c *wire.CapabilityClaims, object uint64) bool {
	return slices.Contains(c.Objects, object)
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
