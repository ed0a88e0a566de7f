package transport

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"fmt"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
	"google.golang.org/protobuf/proto"
)

// Keys finds the public key of a session token. It returns nil for an unknown id.
// It must be safe for concurrent use.
type Keys func(id uint64) ed25519.PublicKey

// SignToken returns the token for claims.
func SignToken(key ed25519.PrivateKey, claims *wire.TokenClaims) ([]byte, error) {
	c, err := proto.Marshal(claims)
	if err != nil {
		return nil, &moraine.Error{Op: "transport.SignToken", Kind: moraine.InvalidArgument, Err: err}
	}
	token, err := proto.Marshal(&wire.SessionToken{Claims: c, Signature: ed25519.Sign(key, c)})
	if err != nil {
		return nil, &moraine.Error{Op: "transport.SignToken", Kind: moraine.InvalidArgument, Err: err}
	}
	return token, nil
}

// VerifyToken verifies a token that peer presents at now, and returns its claims.
// Errors have kind Unauthenticated or WrongCluster, or Unavailable if the key is
// unknown here. A server that has just started learns the keys when it registers.
// Until then it cannot refuse a token for good.
func VerifyToken(token []byte, peer *Peer, keys Keys, now time.Time) (*wire.TokenClaims, error) {
	bad := func(kind moraine.Kind, format string, args ...any) (*wire.TokenClaims, error) {
		return nil, &moraine.Error{Op: "transport.token", Ref: peer.Node, Kind: kind, Err: fmt.Errorf(format, args...)}
	}
	if len(token) == 0 {
		return bad(moraine.Unauthenticated, "a %s must present a session token here", peer.Role)
	}
	var st wire.SessionToken
	if err := proto.Unmarshal(token, &st); err != nil {
		return bad(moraine.Unauthenticated, "token is damaged: %w", err)
	}
	claims := new(wire.TokenClaims)
	if err := proto.Unmarshal(st.Claims, claims); err != nil {
		return bad(moraine.Unauthenticated, "token is damaged: %w", err)
	}
	var key ed25519.PublicKey
	if keys != nil {
		key = keys(claims.Key)
	}
	switch {
	case len(key) != ed25519.PublicKeySize:
		return bad(moraine.Unavailable, "token key %d is not known here yet: try again", claims.Key)
	case !ed25519.Verify(key, st.Claims, st.Signature):
		return bad(moraine.Unauthenticated, "token signature is wrong")
	case !peer.Cluster.IsZero() && string(claims.Cluster) != string(peer.Cluster[:]):
		return bad(moraine.WrongCluster, "token is of another cluster")
	case claims.Node != peer.Node:
		return bad(moraine.Unauthenticated, "token was issued to %s", claims.Node)
	case !bytes.Equal(claims.Principal, peer.Principal()):
		return bad(moraine.Unauthenticated, "token was issued under another certificate of %s: open a new session", claims.Node)
	}
	if err := checkExpiry(claims, now); err != nil {
		return bad(moraine.Unauthenticated, "%w", err)
	}
	return claims, nil
}

var errTokenExpired = errors.New("the session token expired: renew the session")

func checkExpiry(c *wire.TokenClaims, now time.Time) error {
	if now.Unix() >= c.Expires {
		return errTokenExpired
	}
	return nil
}

// needsToken reports whether a caller of this role must present a session token on
// a connection of this class.
func needsToken(role Role, class Class) bool { return class == Bulk && !role.Server() }
