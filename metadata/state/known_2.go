//go:build moraine_level2

package state

import (
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// The numbers at which requests, and the leader's own commands, of level 3 and later begin.
const (
	laterRequests protoreflect.FieldNumber = 200
	laterCommands protoreflect.FieldNumber = 240
)

// knows reports whether the release of level 2 had a command. That release's schema would not even
// decode the others.
func knows(cmd *statepb.Command) bool {
	if req := cmd.GetRequest(); req != nil {
		f := wire.Op(req)
		return f == nil || f.Number() < laterRequests
	}
	m := cmd.ProtoReflect()
	f := m.WhichOneof(m.Descriptor().Oneofs().ByName("op"))
	return f == nil || f.Number() < laterCommands
}
