package intruder_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/morainefs/moraine/internal/optest"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/memnet"
	"github.com/morainefs/moraine/transport/pki"
	"github.com/morainefs/moraine/transport/wire"
	wireops "github.com/morainefs/moraine/transport/wire/ops"
)

// confined are the kinds of certificates that are confined to /a.
var confined = []struct {
	name string
	peer transport.Peer
}{
	{"scoped", transport.Peer{Role: transport.RoleClient, Node: "mallory", Scope: "/a"}},
	{"squashed", transport.Peer{Role: transport.RoleClient, Node: "squashed", Scope: "/a", Squash: true}},
	{"gateway", transport.Peer{Role: transport.RoleGateway, Node: "gateway", Scope: "/a"}},
	{"read-only", transport.Peer{Role: transport.RoleClient, Node: "reader", Scope: "/a", ReadOnly: true}},
}

// inWorld runs a test in a world of its own, in which time passes at once.
func inWorld(t *testing.T, test func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		test(newWorld(t))
	})
}

// outcomes are kinds of errors, in the form of a table.
func outcomes(got []string) string {
	slices.Sort(got)
	return strings.Join(slices.Compact(got), ", ")
}

// TestIntruderRowsAreComplete: each request of the metadata service has a row, and each row has a
// request. The row agrees with the request's options in metadata.proto.
func TestIntruderRowsAreComplete(t *testing.T) {
	for _, o := range wireops.All() {
		row, known := optest.Requests[o.Name]
		require.True(t, known, "%s: say in internal/optest what a stranger gets for this request", o.Name)
		client := o.Callers == wire.Operation_PEOPLE || o.Callers == wire.Operation_ANYONE
		server := o.Callers == wire.Operation_SERVERS || o.Callers == wire.Operation_ANYONE
		if !client {
			require.Equal(t, "permission denied", row.Own, o.Name)
			require.Equal(t, "permission denied", row.Confined, o.Name)
			require.Empty(t, row.ReadOnly, o.Name)
		} else {
			require.Equal(t, !o.ReadOnly(asBuilt(o)), row.ReadOnly == "read only", "%s under a read-only certificate", o.Name)
			names := o.Scope == wire.Operation_TREE && o.Name != "raise_atimes" // which skips what is not in the scope
			require.Equal(t, names, strings.Contains(row.Confined, "not found"), "%s names things of the tree", o.Name)
		}
		if !server {
			require.Equal(t, "permission denied", row.Node, o.Name)
		}
	}
	require.Len(t, optest.Requests, len(wireops.All()))
}

// asBuilt is a request with the arguments that decide what it needs, as builder sets them.
func asBuilt(o *wireops.Op) *wire.MetaRequest {
	req := o.New()
	m := req.ProtoReflect().Mutable(ops().ByName(protoreflect.Name(o.Name))).Message()
	if f := m.Descriptor().Fields().ByName("read_only"); f != nil {
		m.Set(f, protoreflect.ValueOfBool(true))
	}
	return req
}

// TestIntruderSeesNothingForeign: a caller that is confined to a directory sends
// each request of the metadata service. It refers to things outside the directory,
// all at once and each one alone. The outcome is that of the table. The answer is
// the same as for missing things, contains nothing foreign, and foreign things do
// not change.
func TestIntruderSeesNothingForeign(t *testing.T) {
	for _, k := range confined {
		t.Run(k.name, func(t *testing.T) { inWorld(t, func(w *world) { seesNothing(w, k.name, w.intrude(k.peer)) }) })
	}
}

// timeless takes from answers the times of their entries, which differ.
func timeless(answers ...*wire.MetaResponse) {
	for _, a := range answers {
		if b := a.GetBatch(); b != nil {
			b.Now = 0
		}
	}
}

func seesNothing(w *world, kindOf string, i *intruder) {
	t := w.t
	before := w.picture()
	fields := ops()
	for n := range fields.Len() {
		f := fields.Get(n)
		op := string(f.Name())
		row := optest.Requests[op]
		i.open()
		var got, shown []string
		for _, a := range w.attempts(f) {
			resp, err := i.do(a.foreign)
			if op == "close_session" {
				i.open()
			}
			none, missing := i.do(a.missing)
			timeless(resp, none)
			got = append(got, kind(err))
			if w.plain(err) != w.plain(missing) || kind(err) != kind(missing) {
				t.Errorf("%s: of a foreign thing %v, of none %v", a.name, err, missing)
			} else if err == nil && !row.Moving && !proto.Equal(resp, none) {
				t.Errorf("%s: of a foreign thing %v, of none %v", a.name, resp, none)
			}
			shown = append(shown, w.shows(a.foreign, resp, err))
		}
		want := row.Confined
		if kindOf == "read-only" && row.ReadOnly != "" {
			want = row.ReadOnly
		}
		if o := outcomes(got); o != want {
			t.Errorf("%s: %s; the table says %q", op, o, want)
		}
		if s := strings.TrimPrefix(outcomes(shown), ", "); s != "" {
			t.Errorf("%s shows %q", op, s)
		}
		if after := w.picture(); after != before {
			t.Errorf("%s changed foreign things: before\n%s\nafter\n%s", op, before, after)
			before = after
		}
	}
}

// TestIntruderRequestsMeanSomething: for things of its own a confined caller gets
// the outcome of the table. So the requests with foreign ones are not refused for
// being malformed.
func TestIntruderRequestsMeanSomething(t *testing.T) {
	inWorld(t, func(w *world) {
		i := w.intrude(confined[0].peer)
		last := strings.Fields("rename remove remove_tree close_session")
		try := func(f protoreflect.FieldDescriptor) {
			i.open()
			_, err := i.do(w.builder(w.own, -1).build(f))
			if got := kind(err); got != optest.Requests[string(f.Name())].Own {
				w.t.Errorf("%s of its own: %s (%v); the table says %q", f.Name(), got, err, optest.Requests[string(f.Name())].Own)
			}
		}
		fields := ops()
		for n := range fields.Len() {
			if !slices.Contains(last, string(fields.Get(n).Name())) {
				try(fields.Get(n))
			}
		}
		for _, op := range last { // each on an existing file
			i.open()
			_, _ = i.do(w.builder(w.own, -1).build(fields.ByName("create")))
			try(fields.ByName(protoreflect.Name(op)))
		}
	})
}

// TestIntruderHasNoForeignSession: a request under the number of another's session
// fails in the same words as one under an unused number.
func TestIntruderHasNoForeignSession(t *testing.T) {
	for _, k := range []transport.Peer{confined[0].peer, {Role: transport.RoleClient, Node: "other"}, {Role: transport.RoleClient, Node: "owner", Key: pki.KeyID{1}}} {
		inWorld(t, func(w *world) {
			theirs := w.intrude(transport.Peer{Role: transport.RoleClient, Node: "owner2"})
			i := w.intrude(k)
			fields := ops()
			before := w.picture()
			for n := range fields.Len() {
				f := fields.Get(n)
				req := w.builder(w.foreign, -1).build(f)
				_, err := i.doIn(theirs.session, req)
				_, none := i.doIn(theirs.session^0x5555, req)
				if kind(err) != kind(none) || w.plain(err) != w.plain(none) {
					w.t.Errorf("%s: in a foreign session %v, in none %v", f.Name(), err, none)
				}
				if err == nil && wireops.Of(req).Routing != wire.Operation_ANY_SERVER {
					w.t.Errorf("%s was answered in a foreign session", f.Name())
				}
			}
			require.Equal(w.t, before, w.picture())
			_, err := theirs.do(&wire.MetaRequest{Op: &wire.MetaRequest_RenewSession{RenewSession: &wire.RenewSession{}}})
			require.NoError(w.t, err, "the session is its owner's still")
		})
	}
}

// TestIntruderWithACertificateOfANode: a chunkserver and a metadata server belong
// to no host of the fleet. They send each request in the name of another, with its
// devices and its leased jobs. A few requests are also sent by clients, or by a
// chunkserver for its own work: these name missing things. All others name
// another's things.
func TestIntruderWithACertificateOfANode(t *testing.T) {
	inWorld(t, func(w *world) {
		node := w.intrude(transport.Peer{Role: transport.RoleChunkserver, Node: "n9"})
		meta := w.cluster.DialerAs(transport.Peer{Role: transport.RoleMetadata, Node: "m9"})
		defer meta.Close() //nolint:errcheck // a failed close loses nothing
		m9 := meta.Metadata([]string{memnet.Address("m1")})
		before := w.picture()
		fields := ops()
		for n := range fields.Len() {
			f := fields.Get(n)
			op := string(f.Name())
			node.open()
			var got []string
			for _, a := range w.attempts(f) {
				req := a.missing
				if optest.Requests[op].Confined == "permission denied" || optest.Requests[op].Node == "permission denied" {
					req = a.foreign
				}
				resp, err := node.do(req)
				got = append(got, kind(err))
				if s := w.shows(req, resp, err); s != "" {
					w.t.Errorf("%s shows %s", op, s)
				}
				_, err = m9.Do(w.t.Context(), a.foreign)
				if err == nil || kind(err) != "permission denied" && op != "member_beat" {
					w.t.Errorf("%s as a metadata server: %v", op, err)
				}
			}
			if o := outcomes(got); o != optest.Requests[op].Node {
				w.t.Errorf("%s of a node: %s; the table says %q", op, o, optest.Requests[op].Node)
			}
			if after := w.picture(); after != before {
				w.t.Errorf("%s changed foreign things: before\n%s\nafter\n%s", op, before, after)
				before = after
			}
		}
	})
}

// TestIntruderWithARevokedCertificate: under a revoked certificate no request is
// answered, in its own session, in another, or in none.
func TestIntruderWithARevokedCertificate(t *testing.T) {
	inWorld(t, func(w *world) {
		i := w.intrude(transport.Peer{Role: transport.RoleClient, Node: "revoked", Scope: "/a", Key: pki.KeyID{7}})
		admin := w.intrude(transport.Peer{Role: transport.RoleAdmin, Node: "admin"})
		key := pki.KeyID{7}
		_, err := admin.do(&wire.MetaRequest{Op: &wire.MetaRequest_RevokeCert{RevokeCert: &wire.RevokeCert{Revocations: []*wire.Revocation{{Key: key[:]}}}}})
		require.NoError(w.t, err)
		fields := ops()
		for n := range fields.Len() {
			for _, r := range []refs{w.own, w.foreign, w.missing} {
				for _, session := range []uint64{i.session, admin.session, 0} {
					_, err := i.doIn(session, w.builder(r, -1).build(fields.Get(n)))
					if kind(err) != "not authenticated" {
						w.t.Errorf("%s: %v", fields.Get(n).Name(), err)
					}
				}
			}
		}
	})
}
