package metadata

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// call is a request whose caller is known and may make it.
type call struct {
	op     *op
	req    *wire.MetaRequest
	caller *statepb.Caller
	peer   *transport.Peer // nil where the call came over no connection
}

// admit holds a request against its caller's certificate. peer is nil in a call
// that came over no connection, which may do everything.
func admit(peer *transport.Peer, op *op, req *wire.MetaRequest) (*call, error) {
	caller, role := identify(peer)
	if op.may&role == 0 {
		return nil, denied("a certificate of role %q may not make this request", caller.Role)
	}
	if caller.ReadOnly && !op.readOnly(req) {
		return nil, &moraine.Error{Kind: moraine.ReadOnly, Err: fmt.Errorf("the certificate of %q is read-only", caller.Node)}
	}
	c := &call{op: op, req: req, caller: caller, peer: peer}
	if host, speaks := spokenFor(req); speaks && role != admins && host != "" && host != caller.Node {
		return nil, denied("node %q may not speak for node %q", caller.Node, host)
	}
	return c, nil
}

// readOnly is whether a request may be made under a read-only certificate.
func (o *op) readOnly(req *wire.MetaRequest) bool {
	switch r := req.Op.(type) {
	case *wire.MetaRequest_OpenRun:
		return r.OpenRun.GetReadOnly()
	case *wire.MetaRequest_ResolveStep:
		return !r.ResolveStep.GetFix()
	default:
		return o.reads
	}
}

// identify returns the caller that a certificate stands for. Servers and
// administrators are confined to no directory.
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

// spokenFor returns the node that a request says it comes from, and whether it
// is one that does.
func spokenFor(req *wire.MetaRequest) (string, bool) {
	switch r := req.Op.(type) {
	case *wire.MetaRequest_RegisterHost:
		return r.RegisterHost.GetHost().GetId(), true
	case *wire.MetaRequest_Heartbeat:
		return r.Heartbeat.GetHost(), true
	case *wire.MetaRequest_LeaseJobs:
		return r.LeaseJobs.GetHost(), true
	case *wire.MetaRequest_MemberBeat:
		return r.MemberBeat.GetId(), true
	default:
		return "", false
	}
}

// host is the node on whose behalf a chunkserver's request is made: the
// certificate's, or, from an administrator or in process, the one it names.
func (c *call) host() (string, error) {
	named, _ := spokenFor(c.req)
	if named == "" {
		named = c.caller.Node
	}
	if named == "" {
		return "", &moraine.Error{Kind: moraine.InvalidArgument, Err: fmt.Errorf("the request names no node")}
	}
	return named, nil
}

// cleanScope returns a scope as an absolute path without a slash at the end,
// "/" for the root.
func cleanScope(scope string) string {
	parts := strings.FieldsFunc(scope, func(r rune) bool { return r == '/' })
	return "/" + strings.Join(parts, "/")
}

// within is whether the directory scope lies in outer, both clean.
func within(scope, outer string) bool {
	return outer == "/" || scope == outer || strings.HasPrefix(scope, outer+"/")
}

// openSessionRequest returns the request with what the certificate says filled
// in: a session may be narrower than its certificate, and never wider.
func openSessionRequest(c *call) (*wire.MetaRequest, error) {
	asked := c.req.GetOpenSession()
	scope := c.caller.Scope
	if asked.Scope != "" {
		scope = cleanScope(asked.Scope)
	}
	if !within(scope, c.caller.Scope) {
		return nil, denied("the certificate of %q is confined to %s", c.caller.Node, c.caller.Scope)
	}
	if len(asked.Nonce) != nonceLen {
		return nil, &moraine.Error{Kind: moraine.InvalidArgument, Err: fmt.Errorf("a nonce of %d bytes; it must be %d", len(asked.Nonce), nonceLen)}
	}
	req := proto.CloneOf(c.req)
	open := req.GetOpenSession()
	open.Node, open.Role, open.Scope = c.caller.Node, c.caller.Role, scope
	open.ReadOnly = open.ReadOnly || c.caller.ReadOnly
	open.Squash = open.Squash || c.caller.Squash
	return req, nil
}

// nonceLen is the length of the nonce of an OpenSession, in bytes.
const nonceLen = 16

func denied(format string, args ...any) error {
	return &moraine.Error{Kind: moraine.PermissionDenied, Err: fmt.Errorf(format, args...)}
}
