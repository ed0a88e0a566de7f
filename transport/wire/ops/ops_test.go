package ops

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/morainefs/moraine/transport/wire"
)

// TestEachRequestHasAnOp finds the Op of each request by its type.
func TestEachRequestHasAnOp(t *testing.T) {
	require.Len(t, All(), oneof.Fields().Len())
	for _, o := range All() {
		require.Same(t, o, Of(o.New()), o.Name)
		require.Equal(t, wire.Op(o.New()).Name(), protoreflect.Name(o.Name))
	}
	require.Nil(t, Of(&wire.MetaRequest{}))
	require.Nil(t, Of(nil))
}

// TestArgumentsDecide: some properties depend on a field of the request.
func TestArgumentsDecide(t *testing.T) {
	resolve := func(fix bool) (*Op, *wire.MetaRequest) {
		req := &wire.MetaRequest{Op: &wire.MetaRequest_ResolveStep{ResolveStep: &wire.ResolveStep{Fix: fix}}}
		return Of(req), req
	}
	for _, fix := range []bool{false, true} {
		o, req := resolve(fix)
		require.Equal(t, !fix, o.IsRead(req))
		require.Equal(t, !fix, o.ReadOnly(req))
		require.Equal(t, fix, o.Numbered(req))
		require.Equal(t, fix, o.Logged(req))
	}
	for _, readOnly := range []bool{false, true} {
		req := &wire.MetaRequest{Op: &wire.MetaRequest_OpenRun{OpenRun: &wire.OpenRun{ReadOnly: readOnly}}}
		require.Equal(t, readOnly, Of(req).ReadOnly(req))
		require.True(t, Of(req).Numbered(req), "it is a command all the same")
	}
	empty := &wire.MetaRequest{Op: &wire.MetaRequest_OpenRun{}}
	require.False(t, Of(empty).ReadOnly(empty))

	req := &wire.MetaRequest{Op: &wire.MetaRequest_RegisterHost{RegisterHost: &wire.RegisterHost{Host: &wire.Host{Id: "n1"}}}}
	node, has := Of(req).Sender(req)
	require.Equal(t, "n1", node)
	require.True(t, has)
	none := &wire.MetaRequest{Op: &wire.MetaRequest_RegisterHost{RegisterHost: &wire.RegisterHost{}}}
	node, has = Of(none).Sender(none)
	require.Empty(t, node)
	require.True(t, has)

	watch := &wire.MetaRequest{Op: &wire.MetaRequest_Watch{Watch: &wire.Watch{WaitMillis: 1500}}}
	require.Equal(t, 1500*time.Millisecond, Of(watch).Wait(watch))
	jobs := &wire.MetaRequest{Op: &wire.MetaRequest_LeaseJobs{LeaseJobs: &wire.LeaseJobs{WaitMillis: 1 << 60}}}
	require.Equal(t, time.Hour, Of(jobs).Wait(jobs))
}

// TestAMissingOptionIsNamed: the text of the panic says what to write into the proto.
func TestAMissingOptionIsNamed(t *testing.T) {
	for _, c := range []struct {
		name   string
		option *wire.Operation
		text   string
	}{
		{"no option", nil, "request get_attr: it needs an option: [(operation)"},
		{"no effect", &wire.Operation{Callers: wire.Operation_PEOPLE, Scope: wire.Operation_TREE}, "say its effect"},
		{"no callers", &wire.Operation{Effect: wire.Operation_READ, Scope: wire.Operation_TREE}, "say its callers"},
		{"no scope", &wire.Operation{Effect: wire.Operation_READ, Callers: wire.Operation_PEOPLE}, "say its scope"},
		{"contradiction", &wire.Operation{Effect: wire.Operation_READ, Callers: wire.Operation_PEOPLE, Scope: wire.Operation_TREE, Unlogged: true}, "only a COMMAND is unnumbered"},
		{"owned without a session", &wire.Operation{Effect: wire.Operation_COMMAND, Callers: wire.Operation_PEOPLE, Scope: wire.Operation_TREE, Owned: true}, "set session"},
		{"unknown field", &wire.Operation{Effect: wire.Operation_COMMAND, Callers: wire.Operation_PEOPLE, Scope: wire.Operation_TREE, ReadUnless: "fix"}, `read_unless: "fix" must name a bool field of GetAttr`},
		{"unknown sender", &wire.Operation{Effect: wire.Operation_COMMAND, Callers: wire.Operation_SERVERS, Scope: wire.Operation_OWN, Sender: "host.id"}, `sender: "host.id" must lead to a string field`},
	} {
		t.Run(c.name, func(t *testing.T) {
			requests := withOption(t, "get_attr", c.option)
			defer func() {
				err, _ := recover().(error)
				require.ErrorContains(t, err, c.text)
			}()
			describeAll(requests)
			t.Error("it was accepted")
		})
	}
	o := withOption(t, "heartbeat", &wire.Operation{Effect: wire.Operation_ACTION, Callers: wire.Operation_SERVERS, Scope: wire.Operation_OWN})
	_, err := describe(o.Fields().ByName("heartbeat"))
	require.ErrorContains(t, err, "name the field in sender")
}

// withOption returns the requests of a copy of metadata.proto in which one has another option.
func withOption(t *testing.T, request string, option *wire.Operation) protoreflect.OneofDescriptor {
	t.Helper()
	file := protodesc.ToFileDescriptorProto(wire.File_metadata_proto)
	for _, m := range file.MessageType {
		for _, f := range m.Field {
			if m.GetName() == "MetaRequest" && f.GetName() == request {
				f.Options = &descriptorpb.FieldOptions{}
				if option != nil {
					proto.SetExtension(f.Options, wire.E_Operation, option)
				}
			}
		}
	}
	changed, err := protodesc.NewFile(file, protoregistry.GlobalFiles)
	require.NoError(t, err)
	return changed.Messages().ByName("MetaRequest").Oneofs().ByName("op")
}

// TestOfAllocatesNothing: the lookups run for each request of a client and of the service. They do
// not move the caller's request to the heap.
func TestOfAllocatesNothing(t *testing.T) {
	attr := &wire.MetaRequest_GetAttr{GetAttr: &wire.GetAttr{}}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		req := &wire.MetaRequest{Op: attr}
		o := Of(req)
		if o.Numbered(req) || o.Logged(req) || !o.ReadOnly(req) || o.Wait(req) != 0 {
			t.Error("a stat is no command")
		}
		if _, has := o.Sender(req); has {
			t.Error("a stat has no sender")
		}
	}))
}

func BenchmarkOf(b *testing.B) {
	req := &wire.MetaRequest{Op: &wire.MetaRequest_GetAttr{GetAttr: &wire.GetAttr{}}}
	b.ReportAllocs()
	for b.Loop() {
		if Of(req).Numbered(req) {
			b.Fatal("a stat is no command")
		}
	}
}
