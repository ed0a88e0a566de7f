package intruder_test

import (
	"bytes"
	"slices"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/transport/wire"
)

// TestIntruderInASharedStripe: a file of a confined caller has some bytes of a
// foreign file's stripes, which a session of the root cloned. The caller reads
// these, and no other byte of the stripes: none of the same chunk, of other data
// chunks, or of parity. While a host is down it reads the bytes on others, and the
// rest when the host is back.
func TestIntruderInASharedStripe(t *testing.T) {
	for _, scheme := range []moraine.Scheme{moraine.Copies(3), {K: 2, M: 1}} {
		t.Run(scheme.String(), func(t *testing.T) {
			inWorld(t, func(w *world) { w.inASharedStripe(scheme) })
		})
	}
}

func (w *world) inASharedStripe(scheme moraine.Scheme) {
	t, ctx := w.t, w.t.Context()
	content := make([]byte, secretSize)
	for n := range content {
		content[n] = byte(n>>8) ^ byte(n) | 1
	}
	f, err := w.owner.Create(ctx, "/b/"+secret+"-bytes", client.CreateOptions{Scheme: scheme})
	require.NoError(t, err)
	_, err = f.Write(content)
	require.NoError(t, err)
	_, err = f.Commit(ctx)
	require.NoError(t, err)
	foreign, err := w.owner.Stat(ctx, "/b/"+secret+"-bytes")
	require.NoError(t, err)
	inode := foreign.Inode()
	part, err := w.owner.Concat(ctx, "/a/part", []client.InodeRange{{Inode: inode, Offset: 70_000, Length: 5000},
		{Inode: inode, Offset: 1000, Length: 100}}, client.CreateOptions{Mode: 0o644})
	require.NoError(t, err)
	want := append(bytes.Clone(content[70_000:75_000]), content[1000:1100]...)

	// By hand.
	i := w.intrude(confined[0].peer)
	resp, err := i.do(&wire.MetaRequest{Op: &wire.MetaRequest_GetExtents{GetExtents: &wire.GetExtents{Inode: uint64(part.Inode()), Limit: 100}}})
	require.NoError(t, err)
	page := resp.GetExtents()
	require.Len(t, page.Capabilities, 1)
	require.Len(t, page.Limited, len(page.Stripes))
	get := func(s *wire.Stripe, index, off, n int) (string, []byte) {
		dst := make([]byte, n)
		d := s.Chunks[index].Device
		_, _, err := i.chunks(d).Get(ctx, &wire.GetChunk{Stripe: s.Id, Index: uint32(index), Device: d, Tenant: s.Tenant,
			Offset: uint64(off), Length: uint64(n), Capability: page.Capabilities[0]}, dst, nil)
		return kind(err), dst
	}
	for _, s := range page.Stripes {
		require.Zero(t, s.LiveBytes+uint64(s.RefCount), "they reveal other files")
	}
	var first *wire.Stripe // of the file's
	for _, e := range page.Extents {
		s := page.Stripes[slices.IndexFunc(page.Stripes, func(s *wire.Stripe) bool { return s.Id == e.Stripe })]
		if e.Offset == 0 {
			first = s
		}
		chunk := int(scheme.ChunkLen(int64(s.Length)))
		at, off, n := int(e.StripeOffset)/chunk, int(e.StripeOffset)%chunk, int(e.Length)
		for index := range s.Chunks {
			for _, r := range [][2]int{{off, n}, {off + 1, n - 2}, {off + n - 1, 1}} {
				what, b := get(s, index, r[0], r[1])
				if index != at && !scheme.IsCopies() {
					require.Equal(t, "permission denied", what, "chunk %d", index)
					continue
				}
				require.Equal(t, "ok", what)
				require.Equal(t, want[int(e.Offset)+r[0]-off:][:r[1]], b)
			}
			for _, r := range [][2]int{{0, chunk}, {off - 1, n}, {off, n + 1}, {off + n, 1}, {0, 1}, {0, 0}, {chunk - 1, 1}} {
				what, b := get(s, index, r[0], r[1])
				require.Equal(t, "permission denied", what, "%v of chunk %d", r, index)
				require.Equal(t, make([]byte, r[1]), b)
			}
		}
	}

	w.reportsOfASharedStripe(i, scheme, uint64(part.Inode()), first, page.Capabilities[0])

	// Through a client.
	reader, err := w.cluster.ClientAs(ctx, confined[0].peer, client.Config{Patience: 5 * time.Second})
	require.NoError(t, err)
	defer reader.Close() //nolint:errcheck // a failed close loses nothing
	r, err := reader.OpenFile(ctx, "/part")
	require.NoError(t, err)
	defer r.Close() //nolint:errcheck // a failed close loses nothing
	got := make([]byte, len(want))
	require.NoError(t, r.ReadRange(ctx, got, 0))
	require.Equal(t, want, got)
	at := 0
	if !scheme.IsCopies() {
		at = 1 // 70,000 is in the second chunk
	}
	host := w.hosts[first.Chunks[at].Device]
	w.cluster.Kill(host)
	err = r.ReadRange(ctx, got, 0)
	if scheme.IsCopies() {
		require.NoError(t, err)
		require.Equal(t, want, got)
	} else {
		require.Error(t, err)
		require.NotEqual(t, moraine.PermissionDenied, moraine.KindOf(err), "%v", err)
		require.NotEqual(t, moraine.Lost, moraine.KindOf(err), "%v", err)
		require.NoError(t, r.ReadRange(ctx, got[:100], 5000), "the first chunk's host is up")
		require.Equal(t, want[5000:], got[:100])
	}
	require.NoError(t, w.cluster.Restart(host))
	require.NoError(t, w.cluster.WaitReady(ctx))
	require.NoError(t, r.ReadRange(ctx, got, 0))
	require.Equal(t, want, got)
}

// reportsOfASharedStripe: a confined session's reports of chunks that it may not
// read are ignored, whatever else of the stripe it reads. Those of chunks that it
// reads have these verified: the chunks are good, so that nothing is repaired.
func (w *world) reportsOfASharedStripe(i *intruder, scheme moraine.Scheme, file uint64, s *wire.Stripe, shown []byte) {
	t := w.t
	queued := func() uint64 {
		resp, err := i.do(&wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: &wire.GetCluster{}}})
		require.NoError(t, err)
		return resp.GetCluster().RepairQueued
	}
	report := func(index int) {
		_, err := i.do(&wire.MetaRequest{Op: &wire.MetaRequest_ReportBadChunks{ReportBadChunks: &wire.ReportBadChunks{Chunks: []*wire.BadChunk{{Stripe: s.Id,
			Index: uint32(index), Device: s.Chunks[index].Device, Version: s.Version, Kind: uint32(moraine.Corrupt), Capability: shown}}}}})
		require.NoError(t, err)
	}
	verified := func() (n float64) {
		time.Sleep(5 * time.Second) // some heartbeats
		for _, m := range w.cluster.Metrics.Servers() {
			for _, result := range []string{"good", "bad"} {
				var got dto.Metric
				require.NoError(t, m.Suspects.WithLabelValues(result).Write(&got))
				n += got.GetCounter().GetValue()
			}
		}
		return n
	}
	before := verified()
	for index := range s.Chunks {
		if !scheme.IsCopies() && index >= int(scheme.K) { // it reads some bytes of both others
			report(index)
			require.Equal(t, before, verified(), "chunk %d is not its own", index)
			require.Zero(t, queued(), "chunk %d is not its own", index)
		}
	}
	version := func() uint32 {
		page := w.ask(&wire.MetaRequest{Op: &wire.MetaRequest_GetExtents{GetExtents: &wire.GetExtents{Inode: file, Limit: 100}}}).GetExtents()
		return page.Stripes[slices.IndexFunc(page.Stripes, func(now *wire.Stripe) bool { return now.Id == s.Id })].Version
	}
	require.Equal(t, s.Version, version(), "nothing was repaired")
	report(0)
	require.Equal(t, before+1, verified())
	require.Zero(t, queued())
	require.Equal(t, s.Version, version(), "it is good")
}
