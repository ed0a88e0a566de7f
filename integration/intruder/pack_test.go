package intruder_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/memnet"
	"github.com/morainefs/moraine/transport/wire"
)

// TestIntruderInAPackOfOthers: small files of a project are packed into one stripe,
// and one of them is renamed into another project. A session of that project reads
// its bytes, and no other byte of the stripe. A session of the first one reads the
// files that stayed, and finds neither the name of the moved file nor its extents.
// Later writes to the moved file go elsewhere.
func TestIntruderInAPackOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.WithoutCancel(t.Context())
		c, err := incluster.Start(ctx, incluster.Options{Seed: 1, Metadata: 1, Chunkservers: 7, SessionTimeout: 10 * time.Hour, TokenLife: 10 * time.Hour,
			RewriteEvery: 30 * time.Second, PackAfter: time.Minute, SnapshotEntries: 1 << 20, MemTableBytes: 4 << 20})
		require.NoError(t, err)
		defer func() { require.NoError(t, c.Stop()) }()
		c.Net.SetFaults("*", "*", memnet.Faults{})
		require.NoError(t, c.WaitReady(ctx))
		w := &world{t: t, cluster: c, hosts: map[uint32]string{}}
		w.owner, err = c.Client(ctx, "owner")
		require.NoError(t, err)
		defer w.owner.Close() //nolint:errcheck // a failed close loses nothing
		for _, h := range w.ask(&wire.MetaRequest{Op: &wire.MetaRequest_GetTopology{GetTopology: &wire.GetTopology{}}}).GetTopology().Hosts {
			for _, d := range h.Devices {
				w.hosts[d.Id] = h.Id
			}
		}
		_, err = w.owner.MkdirAll(ctx, "/team/theirs", 0o777)
		require.NoError(t, err)
		_, err = w.owner.MkdirAll(ctx, "/team/own", 0o777)
		require.NoError(t, err)
		content := func(n int) []byte { return bytes.Repeat(fmt.Appendf(nil, "%s-%04d.", secret, n), 2500) }
		write := func(path string, b []byte) client.Attr {
			f, err := w.owner.Create(ctx, path, client.CreateOptions{Replace: true})
			require.NoError(t, err)
			_, err = f.Write(b)
			require.NoError(t, err)
			_, err = f.Commit(ctx)
			require.NoError(t, err)
			a, err := w.owner.Stat(ctx, path)
			require.NoError(t, err)
			return a
		}
		const files = 30
		for n := range files {
			write(fmt.Sprintf("/team/theirs/f%d", n), content(n))
		}
		extents := func(i *intruder, inode uint64) *wire.ExtentsReply {
			resp, err := i.do(&wire.MetaRequest{Op: &wire.MetaRequest_GetExtents{GetExtents: &wire.GetExtents{Inode: inode, Limit: 100}}})
			require.NoError(t, err)
			return resp.GetExtents()
		}
		root := w.intrude(transport.Peer{Role: transport.RoleClient, Node: "root"})
		moved, err := w.owner.Stat(ctx, "/team/theirs/f5")
		require.NoError(t, err)
		stayed, err := w.owner.Stat(ctx, "/team/theirs/f6")
		require.NoError(t, err)
		packed := func() bool {
			a, b := extents(root, uint64(moved.Inode())), extents(root, uint64(stayed.Inode()))
			return len(a.Stripes) == 1 && len(b.Stripes) == 1 && a.Stripes[0].Id == b.Stripes[0].Id
		}
		for range 60 {
			if packed() {
				break
			}
			time.Sleep(30 * time.Second)
		}
		require.True(t, packed(), "the files share a stripe")
		require.NoError(t, w.owner.Rename(ctx, "/team/theirs/f5", "/team/own/f5", client.RenameOptions{}))

		// The new project.
		i := w.intrude(transport.Peer{Role: transport.RoleClient, Node: "mallory", Scope: "/team/own"})
		page := extents(i, uint64(moved.Inode()))
		require.Len(t, page.Stripes, 1)
		s, e := page.Stripes[0], page.Extents[0]
		require.Equal(t, []uint64{s.Id}, page.Limited)
		scheme := client.CreateOptions{}.Scheme
		scheme.K, scheme.M = uint8(s.Scheme.K), uint8(s.Scheme.M)
		chunk := uint64(scheme.ChunkLen(int64(s.Length)))
		read := uint64(0)
		for index, ch := range s.Chunks {
			lo, hi := uint64(index)*chunk, uint64(index+1)*chunk
			lo, hi = max(lo, e.StripeOffset), min(hi, e.StripeOffset+e.Length)
			get := func(off, n uint64) (string, []byte) {
				dst := make([]byte, n)
				_, _, err := i.chunks(ch.Device).Get(ctx, &wire.GetChunk{Stripe: s.Id, Index: uint32(index), Device: ch.Device, Tenant: s.Tenant,
					Offset: off, Length: n, Capability: page.Capabilities[0]}, dst, nil)
				return kind(err), dst
			}
			if index < int(s.Scheme.K) && lo < hi {
				what, b := get(lo%chunk, hi-lo)
				require.Equal(t, "ok", what)
				require.True(t, bytes.Equal(content(5)[lo-e.StripeOffset:hi-e.StripeOffset], b))
				read += hi - lo
			}
			for off := uint64(0); off < chunk; off += 4096 {
				n := min(4096, chunk-off)
				at := uint64(index)*chunk + off
				if index < int(s.Scheme.K) && at >= e.StripeOffset && at+n <= e.StripeOffset+e.Length {
					continue
				}
				what, b := get(off, n)
				require.Equal(t, "permission denied", what, "byte %d of chunk %d", off, index)
				require.Equal(t, make([]byte, n), b)
			}
		}
		require.Equal(t, e.Length, read)

		// The old project.
		left := w.intrude(transport.Peer{Role: transport.RoleClient, Node: "theirs", Scope: "/team/theirs"})
		for _, req := range []*wire.MetaRequest{
			{Op: &wire.MetaRequest_GetExtents{GetExtents: &wire.GetExtents{Inode: uint64(moved.Inode()), Limit: 100}}},
			{Op: &wire.MetaRequest_GetAttr{GetAttr: &wire.GetAttr{Inode: uint64(moved.Inode())}}},
		} {
			_, err := left.do(req)
			require.Equal(t, "not found", kind(err))
		}
		require.Empty(t, extents(left, uint64(stayed.Inode())).Limited)
		reader, err := c.ClientAs(ctx, transport.Peer{Role: transport.RoleClient, Node: "reader", Scope: "/team/theirs"}, client.Config{})
		require.NoError(t, err)
		defer reader.Close() //nolint:errcheck // a failed close loses nothing
		for n := range files {
			if n == 5 {
				continue
			}
			r, err := reader.OpenFile(ctx, fmt.Sprintf("/f%d", n))
			require.NoError(t, err)
			got := make([]byte, len(content(n)))
			require.NoError(t, r.ReadRange(ctx, got, 0))
			require.True(t, bytes.Equal(content(n), got), "f%d", n)
			require.NoError(t, r.Close())
		}
		again := write("/team/own/f5", content(99))
		for _, n := range extents(i, uint64(again.Inode())).Stripes {
			require.NotEqual(t, s.Id, n.Id)
			require.False(t, slices.ContainsFunc(extents(left, uint64(stayed.Inode())).Stripes, func(o *wire.Stripe) bool { return o.Id == n.Id }))
		}
	})
}
