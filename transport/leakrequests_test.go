package transport_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/tiers/object"
	"github.com/morainefs/moraine/tiers/object/objecttest"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/capability/capabilitytest"
	"github.com/morainefs/moraine/transport/memnet"
	"github.com/morainefs/moraine/transport/wire"
)

// leakRequest is one request, with its payload.
type leakRequest struct {
	name    string
	kind    transport.Kind
	class   transport.Class
	message proto.Message
	payload []byte
	reply   int // bytes of payload that the reply may have
	// ok: the answer is no error.
	ok bool
	// heavy moves megabytes.
	heavy bool
}

// leakServers are a metadata server and a chunkserver, both real, behind real
// servers of this package.
type leakServers struct {
	t       *testing.T
	cluster *incluster.Cluster
	metrics *transport.Metrics
	reg     *prometheus.Registry
	// callers and addrs are those of each server. The key says whether a kind of
	// request is for the metadata service.
	callers map[bool]transport.Caller
	addrs   map[bool]string
	session uint64

	mu     sync.Mutex // guards random once requests are sent
	random *rand.Rand
}

const (
	// leakObject is an object in the chunkserver's bucket, of leakPiece bytes.
	leakObject = 1<<40 | 1
	leakPiece  = 100_000
)

func startLeakServers(t *testing.T) *leakServers {
	ctx := context.Background()
	s := &leakServers{t: t, reg: prometheus.NewRegistry(), callers: map[bool]transport.Caller{}, addrs: map[bool]string{},
		random: rand.New(rand.NewPCG(testseed.First(t), 1))}
	bucket, piece := objecttest.NewMemory(), s.bytes(leakPiece)
	bucket.Put("piece", piece)
	record := &wire.ObjectReply{Object: &wire.Object{Id: leakObject, Key: "piece", Size: leakPiece, Crc: crc.Sum(piece), Piece: leakPiece}, Sums: []uint32{crc.Sum(piece)}}
	c, err := incluster.Start(ctx, incluster.Options{Seed: 1, Metadata: 1, Chunkservers: 1, SnapshotEntries: 5000, MemTableBytes: 4 << 20,
		Bucket: func(string) (object.Store, error) { return bucket, nil },
		Meta:   func(_ string, m transport.Metadata) transport.Metadata { return recorded{m, record} }})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Stop()) })
	c.Net.SetFaults("*", "*", memnet.Faults{}) // no delays
	require.NoError(t, c.WaitReady(ctx))
	s.cluster, s.metrics = c, transport.NewMetrics(s.reg)
	n, a := network{mode: transport.Insecure}, newAuthority(t)
	dialer := c.Dialer(transport.RoleAdmin, "leaks")
	t.Cleanup(func() { require.NoError(t, dialer.Close()) })
	pool := n.pool(t, a, transport.RoleChunkserver, "n9")
	for meta, role := range map[bool]transport.Role{true: transport.RoleMetadata, false: transport.RoleChunkserver} {
		h := transport.HandlerForChunks(c.ChunkService("n1"))
		if meta {
			h = transport.HandlerForMetadata(dialer.Metadata([]string{"m1"}))
		}
		server, _ := startServer(t, transport.ServerConfig{Addresses: []string{n.address(t)}, Mode: n.mode, Cluster: cluster, Role: role, Node: "x1"},
			transport.ServerDeps{Handler: h, Metrics: s.metrics})
		s.addrs[meta] = server.Addresses()[0]
		s.callers[meta] = pool.Caller(role, "", server.Addresses())
	}
	reply := &wire.MetaResponse{}
	_, err = s.callers[true].Call(ctx, &transport.Call{Kind: transport.KindMeta, Class: transport.Control, Reply: reply,
		Message: &wire.MetaRequest{Op: &wire.MetaRequest_OpenSession{OpenSession: &wire.OpenSession{Nonce: make([]byte, 16), Node: "leaks"}}}})
	require.NoError(t, err)
	s.session = reply.GetSession().GetSession()
	return s
}

// recorded answers for one object, and forwards all other requests to the service.
type recorded struct {
	transport.Metadata
	object *wire.ObjectReply
}

// Do implements transport.Metadata.
func (r recorded) Do(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	if req.GetGetObject().GetObject() == leakObject {
		return &wire.MetaResponse{Result: &wire.MetaResponse_Object{Object: r.object}}, nil
	}
	return r.Metadata.Do(ctx, req)
}

func (s *leakServers) bytes(n int) []byte {
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(s.random.Uint32())
	}
	return data
}

// leaveOut are the requests that would change what the other rows use. It also has
// the one that keeps state on purpose: the streams of two backups stay open for
// callers that continue to read them.
var leaveOut = []protoreflect.Name{"close_session", "remove_member", "add_member", "set_device_state", "read_backup"}

// requests returns all existing requests, each without arguments and with
// meaningless ones. For the metadata service these are the requests of the proto,
// with and without a session. Of the other kinds that a server decodes, each comes
// with and without a payload. Requests in chunkRequests also come with good
// arguments.
func (s *leakServers) requests() []leakRequest {
	var all []leakRequest
	ops := (&wire.MetaRequest{}).ProtoReflect().Descriptor().Oneofs().ByName("op").Fields()
	for i := range ops.Len() {
		f := ops.Get(i)
		if slices.Contains(leaveOut, f.Name()) {
			continue
		}
		for _, filled := range []bool{false, true} {
			for _, session := range []uint64{0, s.session} {
				m := &wire.MetaRequest{Session: session, Number: s.random.Uint64N(1 << 40)}
				op := m.ProtoReflect().Mutable(f).Message()
				if filled {
					s.fill(op, 3)
				}
				all = append(all, leakRequest{name: fmt.Sprintf("%s filled=%v session=%v", f.Name(), filled, session != 0),
					kind: transport.KindMeta, class: transport.Control, message: m})
			}
		}
	}
	good := s.chunkRequests()
	for kind, m := range transport.Kinds() {
		if kind == transport.KindMeta {
			continue
		}
		if !slices.ContainsFunc(good, func(q leakRequest) bool { return q.kind == kind && (q.ok || kind == transport.KindRefreshToken) }) {
			s.t.Errorf("chunkRequests has no request of kind %v that is answered", kind) // a token of a client
		}
		for _, payload := range [][]byte{nil, make([]byte, 5000)} {
			full := proto.Clone(m)
			s.fill(full.ProtoReflect(), 3)
			for filled, m := range map[bool]proto.Message{false: m, true: full} {
				all = append(all, leakRequest{name: fmt.Sprintf("%v filled=%v payload=%d", kind, filled, len(payload)),
					kind: kind, class: transport.Bulk, message: m, payload: payload, reply: 10})
			}
		}
	}
	return append(all, good...)
}

func (s *leakServers) chunkRequests() []leakRequest {
	data, long := s.bytes(100_000), s.bytes(moraine.MaxChunkSize)
	capability := capabilitytest.Sign(s.cluster.ID(), &wire.CapabilityClaims{Node: "n9", Right: wire.CapabilityRight_CAPABILITY_RIGHT_WRITE,
		Stripes: []*wire.StripeRange{{First: 1, Count: 1 << 41}}})
	read := capabilitytest.Sign(s.cluster.ID(), &wire.CapabilityClaims{Node: "n9", Right: wire.CapabilityRight_CAPABILITY_RIGHT_READ,
		Stripes: []*wire.StripeRange{{First: 1, Count: 1 << 41}}, Objects: []*wire.ObjectRange{{Object: leakObject, Length: 1 << 40}, {Object: leakObject + 1, Length: 1 << 40}}})
	put := func(stripe uint64, sum uint32) *wire.PutChunk {
		return &wire.PutChunk{Stripe: 1<<40 | stripe, Index: 1, Device: 1, Version: 1, Crc: sum, Level: uint32(moraine.NVMe), Capability: capability}
	}
	get := func(stripe, off, n uint64) *wire.GetChunk {
		return &wire.GetChunk{Stripe: 1<<40 | stripe, Index: 1, Device: 1, Offset: off, Length: n, Capability: read}
	}
	piece := func(off, n uint64) *wire.GetPiece {
		return &wire.GetPiece{Object: leakObject, Offset: off, Length: n, Capability: read}
	}
	chunks := func(name string, kind transport.Kind, m proto.Message, payload []byte, reply int) leakRequest {
		return leakRequest{name: name, kind: kind, class: transport.Bulk, message: m, payload: payload, reply: reply}
	}
	good := func(q leakRequest) leakRequest { q.ok = true; return q }
	heavy := func(q leakRequest) leakRequest { q.heavy = true; return q }
	const putChunk, getChunk, getPiece = transport.KindPutChunk, transport.KindGetChunk, transport.KindGetPiece
	return []leakRequest{
		good(chunks("put", putChunk, put(1, crc.Sum(data)), data, 0)),
		good(heavy(chunks("put of the longest", putChunk, put(5, crc.Sum(long)), long, 0))),
		chunks("put of wrong bytes", putChunk, put(2, 1), data, 0),
		chunks("put of nothing", putChunk, put(3, 0), nil, 0),
		chunks("put on no device", putChunk, &wire.PutChunk{Stripe: 1, Version: 1, Device: 99, Capability: capability}, data, 0),
		good(chunks("get", getChunk, get(1, 0, uint64(len(data))), nil, len(data))),
		good(heavy(chunks("get of the longest", getChunk, get(5, 0, uint64(len(long))), nil, len(long)))),
		chunks("get of no bytes", getChunk, get(1, 5, 0), nil, 0),
		chunks("get past the end", getChunk, get(1, uint64(len(data)), 10), nil, 10),
		chunks("get of no chunk", getChunk, get(4, 0, 10), nil, 10),
		chunks("get with a payload", getChunk, get(1, 0, 10), data, 10),
		good(chunks("get of a piece", getPiece, piece(0, leakPiece), nil, leakPiece)),
		good(chunks("get in a piece", getPiece, piece(10, 5000), nil, 5000)),
		chunks("get of a piece past the end", getPiece, piece(leakPiece, 10), nil, 10),
		chunks("get of a piece of no object", getPiece, &wire.GetPiece{Object: leakObject + 1, Length: 10, Capability: read}, nil, 10),
		good(chunks("sync", transport.KindSyncDevices, &wire.SyncDevices{}, nil, 0)),
		chunks("sync of no device", transport.KindSyncDevices, &wire.SyncDevices{Devices: []uint32{99}}, nil, 0),
		good(leakRequest{name: "stat", kind: transport.KindStatDevices, class: transport.Control, message: &wire.StatDevices{}}),
		{name: "list", kind: transport.KindStatDevices, class: transport.Control, message: &wire.StatDevices{List: &wire.ListChunks{}}}, // a token of an administrator
		chunks("token", transport.KindRefreshToken, &wire.RefreshToken{Token: []byte("none")}, nil, 0),
	}
}

// fill sets all fields to values that name nothing existing.
func (s *leakServers) fill(m protoreflect.Message, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case f.IsMap():
		case f.IsList():
			if f.Message() == nil {
				m.Mutable(f).List().Append(s.scalar(f))
			} else if depth > 0 {
				s.fill(m.Mutable(f).List().AppendMutable().Message(), depth-1)
			}
		case f.Message() == nil:
			m.Set(f, s.scalar(f))
		case depth > 0:
			s.fill(m.Mutable(f).Message(), depth-1)
		}
	}
}

func (s *leakServers) scalar(f protoreflect.FieldDescriptor) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(s.random.IntN(2) == 0)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(f.Enum().Values().Get(s.random.IntN(f.Enum().Values().Len())).Number())
	case protoreflect.StringKind:
		return protoreflect.ValueOfString("nothing")
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte("12345678"))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(1.5)
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(1.5)
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(s.random.Int32N(1 << 20))
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(s.random.Uint32N(1 << 20))
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return protoreflect.ValueOfInt64(s.random.Int64N(1 << 40))
	}
	return protoreflect.ValueOfUint64(1<<50 | s.random.Uint64N(1<<40))
}
