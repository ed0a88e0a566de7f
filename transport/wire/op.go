package wire

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Op returns the field of a request's, or a log command's, operation: the one that
// is set in its oneof "op". It is nil if none is set, as in a message of a later
// build with an unknown operation.
func Op(m proto.Message) protoreflect.FieldDescriptor {
	r := m.ProtoReflect()
	return r.WhichOneof(r.Descriptor().Oneofs().ByName("op"))
}
