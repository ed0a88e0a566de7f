package integration_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/memnet"
	"github.com/morainefs/moraine/transport/wire"
)

// intruder calls the servers itself, under a certificate.
type intruder struct {
	t       *testing.T
	ctx     context.Context
	dialer  transport.Dialer
	meta    transport.Metadata
	session uint64
	number  uint64
	devices map[uint32]string // host by device
}

func intrude(t *testing.T, c *incluster.Cluster, peer transport.Peer) *intruder {
	t.Helper()
	i := &intruder{t: t, ctx: t.Context(), dialer: c.DialerAs(peer), devices: map[uint32]string{}}
	t.Cleanup(func() { require.NoError(t, i.dialer.Close()) })
	i.meta = i.dialer.Metadata([]string{memnet.Address("m1")})
	s := i.ask(&wire.MetaRequest{Op: &wire.MetaRequest_OpenSession{OpenSession: &wire.OpenSession{Nonce: fmt.Appendf(nil, "%-16s", peer.Node)}}}).GetSession()
	i.session = s.Session
	i.dialer.SetToken(s.Token)
	for _, h := range i.ask(&wire.MetaRequest{Op: &wire.MetaRequest_GetTopology{GetTopology: &wire.GetTopology{}}}).GetTopology().Hosts {
		for _, d := range h.Devices {
			i.devices[d.Id] = h.Id
		}
	}
	return i
}

func (i *intruder) do(req *wire.MetaRequest) (*wire.MetaResponse, error) {
	if i.session != 0 {
		i.number++
		req.Session, req.Number, req.RoutingEpoch = i.session, i.number, 1
	}
	return i.meta.Do(i.ctx, req)
}

func (i *intruder) ask(req *wire.MetaRequest) *wire.MetaResponse {
	i.t.Helper()
	resp, err := i.do(req)
	require.NoError(i.t, err)
	return resp
}

func (i *intruder) chunks(device uint32) transport.Chunks {
	return i.dialer.Chunks(i.devices[device], []string{memnet.Address(i.devices[device])})
}

// extents returns the metadata service's answer for a file, with the error
// unchanged.
func extents(ctx context.Context, c *client.Client, path string) (*wire.ExtentsReply, error) {
	a, err := c.Stat(ctx, path)
	if err != nil {
		return nil, err
	}
	resp, err := rawclient.Of(c).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetExtents{GetExtents: &wire.GetExtents{Inode: uint64(a.Inode()), Limit: 1000}}})
	return resp.GetExtents(), err
}

// TestAConfinedClientTouchesNoForeignChunk: a client that is confined to /a
// requests chunks of /b from chunkservers itself, and tries to replace them, in
// every way. All requests are refused, and the owner reads the bytes it wrote.
func TestAConfinedClientTouchesNoForeignChunk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		c, err := incluster.Start(ctx, incluster.Options{Seed: 1, Metadata: 1, Chunkservers: 4, SessionTimeout: time.Hour})
		require.NoError(t, err)
		defer func() { require.NoError(t, c.Stop()) }()
		require.NoError(t, c.WaitReady(ctx))
		owner, err := c.Client(ctx, "owner")
		require.NoError(t, err)
		defer owner.Close()
		for _, dir := range []string{"/a", "/b"} {
			_, err := owner.Mkdir(ctx, dir, 0o755)
			require.NoError(t, err)
		}
		secret := make([]byte, 700_000)
		for n := range secret {
			secret[n] = byte(n * n >> 8)
		}
		save := func(c *client.Client, path string, data []byte) {
			f, err := c.Create(ctx, path, client.CreateOptions{})
			require.NoError(t, err)
			_, err = f.Write(data)
			require.NoError(t, err)
			_, err = f.Commit(ctx)
			require.NoError(t, err)
		}
		check := func(c *client.Client, path string) {
			r, err := c.OpenFile(ctx, path)
			require.NoError(t, err)
			defer r.Close()
			got := make([]byte, len(secret))
			require.NoError(t, r.ReadRange(ctx, got, 0))
			require.Equal(t, secret, got)
		}
		save(owner.Client, "/b/secret", secret)
		theirs, err := extents(ctx, owner.Client, "/b/secret")
		require.NoError(t, err)
		require.NotEmpty(t, theirs.Stripes)
		require.Empty(t, theirs.Capabilities, "the token of a session of the root is enough")

		peer := transport.Peer{Role: transport.RoleClient, Node: "mallory", Scope: "/a"}
		confined, err := c.ClientAs(ctx, peer, client.Config{})
		require.NoError(t, err)
		defer confined.Close()
		save(confined.Client, "/mine", secret)
		check(confined.Client, "/mine")
		own, err := extents(ctx, confined.Client, "/mine")
		require.NoError(t, err)
		require.NotEmpty(t, own.Capabilities)

		i := intrude(t, c, peer)
		inode := theirs.Attr.Inode
		_, err = i.do(&wire.MetaRequest{Op: &wire.MetaRequest_GetExtents{GetExtents: &wire.GetExtents{Inode: inode}}})
		require.ErrorIs(t, err, moraine.NotFound)
		_, missing := i.do(&wire.MetaRequest{Op: &wire.MetaRequest_GetExtents{GetExtents: &wire.GetExtents{Inode: inode + 1000}}})
		require.ErrorIs(t, missing, moraine.NotFound)
		mine := i.ask(&wire.MetaRequest{Op: &wire.MetaRequest_GetExtents{GetExtents: &wire.GetExtents{Inode: own.Attr.Inode}}}).GetExtents()
		root := i.ask(&wire.MetaRequest{Op: &wire.MetaRequest_Walk{Walk: &wire.Walk{}}}).GetWalk().Attr.Inode
		grant := i.ask(&wire.MetaRequest{Op: &wire.MetaRequest_Grant{Grant: &wire.Grant{Inode: root, Count: 4}}}).GetGrant()
		shown := map[string][]byte{"nothing": nil, "garbage": []byte("x"), "the grant's": grant.Capability, "the file's": mine.Capabilities[0],
			"another session's": own.Capabilities[0]}
		lies := make([]byte, 1000)
		for what, capability := range shown {
			for _, s := range theirs.Stripes {
				for index, ch := range s.Chunks {
					name := fmt.Sprintf("%s: %x/%d", what, s.Id, index)
					_, _, err := i.chunks(ch.Device).Get(ctx, &wire.GetChunk{Stripe: s.Id, Index: uint32(index), Device: ch.Device,
						Tenant: s.Tenant, Length: 1000, Capability: capability}, make([]byte, 1000), nil)
					require.ErrorIs(t, err, moraine.PermissionDenied, name)
					for _, version := range []uint32{1, 2, math.MaxUint32 - 1} {
						for _, repair := range []bool{false, true} {
							_, err := i.chunks(ch.Device).Put(ctx, &wire.PutChunk{Stripe: s.Id, Index: uint32(index), Device: ch.Device, Tenant: s.Tenant,
								Version: version, Repair: repair, Crc: crc.Sum(lies), Level: uint32(moraine.NVMe), Session: i.session, Capability: capability}, lies)
							require.ErrorIs(t, err, moraine.PermissionDenied, name)
						}
					}
				}
			}
		}
		// It cannot request a scrub or a rebuild of the chunks either.
		for what, capability := range shown {
			s := theirs.Stripes[0]
			_, err := i.do(&wire.MetaRequest{Op: &wire.MetaRequest_ReportBadChunks{ReportBadChunks: &wire.ReportBadChunks{Chunks: []*wire.BadChunk{
				{Stripe: s.Id, Device: s.Chunks[0].Device, Kind: uint32(moraine.Corrupt), Capability: capability}}}}})
			require.NoError(t, err, what)
			_, err = i.do(&wire.MetaRequest{Op: &wire.MetaRequest_Place{Place: &wire.Place{Stripes: []uint64{s.Id}, Capability: true}}})
			require.ErrorIs(t, err, moraine.Stale)
		}
		require.Zero(t, i.ask(&wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: &wire.GetCluster{}}}).GetCluster().RepairQueued)
		check(owner.Client, "/b/secret")
		check(owner.Client, "/a/mine")

		// With its own capability it reads its own chunks, and puts only a first
		// version.
		ch := mine.Stripes[0].Chunks[0]
		get := &wire.GetChunk{Stripe: mine.Stripes[0].Id, Device: ch.Device, Tenant: mine.Stripes[0].Tenant, Length: 1000, Capability: mine.Capabilities[0]}
		_, _, err = i.chunks(ch.Device).Get(ctx, get, make([]byte, 1000), nil)
		require.NoError(t, err)
		put := &wire.PutChunk{Stripe: grant.First, Device: ch.Device, Tenant: grant.Tenant, Version: 1, Crc: crc.Sum(lies), Level: uint32(moraine.NVMe), Capability: grant.Capability}
		_, err = i.chunks(ch.Device).Put(ctx, put, lies)
		require.NoError(t, err)
		// No capability of the last session is valid for the next one.
		next := intrude(t, c, transport.Peer{Role: transport.RoleClient, Node: "mallory2", Scope: "/a"})
		_, err = next.chunks(ch.Device).Put(ctx, put, lies)
		require.ErrorIs(t, err, moraine.PermissionDenied)
		_, _, err = next.chunks(ch.Device).Get(ctx, get, make([]byte, 1000), nil)
		require.ErrorIs(t, err, moraine.PermissionDenied)
	})
}

// TestCapabilitiesAreRenewed: files are written and read for longer than a
// capability, and the key that signs it, live. Through restarts of the leader and
// of the servers no request is refused.
func TestCapabilitiesAreRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		c, err := incluster.Start(ctx, incluster.Options{Seed: 2, Metadata: 3, Chunkservers: 4, TokenLife: 20 * time.Second, KeyLife: 45 * time.Second,
			SnapshotEntries: 5000, MemTableBytes: 4 << 20})
		require.NoError(t, err)
		defer func() { require.NoError(t, c.Stop()) }()
		require.NoError(t, c.WaitReady(ctx))
		owner, err := c.Client(ctx, "owner")
		require.NoError(t, err)
		defer owner.Close()
		_, err = owner.Mkdir(ctx, "/a", 0o777)
		require.NoError(t, err)
		confined, err := c.ClientAs(ctx, transport.Peer{Role: transport.RoleClient, Node: "c1", Scope: "/a"}, client.Config{})
		require.NoError(t, err)
		defer confined.Close()
		part := make([]byte, 30_000)
		for n := range part {
			part[n] = byte(n)
		}
		clients := map[string]*client.Client{"/f": confined.Client, "/a/g": owner.Client}
		files := map[string]*client.Handle{}
		for path, cl := range clients {
			parent, err := cl.Stat(ctx, path[:strings.LastIndex(path, "/")+1])
			require.NoError(t, err)
			a, err := cl.Inodes().CreateEmpty(ctx, parent.Inode(), path[strings.LastIndex(path, "/")+1:], 0o644)
			require.NoError(t, err)
			h, err := cl.Inodes().OpenHandle(ctx, a.Inode(), client.HandleOptions{})
			require.NoError(t, err)
			defer h.Close(ctx)
			files[path] = h
		}
		for round := range int64(20) {
			for path, h := range files {
				_, err := h.WriteAt(ctx, part, round*int64(len(part)))
				require.NoError(t, err, path)
				require.NoError(t, h.Sync(ctx), path)
				for at := range round + 1 {
					got := make([]byte, len(part))
					_, err = h.ReadAt(ctx, got, at*int64(len(part)))
					require.NoError(t, err, path)
					require.Equal(t, part, got)
				}
			}
			time.Sleep(7 * time.Second)
			if round == 8 {
				leader := c.Leader()
				c.Kill(leader)
				require.NoError(t, c.Restart(leader))
			}
		}
		require.Equal(t, 1, int(confined.Stats().Sessions))
	})
}
