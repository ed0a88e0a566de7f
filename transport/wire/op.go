package wire

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Op returns the field of what a request, or a command of the log, is to do: the one
// that is set of its oneof "op". It is nil where none is, as in a message of a later
// build that does what this one does not know.
func Op(m proto.Message) protoreflect.FieldDescriptor {
	r := m.ProtoReflect()
	return r.WhichOneof(r.Descriptor().Oneofs().ByName("op"))
}
