package intruder_test

import (
	"context"
	"fmt"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// chunkRow is what an intruder may do with a request to a chunkserver.
type chunkRow struct {
	// do sends it, about one chunk of a stripe or the object, with a capability,
	// and returns the answer.
	do       func(ctx context.Context, c transport.Chunks, r refs, device uint32, index uint32, capability []byte) (string, error)
	answer   string // PermissionDenied, if it is empty
	readOnly string // under a read-only certificate, if it differs
	why      string // why it is not refused
}

// outcome is the row's answer for a caller.
func (r *chunkRow) outcome(readOnly bool) string {
	switch {
	case readOnly && r.readOnly != "":
		return r.readOnly
	case r.answer != "":
		return r.answer
	}
	return "permission denied"
}

// chunkRows has a row for each request of a chunkserver, by the method of transport.Chunks.
var chunkRows = map[string]chunkRow{
	"Get": {do: func(ctx context.Context, c transport.Chunks, r refs, device, index uint32, capability []byte) (string, error) {
		reply, n, err := c.Get(ctx, &wire.GetChunk{Stripe: r.stripe, Index: index, Device: device, Length: 1000, Capability: capability}, make([]byte, 1000), nil)
		return fmt.Sprint(reply, n), err
	}},
	"Put": {readOnly: "read only", do: func(ctx context.Context, c transport.Chunks, r refs, device, index uint32, capability []byte) (string, error) {
		lies := []byte("lies")
		reply, err := c.Put(ctx, &wire.PutChunk{Stripe: r.stripe, Index: index, Device: device, Version: 1, Crc: crc.Sum(lies),
			Level: uint32(moraine.NVMe), Capability: capability}, lies)
		return fmt.Sprint(reply), err
	}},
	"GetPiece": {answer: "unavailable", why: "hosts here have no bucket: chunkserver.TestPiecesNeedACapability has", do: func(ctx context.Context, c transport.Chunks, r refs, _, _ uint32, capability []byte) (string, error) {
		reply, n, err := c.GetPiece(ctx, &wire.GetPiece{Object: r.object, Inode: r.file, Length: 1000, Capability: capability}, make([]byte, 1000), nil)
		return fmt.Sprint(reply, n), err
	}},
	"Sync": {do: func(ctx context.Context, c transport.Chunks, _ refs, device, _ uint32, _ []byte) (string, error) {
		reply, err := c.Sync(ctx, &wire.SyncDevices{Devices: []uint32{device}})
		return fmt.Sprint(reply), err
	}},
	"Stat": {do: func(ctx context.Context, c transport.Chunks, _ refs, _, _ uint32, _ []byte) (string, error) {
		reply, err := c.Stat(ctx, &wire.StatDevices{})
		return fmt.Sprint(reply), err
	}},
}

// TestIntruderAtTheChunkservers: a confined caller sends each request of the
// chunkservers about foreign chunks and objects, and lists chunks. It uses its own
// token, and its own and others' capabilities. A caller that presents another's
// token, or none, gets nothing at all.
func TestIntruderAtTheChunkservers(t *testing.T) {
	methods := reflect.TypeFor[transport.Chunks]()
	for n := range methods.NumMethod() {
		require.Contains(t, chunkRows, methods.Method(n).Name)
	}
	require.Len(t, chunkRows, methods.NumMethod())
	for _, k := range confined {
		t.Run(k.name, func(t *testing.T) { inWorld(t, func(w *world) { atChunkservers(w, w.intrude(k.peer)) }) })
	}
}

func atChunkservers(w *world, i *intruder) {
	t, ctx := w.t, w.t.Context()
	theirs := w.intrude(transport.Peer{Role: transport.RoleClient, Node: "neighbour", Scope: "/b"})
	capability := func(i *intruder, file uint64) []byte {
		resp, err := i.do(&wire.MetaRequest{Op: &wire.MetaRequest_GetExtents{GetExtents: &wire.GetExtents{Inode: file, Limit: 100}}})
		require.NoError(t, err)
		return resp.GetExtents().Capabilities[0]
	}
	shown := map[string][]byte{"none": nil, "garbage": []byte("x"), "its own": capability(i, w.own.file), "another's": capability(theirs, w.foreign.file)}
	before := w.picture()
	for name, row := range chunkRows {
		for what, b := range shown {
			for _, s := range w.stripes {
				for index, ch := range s.Chunks {
					there := w.foreign
					there.stripe = s.Id
					answer, err := row.do(ctx, i.chunks(ch.Device), there, ch.Device, uint32(index), b)
					_, none := row.do(ctx, i.chunks(ch.Device), w.missing, ch.Device, uint32(index), b)
					if want := row.outcome(i.peer.ReadOnly); kind(err) != want {
						t.Errorf("%s with capability %s: %v; it should be %s", name, what, err, want)
					}
					require.Equal(t, w.plain(none), w.plain(err), "%s with %s", name, what)
					require.NotContains(t, answer, secret)
					require.NotContains(t, answer, fmt.Sprint(s.Id))
				}
			}
		}
	}
	for device := range w.hosts {
		_, err := i.chunks(device).Stat(ctx, &wire.StatDevices{List: &wire.ListChunks{Device: device}})
		require.Equal(t, "permission denied", kind(err))
	}
	// No client may inspect devices, not even one of the root; an administrator
	// may.
	for peer, want := range map[transport.Role]string{transport.RoleClient: "permission denied", transport.RoleAdmin: "ok"} {
		of := w.intrude(transport.Peer{Role: peer, Node: "root-" + string(peer)})
		for _, name := range []string{"Stat", "Sync"} {
			_, err := chunkRows[name].do(ctx, of.chunks(w.own.device), w.own, w.own.device, 0, nil)
			require.Equal(t, want, kind(err), "%s of a %s", name, peer)
		}
	}
	// It reads its own chunk: the refused requests were not malformed.
	own := w.own
	_, err := chunkRows["Get"].do(ctx, i.chunks(own.device), own, own.device, 0, shown["its own"])
	require.NoError(t, err)
	// Another caller's token opens nothing, nor does none.
	for _, token := range [][]byte{theirs.token, nil, []byte("garbage")} {
		i.dialer.SetToken(token)
		for name, row := range chunkRows {
			_, err := row.do(ctx, i.chunks(own.device), own, own.device, 0, shown["its own"])
			want := "not authenticated"
			if name == "Stat" { // needs no token
				want = "permission denied"
			}
			require.Equal(t, want, kind(err), name)
		}
	}
	require.Equal(t, before, w.picture())
	r, err := w.owner.OpenFile(ctx, "/b/"+secret+"-dir/"+secret+"-file")
	require.NoError(t, err)
	defer r.Close() //nolint:errcheck // a failed close loses nothing
	got := make([]byte, secretSize)
	require.NoError(t, r.ReadRange(ctx, got, 0))
	require.Equal(t, make([]byte, secretSize), got)
}
