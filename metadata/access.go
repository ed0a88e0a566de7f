package metadata

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/morainefs/moraine/transport/wire/ops"
)

// admit checks a request against its caller's certificate. peer is nil if the call came over no
// connection; such a call may do everything.
func admit(peer *transport.Peer, op *op, req *wire.MetaRequest) (*lead.Call, error) {
	caller, role := identify(peer)
	if op.may&role == 0 {
		return nil, lead.Denied("a certificate of role %q may not make this request", caller.Role)
	}
	if caller.ReadOnly && !op.ReadOnly(req) {
		return nil, &moraine.Error{Kind: moraine.ReadOnly, Err: fmt.Errorf("the certificate of %q is read-only", caller.Node)}
	}
	c := &lead.Call{Req: req, Caller: caller, Peer: peer}
	if host, speaks := op.Sender(req); speaks && role != admins && host != "" && host != caller.Node {
		return nil, lead.Denied("node %q may not speak for node %q", caller.Node, host)
	}
	return c, nil
}

// who is a set of roles of callers.
type who uint8

const (
	clients      who = 1 << iota // clients and gateways
	chunkservers                 // and their movers
	admins
	metadatas // metadata servers, about themselves
)

func roleOf(r transport.Role) who {
	switch r {
	case transport.RoleAdmin:
		return admins
	case transport.RoleChunkserver:
		return chunkservers
	case transport.RoleClient, transport.RoleGateway:
		return clients
	case transport.RoleMetadata:
		return metadatas
	default: // an unknown role may do nothing
		return 0
	}
}

// callersOf returns the roles that may send a request.
func callersOf(o *ops.Op) who {
	switch o.Callers {
	case wire.Operation_ADMINS:
		return admins
	case wire.Operation_PEOPLE: // all except servers: see node.go
		return admins | clients
	case wire.Operation_SERVERS:
		return admins | chunkservers
	case wire.Operation_ANYONE:
		return admins | clients | chunkservers
	case wire.Operation_METADATA:
		return admins | metadatas
	default: // package ops refuses an option without callers
		return 0
	}
}

// identify returns the caller that a certificate identifies. Servers and administrators are not
// confined to a directory.
func identify(peer *transport.Peer) (*statepb.Caller, who) {
	if peer == nil {
		return &statepb.Caller{Role: string(transport.RoleAdmin), Scope: "/"}, admins
	}
	role := roleOf(peer.Role)
	c := &statepb.Caller{Node: peer.Node, Role: string(peer.Role), Scope: "/", Principal: peer.Principal()}
	if role == clients {
		c.Scope, c.ReadOnly, c.Squash = cleanScope(peer.Scope), peer.ReadOnly, peer.Squash
	}
	return c, role
}

// cleanScope returns a scope as an absolute path without a trailing slash; "/" for the root.
func cleanScope(scope string) string {
	parts := strings.FieldsFunc(scope, func(r rune) bool { return r == '/' })
	return "/" + strings.Join(parts, "/")
}

// within reports whether the directory scope lies in outer, both clean.
func within(scope, outer string) bool {
	return outer == "/" || scope == outer || strings.HasPrefix(scope, outer+"/")
}

// openSessionRequest returns the request with the certificate's limits filled in: a session may be
// narrower than its certificate, never wider.
func openSessionRequest(c *lead.Call) (*wire.MetaRequest, error) {
	asked := c.Req.GetOpenSession()
	scope := c.Caller.Scope
	if asked.Scope != "" {
		scope = cleanScope(asked.Scope)
	}
	if !within(scope, c.Caller.Scope) {
		return nil, lead.Denied("the certificate of %q is confined to %s", c.Caller.Node, c.Caller.Scope)
	}
	if len(asked.Nonce) != nonceLen {
		return nil, &moraine.Error{Kind: moraine.InvalidArgument, Err: fmt.Errorf("the nonce has %d bytes, but must have %d", len(asked.Nonce), nonceLen)}
	}
	req := proto.CloneOf(c.Req)
	open := req.GetOpenSession()
	open.Node, open.Role, open.Scope = c.Caller.Node, c.Caller.Role, scope
	open.ReadOnly = open.ReadOnly || c.Caller.ReadOnly
	open.Squash = open.Squash || c.Caller.Squash
	return req, nil
}

// nonceLen is the length of the nonce of an OpenSession, in bytes.
const nonceLen = 16
