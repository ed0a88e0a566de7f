package transport_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/capability/capabilitytest"
	"github.com/morainefs/moraine/transport/memnet"
	"github.com/morainefs/moraine/transport/wire"
)

// leakWait bounds a request that waits for something to happen, such as watch.
const leakWait = 100 * time.Millisecond

// leakRequest is one request, with what follows it.
type leakRequest struct {
	name    string
	kind    transport.Kind
	class   transport.Class
	message proto.Message
	payload []byte
	reply   int // bytes of payload that the reply may have
}

// leakServers are a metadata server and a chunkserver, each the shipped one, behind real
// servers of this package.
type leakServers struct {
	t       *testing.T
	cluster *incluster.Cluster
	metrics *transport.Metrics
	reg     *prometheus.Registry
	// caller and addr are those of each server, by the kind of request: whether it is
	// one for the metadata service.
	callers map[bool]transport.Caller
	addrs   map[bool]string
	session uint64
	random  *rand.Rand
}

func startLeakServers(t *testing.T) *leakServers {
	ctx := context.Background()
	c, err := incluster.Start(ctx, incluster.Options{Seed: 1, Metadata: 1, Chunkservers: 1, SnapshotEntries: 5000, MemTableBytes: 4 << 20})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Stop()) })
	c.Net.SetFaults("*", "*", memnet.Faults{}) // no delays
	require.NoError(t, c.WaitReady(ctx))
	s := &leakServers{t: t, cluster: c, reg: prometheus.NewRegistry(), callers: map[bool]transport.Caller{}, addrs: map[bool]string{},
		random: rand.New(rand.NewPCG(testseed.First(t), 1))}
	s.metrics = transport.NewMetrics(s.reg)
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

// leaveOut are the requests that would change what the other rows work with, and the one that
// keeps something on purpose: the streams of two backups stay open for callers that go on
// reading them.
var leaveOut = []protoreflect.Name{"close_session", "remove_member", "add_member", "set_device_state", "read_backup"}

// requests returns all there are: of the metadata service each of the proto, without
// arguments and with such as mean nothing, in a session and in none; of the chunkserver
// each kind, with good arguments and with bad ones.
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
	return append(all, s.chunkRequests()...)
}

func (s *leakServers) chunkRequests() []leakRequest {
	data := make([]byte, 100_000)
	for i := range data {
		data[i] = byte(s.random.Uint32())
	}
	capability := capabilitytest.Sign(s.cluster.ID(), &wire.CapabilityClaims{Node: "n9", Right: wire.CapabilityRight_CAPABILITY_RIGHT_WRITE,
		Stripes: []*wire.StripeRange{{First: 1, Count: 1 << 41}}})
	put := func(stripe uint64, sum uint32) *wire.PutChunk {
		return &wire.PutChunk{Stripe: 1<<40 | stripe, Index: 1, Device: 1, Version: 1, Crc: sum, Level: uint32(moraine.NVMe), Capability: capability}
	}
	get := func(stripe, off, n uint64) *wire.GetChunk {
		return &wire.GetChunk{Stripe: 1<<40 | stripe, Index: 1, Device: 1, Offset: off, Length: n}
	}
	const bulk = transport.Bulk
	return []leakRequest{
		{"put", transport.KindPutChunk, bulk, put(1, crc.Sum(data)), data, 0},
		{"put of wrong bytes", transport.KindPutChunk, bulk, put(2, 1), data, 0},
		{"put of nothing", transport.KindPutChunk, bulk, put(3, 0), nil, 0},
		{"put on no device", transport.KindPutChunk, bulk, &wire.PutChunk{Stripe: 1, Version: 1, Device: 99, Capability: capability}, data, 0},
		{"get", transport.KindGetChunk, bulk, get(1, 0, uint64(len(data))), nil, len(data)},
		{"get of no bytes", transport.KindGetChunk, bulk, get(1, 5, 0), nil, 0},
		{"get past the end", transport.KindGetChunk, bulk, get(1, uint64(len(data)), 10), nil, 10},
		{"get of no chunk", transport.KindGetChunk, bulk, get(4, 0, 10), nil, 10},
		{"get with a payload", transport.KindGetChunk, bulk, get(1, 0, 10), data, 10},
		{"get of a piece", transport.KindGetPiece, bulk, &wire.GetPiece{Object: 1, Length: 10}, nil, 10},
		{"sync", transport.KindSyncDevices, bulk, &wire.SyncDevices{}, nil, 0},
		{"sync of no device", transport.KindSyncDevices, bulk, &wire.SyncDevices{Devices: []uint32{99}}, nil, 0},
		{"stat", transport.KindStatDevices, transport.Control, &wire.StatDevices{}, nil, 0},
		{"list", transport.KindStatDevices, transport.Control, &wire.StatDevices{List: &wire.ListChunks{}}, nil, 0},
		{"token", transport.KindRefreshToken, bulk, &wire.RefreshToken{Token: []byte("none")}, nil, 0},
	}
}

// fill sets all fields to values that name nothing there is.
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

// answer sends a request and waits for its answer, or until it has waited for long.
func (s *leakServers) answer(q *leakRequest) { s.call(q, leakWait) }

// cancel gives a request up while it is under way.
func (s *leakServers) cancel(q *leakRequest) {
	s.call(q, time.Duration(s.random.Int64N(int64(time.Millisecond))))
}

func (s *leakServers) call(q *leakRequest, patience time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	call := &transport.Call{Kind: q.kind, Class: q.class, Message: q.message, Dst: make([]byte, q.reply)}
	if q.payload != nil {
		call.Payload = [][]byte{q.payload}
	}
	_, _ = s.callers[q.kind == transport.KindMeta].Call(ctx, call) // any outcome is one
}

// abort sends a request, or a part of its payload, on a connection of its own, and closes
// that.
func (s *leakServers) abort(q *leakRequest) {
	nc, err := net.Dial("tcp", s.addrs[q.kind == transport.KindMeta])
	require.NoError(s.t, err)
	defer nc.Close() //nolint:errcheck // nothing is owed on it
	_, err = transport.RawHello(nc, &wire.Hello{MinVersion: 1, MaxVersion: 1, Class: uint32(q.class),
		Role: string(transport.RoleChunkserver), Node: "n8", Scope: "/"})
	require.NoError(s.t, err)
	frame := transport.EncodeFrame(transport.Header{Class: q.class, Kind: q.kind, ID: 1, PayloadLen: uint32(len(q.payload))}, q.message)
	_, _ = nc.Write(append(frame, q.payload[:s.random.IntN(len(q.payload)+1)]...))
}

// serverKept is what requests could leave behind.
type serverKept struct {
	InFlight, Connections, Panics, ChunkMemory float64
	Descriptors, Goroutines                    int
}

func (s *leakServers) kept() serverKept {
	k := serverKept{Goroutines: runtime.NumGoroutine()}
	if names, err := os.ReadDir("/proc/self/fd"); err == nil {
		k.Descriptors = len(names)
	}
	families, err := s.reg.Gather()
	require.NoError(s.t, err)
	for _, f := range families {
		for _, m := range f.Metric {
			switch f.GetName() {
			case "moraine_transport_in_flight_requests":
				k.InFlight += m.GetGauge().GetValue()
			case "moraine_transport_connections":
				k.Connections += m.GetGauge().GetValue()
			case "moraine_transport_handler_panics_total":
				k.Panics += m.GetCounter().GetValue()
			}
		}
	}
	var m dto.Metric
	require.NoError(s.t, s.cluster.ChunkMetrics("n1").MemoryBytes.Write(&m))
	k.ChunkMemory = m.GetGauge().GetValue()
	return k
}

// No request keeps a goroutine, a descriptor, a slot or memory of a server, however it
// ends: answered, given up by its caller, or with its connection. The requests are
// generated from the proto, so that a new one cannot be forgotten. No handler panics.
func TestNoRequestKeepsAnything(t *testing.T) {
	times := testseed.Runs(t, 6, 1000)
	s := startLeakServers(t)
	requests := s.requests()
	require.Greater(t, len(requests), 300)
	for outcome, end := range map[string]func(*leakRequest){"answer": s.answer, "cancel": s.cancel, "abort": s.abort} {
		t.Run(outcome, func(t *testing.T) {
			s.t = t
			for i := range requests { // what is made once is made, and what waits is known
				q := &requests[i]
				began := time.Now()
				end(q)
				rounds := times
				if time.Since(began) > leakWait/2 {
					rounds = 2
				}
				before := s.kept()
				for range rounds - 1 {
					end(q)
				}
				s.requireKept(before, fmt.Sprintf("%d requests %s that end by %s", rounds, q.name, outcome))
			}
		})
	}
	require.NoError(t, s.cluster.Err())
}

// requireKept waits until nothing is kept that was not before. Some goroutines come and
// go by themselves.
func (s *leakServers) requireKept(before serverKept, what string) {
	s.t.Helper()
	const slack = 4
	var now serverKept
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		now = s.kept()
		require.Zero(s.t, now.Panics, what)
		if now.InFlight == 0 && now.ChunkMemory == 0 && now.Connections <= before.Connections+slack &&
			now.Descriptors <= before.Descriptors+slack && now.Goroutines <= before.Goroutines+slack {
			return
		}
	}
	s.t.Fatalf("%s keep something: before %+v, after %+v", what, before, now)
}
