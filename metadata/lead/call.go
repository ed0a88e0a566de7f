package lead

import (
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// Call is a request with a checked caller.
type Call struct {
	Req    *wire.MetaRequest
	Caller *statepb.Caller
	Peer   *transport.Peer // nil if the call came over no connection
}

// IsChunkserver reports whether a chunkserver, or its mover, makes the request.
func (c *Call) IsChunkserver() bool { return c.Caller.Role == string(transport.RoleChunkserver) }

// SpokenFor returns the node that a request names as its sender, if the request has such a field.
func SpokenFor(req *wire.MetaRequest) (string, bool) {
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

// Host is the node for which a chunkserver's request is made: the certificate's node. An
// administrator, or a caller in the same process, may name another one.
func (c *Call) Host() (string, error) {
	named, _ := SpokenFor(c.Req)
	if named == "" {
		named = c.Caller.Node
	}
	if named == "" {
		return "", &moraine.Error{Kind: moraine.InvalidArgument, Err: fmt.Errorf("the request names no node")}
	}
	return named, nil
}

// Denied is the error for a request that the caller may not make.
func Denied(format string, args ...any) error {
	return &moraine.Error{Kind: moraine.PermissionDenied, Err: fmt.Errorf(format, args...)}
}
