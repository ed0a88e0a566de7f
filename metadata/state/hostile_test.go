package state_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// hostile makes requests that no correct client sends. Any field at any depth has a value at the
// edge of its type, of the numbers in the state, or of a limit.
type hostile struct {
	rng     *rand.Rand
	numbers []uint64 // numbers in the state, or close to one
	text    string   // if not empty, used for every second text
}

var hostileTexts = []string{"", ".", "..", "/", "a", "f", "d", "../d", "a/b", "a\x00b", "\xff\xfe", "latest", "step-1", "attempt-1",
	"n1", "c1", "client", "admin", "system.posix_acl_access", "system.posix_acl_default", hostileACL, strings.Repeat("x", 255), strings.Repeat("x", 256), strings.Repeat("ü", 128), strings.Repeat("y", 70_000)}

// hostileACL is an access control list of six entries, which is no mode.
const hostileACL = "\x02\x00\x00\x00\x01\x00\x07\x00\xff\xff\xff\xff\x02\x00\x05\x00\xe9\x03\x00\x00\x04\x00\x05\x00\xff\xff\xff\xff" +
	"\x08\x00\x06\x00\xd0\x07\x00\x00\x10\x00\x07\x00\xff\xff\xff\xff\x20\x00\x01\x00\xff\xff\xff\xff"

// fill sets the fields of a message, depth messages deep.
func (h *hostile) fill(m protoreflect.Message, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if h.rng.IntN(4) == 0 || f.ContainingOneof() != nil && m.WhichOneof(f.ContainingOneof()) != nil {
			continue
		}
		switch {
		case f.IsMap():
		case f.IsList():
			list := m.Mutable(f).List()
			for range h.count() {
				if f.Message() != nil {
					if depth > 0 {
						h.fill(list.AppendMutable().Message(), depth-1)
					}
				} else {
					list.Append(h.scalar(f))
				}
			}
		case f.Message() != nil:
			if depth > 0 {
				h.fill(m.Mutable(f).Message(), depth-1)
			}
		default:
			m.Set(f, h.scalar(f))
		}
	}
}

func (h *hostile) count() int {
	return []int{0, 1, 1, 2, 2, 3, 5, 40}[h.rng.IntN(8)]
}

func (h *hostile) number() uint64 {
	switch h.rng.IntN(8) {
	case 0:
		return []uint64{0, 1, 2, 3, math.MaxUint8, math.MaxUint16, math.MaxUint32, math.MaxInt64, math.MaxInt64 + 1, math.MaxUint64, math.MaxUint64 - 4095, 1 << 60, 1<<60 - 1}[h.rng.IntN(13)]
	case 1:
		return 1 << h.rng.IntN(64)
	case 2:
		return h.rng.Uint64N(1 << 16)
	case 3:
		return h.rng.Uint64N(8)
	case 4:
		return 4096 * h.rng.Uint64N(64)
	}
	return h.numbers[h.rng.IntN(len(h.numbers))] + h.rng.Uint64N(2)
}

func (h *hostile) scalar(f protoreflect.FieldDescriptor) protoreflect.Value {
	switch n := h.number(); f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(n%2 == 0)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(int32(n % 9)))
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(int32(n))
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(uint32(n))
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return protoreflect.ValueOfInt64(int64(n))
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(n)
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(math.Float64frombits(n))
	case protoreflect.StringKind:
		text := hostileTexts[h.rng.IntN(len(hostileTexts))]
		if h.text != "" && n%2 == 0 {
			text = h.text
		}
		return protoreflect.ValueOfString(text)
	case protoreflect.BytesKind:
		switch h.rng.IntN(3) {
		case 0:
			return protoreflect.ValueOfBytes(make([]byte, []int{0, 1, 15, 16, 17, 32, 33, 4096}[h.rng.IntN(8)]))
		case 1:
			return protoreflect.ValueOfBytes([]byte(hostileTexts[h.rng.IntN(len(hostileTexts))]))
		}
		return protoreflect.ValueOfBytes(make([]byte, 16))
	default:
		panic(fmt.Sprintf("a field of kind %s", f.Kind()))
	}
}

// request makes a request of the nth kind there is.
func (h *hostile) request(n int) *wire.MetaRequest {
	req := &wire.MetaRequest{}
	ops := req.ProtoReflect().Descriptor().Oneofs().ByName("op").Fields()
	f := ops.Get(n % ops.Len())
	h.fill(req.ProtoReflect().Mutable(f).Message(), 4)
	return req
}

// TestHostileRequestsStopNoReplica applies requests of every kind with hostile values, from every
// role, to a state with some of everything. Each request is answered or refused. An error of Apply,
// or a panic, would stop every replica at that entry, again after each restart. Afterwards the
// state must pass its check.
func TestHostileRequestsStopNoReplica(t *testing.T) {
	first := testseed.First(t)
	for seed := first; seed < first+uint64(testseed.Runs(t, 2, 40)); seed++ {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			m := newModel(t, seed)
			m.run(300)
			h := &hostile{rng: rand.New(rand.NewPCG(seed, 2)), numbers: m.someNumbers()}
			answered := map[string]int{}
			sessions := map[string]*client{}
			for n := range testseed.Of(4000, 20_000) {
				role := []string{"client", "client", "client", "admin", "chunkserver", "gateway"}[h.rng.IntN(6)]
				c := sessions[role]
				if c == nil {
					c = m.open(func(op *wire.OpenSession) { op.Role = role })
					sessions[role] = c
				}
				answer := m.survive(n, &statepb.Caller{Node: m.node, Role: role, Scope: "/"}, c.request(h.request(h.rng.IntN(1<<16))))
				if answer == "session expired" {
					delete(sessions, role)
				}
				answered[answer]++
			}
			t.Logf("answers: %v", answered)
			m.check()
		})
	}
}

// someNumbers are numbers that occur in the keys of the state.
func (m *model) someNumbers() (numbers []uint64) {
	if err := m.kv.Scan(nil, nil, func(key, _ []byte) bool {
		for at := 3; at+8 <= len(key); at += 8 {
			numbers = append(numbers, binary.BigEndian.Uint64(key[at:]))
		}
		return true
	}); err != nil {
		m.t.Fatal(err)
	}
	return numbers
}

// survive applies one request and also answers it as a read. It returns the result of Apply.
func (m *model) survive(n int, caller *statepb.Caller, req *wire.MetaRequest) string {
	m.t.Helper()
	text := func() string { return fmt.Sprintf("%v of %v", proto.Clone(req), caller) }
	defer func() {
		if what := recover(); what != nil {
			m.t.Fatalf("request %d panics: %v\n%.2000s", n, what, text())
		}
	}()
	if _, err := m.m.Read(m.kv, caller, req); err != nil {
		m.t.Fatalf("request %d: the read fails: %v\n%.2000s", n, err, text())
	}
	cmd := m.command(&statepb.Command{Caller: caller, Op: &statepb.Command_Request{Request: req}})
	m.draw(cmd)
	return kind(m.apply(cmd).Response)
}

// longText is shorter than the text that TestLongTextsAreNotKept sends.
const longText = 32 << 10

// A request may be as large as a command, but what the state keeps of it and of its answer must be
// small: a session may have 1,024 answers kept.
func TestLongTextsAreNotKept(t *testing.T) {
	m := newModel(t, 1)
	m.run(300)
	h := &hostile{rng: rand.New(rand.NewPCG(1, 2)), numbers: m.someNumbers(), text: "x" + strings.Repeat("ü", longText/2)}
	roles := map[string]*client{}
	for _, role := range []string{"client", "admin", "chunkserver"} {
		roles[role] = m.open(func(op *wire.OpenSession) { op.Role = role })
	}
	ops := (&wire.MetaRequest{}).ProtoReflect().Descriptor().Oneofs().ByName("op").Fields()
	before := m.bytes()
	for n := range ops.Len() {
		for role, c := range roles {
			for range testseed.Of(2, 30) {
				c.number++
				req := h.request(n)
				req.Session, req.Number, req.AckedBelow = c.id, c.number, max(c.number, 500)-499
				if h.rng.IntN(4) == 0 {
					req.Session, req.Number = 0, 0
				}
				if m.survive(n, &statepb.Caller{Node: m.node, Role: role, Scope: "/"}, req) == "session expired" {
					c = m.open(func(op *wire.OpenSession) { op.Role = role })
					roles[role] = c
				}
			}
			now := m.bytes()
			if grown := now - before; grown > longText {
				t.Errorf("%s from a %s: the state has grown by %d bytes", ops.Get(n).Name(), role, grown)
			}
			before = now
		}
	}
	m.check()
}

// bytes is the size of the state.
func (b *bench) bytes() (n int) {
	if err := b.kv.Scan(nil, nil, func(key, value []byte) bool {
		n += len(key) + len(value)
		return true
	}); err != nil {
		b.t.Fatal(err)
	}
	return n
}
