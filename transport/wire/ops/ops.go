// Package ops is the table of the requests of the metadata service: what each
// one does, who may send it and which rules it follows. The client, the leader
// and the state machine all read it. It comes from the option (operation) of
// each field of MetaRequest.op in metadata.proto. One path through it: Of finds
// the Op of a request by the type in its oneof. describe (describe.go) made
// that Op when the process started.
package ops

import (
	"reflect"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/morainefs/moraine/transport/wire"
)

// Op is one kind of request. See wire.Operation for what its properties mean.
type Op struct {
	Index  int                      // in All
	Number protoreflect.FieldNumber // of its field in wire.MetaRequest
	Name   string                   // of that field; also in errors and metrics

	Effect  wire.Operation_Effect
	Callers wire.Operation_Callers
	Scope   wire.Operation_Scope
	Routing wire.Operation_Routing

	Session, Owned, Grows, Leased bool

	readOnly, unnumbered, unlogged bool

	field protoreflect.FieldDescriptor // of MetaRequest
	// readOnlyIf, readUnless and wait are fields of the request itself; nil: it has none. sender is
	// a path of such fields.
	readOnlyIf, readUnless, wait protoreflect.FieldDescriptor
	sender                       []protoreflect.FieldDescriptor
}

var (
	all    = describeAll(oneof)
	byType = typesOf(all)
)

// oneof has the requests.
var oneof = (*wire.MetaRequest)(nil).ProtoReflect().Descriptor().Oneofs().ByName("op")

// Of returns the Op of a request; nil if it has none, or one that this build does not know. It
// allocates nothing.
func Of(req *wire.MetaRequest) *Op {
	op := req.GetOp()
	if op == nil {
		return nil
	}
	return byType[reflect.TypeOf(op)]
}

// All returns each Op once. The caller must not change the slice.
func All() []*Op { return all }

// typesOf returns the Ops by the Go type that MetaRequest.Op has for them.
func typesOf(all []*Op) map[reflect.Type]*Op {
	out := make(map[reflect.Type]*Op, len(all))
	for _, o := range all {
		out[reflect.TypeOf(o.New().Op)] = o
	}
	return out
}

// New returns an empty request of this kind.
func (o *Op) New() *wire.MetaRequest {
	req := &wire.MetaRequest{}
	req.ProtoReflect().Set(o.field, req.ProtoReflect().NewField(o.field))
	return req
}

// IsRead reports whether the state machine answers the request from a view.
func (o *Op) IsRead(req *wire.MetaRequest) bool {
	return o.Effect == wire.Operation_READ || o.readUnless != nil && !o.flag(req, o.readUnless)
}

// ReadOnly reports whether a read-only certificate permits the request.
func (o *Op) ReadOnly(req *wire.MetaRequest) bool {
	return o.IsReadOnly() || o.readOnlyIf != nil && o.flag(req, o.readOnlyIf) || o.IsRead(req)
}

// IsReadOnly reports whether a read-only certificate permits the request whatever its arguments.
func (o *Op) IsReadOnly() bool {
	return o.readOnly || o.Effect == wire.Operation_READ || o.Effect == wire.Operation_STATUS
}

// Numbered reports whether the client numbers the request in its session. The state keeps the
// answer to a numbered request, so that a repeated one gets the first answer.
func (o *Op) Numbered(req *wire.MetaRequest) bool {
	return o.Effect == wire.Operation_COMMAND && !o.unnumbered && !o.IsRead(req)
}

// Logged reports whether a successful answer to a numbered request means that the state machine
// applied it. Only then has the state recorded the abandoned numbers that the request lists.
func (o *Op) Logged(req *wire.MetaRequest) bool { return o.Numbered(req) && !o.unlogged }

// Sender returns the node that the request names as its sender, if it has such a field.
func (o *Op) Sender(req *wire.MetaRequest) (node string, has bool) {
	if o.sender == nil {
		return "", false
	}
	m := o.message(req)
	last := len(o.sender) - 1
	for _, f := range o.sender[:last] {
		m = m.Get(f).Message()
	}
	return m.Get(o.sender[last]).String(), true
}

// Wait returns how long the service may delay the answer: the field wait_millis of the request.
func (o *Op) Wait(req *wire.MetaRequest) time.Duration {
	if o.wait == nil {
		return 0
	}
	millis := o.message(req).Get(o.wait).Uint()
	return time.Duration(min(millis, uint64(time.Hour/time.Millisecond))) * time.Millisecond
}

// message returns the request in the oneof. It goes by the field of the Go type, so that a caller's
// MetaRequest may stay on its stack.
func (o *Op) message(req *wire.MetaRequest) protoreflect.Message {
	return reflect.ValueOf(req.GetOp()).Elem().Field(0).Interface().(proto.Message).ProtoReflect()
}

func (o *Op) flag(req *wire.MetaRequest, f protoreflect.FieldDescriptor) bool {
	return o.message(req).Get(f).Bool()
}
