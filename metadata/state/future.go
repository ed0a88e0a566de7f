package state

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/names"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/morainefs/moraine/transport/wire/ops"
)

// Tests of upgrades need a build of a later release. NewFuture makes the state
// machine of one. It supports one more feature level and knows one more
// request. The request is not in the schema. So any other build finds an
// unknown field, as it would in a request of a real later release.

const (
	// FutureLevel is the newest feature level of such a build.
	FutureLevel = moraine.FeatureLevel + 1
	// FutureField is the number in wire.MetaRequest of the request that only such a build knows. It
	// contains a wire.SetAttr.
	FutureField protowire.Number = 1023
)

// NewFuture returns the machine of partition p in a build of a later release.
func NewFuture(p moraine.Partition) *Machine {
	m := New(p)
	m.Level = FutureLevel
	return m
}

// FutureRequest returns the request that only a later release knows. It changes attributes.
func FutureRequest(op *wire.SetAttr) (*wire.MetaRequest, error) {
	b, err := proto.Marshal(op)
	if err != nil {
		return nil, err
	}
	req := &wire.MetaRequest{}
	req.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, FutureField, protowire.BytesType), b))
	return req, nil
}

// IsFuture reports whether req is a FutureRequest.
func IsFuture(req *wire.MetaRequest) bool { return futureBody(req) != nil }

// futureBody returns the encoded SetAttr in a FutureRequest; nil if req is another request.
func futureBody(req *wire.MetaRequest) []byte {
	if req == nil || req.GetOp() != nil {
		return nil
	}
	unknown := req.ProtoReflect().GetUnknown()
	field, form, n := protowire.ConsumeTag(unknown)
	if n < 0 || field != FutureField || form != protowire.BytesType {
		return nil
	}
	b, _ := protowire.ConsumeBytes(unknown[n:])
	return b
}

// future is the handler of a FutureRequest.
var future = handler{mutate: applyFuture}

func applyFuture(t *kvtx.Tx, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	const name = "future request"
	if err := t.MustSpeak(name, FutureLevel); err != nil {
		return nil, err
	}
	op := &wire.SetAttr{}
	if err := proto.Unmarshal(futureBody(req), op); err != nil {
		return nil, kvtx.Fail(moraine.InvalidArgument, name, "", "%v", err)
	}
	return names.SetAttr(t, op)
}

// handler returns the handler of a request. known is false if this build does not know the request.
func (m *Machine) handler(req *wire.MetaRequest) (h handler, known bool) {
	switch o := ops.Of(req); {
	case o != nil:
		return handlerOf(o), true
	case m.Level >= FutureLevel && IsFuture(req):
		return future, true
	}
	return handler{}, false
}
