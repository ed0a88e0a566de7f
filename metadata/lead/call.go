package lead

import (
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/morainefs/moraine/transport/wire/ops"
)

// Call is a request with a checked caller.
type Call struct {
	Req    *wire.MetaRequest
	Caller *statepb.Caller
	Peer   *transport.Peer // nil if the call came over no connection
}

// IsChunkserver reports whether a chunkserver, or its mover, makes the request.
func (c *Call) IsChunkserver() bool { return c.Caller.Role == string(transport.RoleChunkserver) }

// Host is the node for which a chunkserver's request is made: the certificate's node. An
// administrator, or a caller in the same process, may name another one.
func (c *Call) Host() (string, error) {
	var named string
	if o := ops.Of(c.Req); o != nil {
		named, _ = o.Sender(c.Req)
	}
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
