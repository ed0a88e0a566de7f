package client_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/memcluster"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// stuck is a network that delays some requests.
type stuck struct {
	c    *cluster
	peer transport.Peer      // the client whose requests it delays
	late []*wire.MetaRequest // in order of first attempt, each once
}

// holdBack delays matching requests, from now on until another call.
func (s *stuck) holdBack(match func(*wire.MetaRequest) bool) {
	s.c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
		if !match(req) {
			return nil, nil
		}
		for _, have := range s.late {
			if have.Number == req.Number {
				return nil, errKind(moraine.Unavailable)
			}
		}
		s.late = append(s.late, proto.Clone(req).(*wire.MetaRequest))
		return nil, errKind(moraine.Unavailable)
	})
}

// arrive delivers the matching delayed requests.
func (s *stuck) arrive(match func(*wire.MetaRequest) bool) (n int) {
	for _, req := range s.late {
		if match(req) {
			n++
			_, _ = s.c.Ask(s.peer.Role, s.peer.Node, req)
		}
	}
	return n
}

// stripePut begins a file with a stripe on chunkservers that is not committed.
func stripePut(c *cluster, cl *client.Client) *client.File {
	f, err := cl.Create(c.ctx, "/other", client.CreateOptions{})
	require.NoError(c.t, err)
	_, err = f.Write(bytesOf(3, 100_000))
	require.NoError(c.t, err)
	require.NoError(c.t, f.Flush(c.ctx))
	return f
}

// TestARequestThatArrivesLateChangesNothing: a caller abandons a change whose attempts the
// network delays. Later acknowledged changes of the same client stay when an attempt arrives,
// even while an older request of the client has no answer yet.
func TestARequestThatArrivesLateChangesNothing(t *testing.T) {
	old, fresh := bytesOf(1, 300_000), bytesOf(2, 200_000)
	whole := func(ctx context.Context, c *cluster, cl *client.Client, data []byte) error {
		f, err := cl.Create(c.ctx, "/f", client.CreateOptions{Replace: true})
		require.NoError(c.t, err)
		_, err = f.Write(data)
		require.NoError(c.t, err)
		_, err = f.Commit(ctx)
		return err
	}
	open := func(c *cluster, cl *client.Client) *client.Handle {
		a, err := cl.Stat(c.ctx, "/f")
		require.NoError(c.t, err)
		h, err := cl.Inodes().OpenHandle(c.ctx, a.Inode(), client.HandleOptions{})
		require.NoError(c.t, err)
		return h
	}
	for name, row := range map[string]struct {
		is     func(*wire.MetaRequest) bool
		giveUp func(ctx context.Context, c *cluster, cl *client.Client) error
	}{
		"a replacement": {func(r *wire.MetaRequest) bool { return r.GetCommit() != nil }, func(ctx context.Context, c *cluster, cl *client.Client) error {
			return whole(ctx, c, cl, old)
		}},
		"a removal": {func(r *wire.MetaRequest) bool { return r.GetRemove() != nil }, func(ctx context.Context, c *cluster, cl *client.Client) error {
			return cl.Remove(ctx, "/f")
		}},
		"a truncation": {func(r *wire.MetaRequest) bool { return r.GetSetAttr() != nil }, func(ctx context.Context, c *cluster, cl *client.Client) error {
			h := open(c, cl)
			defer func() { require.NoError(c.t, h.Close(c.ctx)) }()
			return h.Truncate(ctx, 10)
		}},
		"a write that close gave up": {func(r *wire.MetaRequest) bool { return r.GetCommit() != nil }, func(ctx context.Context, c *cluster, cl *client.Client) error {
			h := open(c, cl)
			writeAt(c.t, c, h, old[:1000], 500)
			return h.Close(ctx)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			inCluster(t, 6, func(c *cluster) {
				cl := c.dial("c1", config())
				defer cl.Close()
				require.NoError(t, whole(c.ctx, c, cl, old))
				other := stripePut(c, cl) // keeps the grant
				defer other.Abort()
				s := &stuck{c: c, peer: memcluster.Peer(transport.RoleClient, "c1")}
				slow := func(r *wire.MetaRequest) bool { return r.GetCreate().GetName() == "slow" }
				s.holdBack(func(r *wire.MetaRequest) bool { return slow(r) || row.is(r) })
				answered := make(chan error, 1)
				go func() {
					_, err := cl.Mkdir(c.ctx, "/slow", 0o755)
					answered <- err
				}()
				time.Sleep(100 * time.Millisecond)
				err := row.giveUp(c.within(2*time.Second), c, cl)
				require.Equal(t, moraine.Timeout, moraine.KindOf(err), "%v", err)
				s.holdBack(slow)
				h := open(c, cl)
				require.NoError(t, h.Truncate(c.ctx, 0))
				writeAt(t, c, h, fresh, 0)
				require.NoError(t, h.Close(c.ctx))
				if name == "a replacement" {
					require.NoError(t, whole(c.ctx, c, cl, fresh))
				}
				require.NotZero(t, s.arrive(row.is), "nothing was late")
				require.True(t, bytes.Equal(fresh, read(t, c, cl, "/f")), "what was acknowledged is not there")
				s.holdBack(func(*wire.MetaRequest) bool { return false })
				require.NoError(t, <-answered)
			})
		})
	}
}

// TestARequestThatArrivesLateAfterNoCommand: a caller abandons a change. Then the leader
// answers a request of the same client without a log entry, so the state does not learn of the
// abandoned number. The next command reports it.
func TestARequestThatArrivesLateAfterNoCommand(t *testing.T) {
	inCluster(t, 3, func(c *cluster) {
		peer := memcluster.Peer(transport.RoleAdmin, "n1")
		cl := c.dialAs(peer, config())
		defer cl.Close()
		_, err := cl.Mkdir(c.ctx, "/d", 0o755)
		require.NoError(t, err)
		s := &stuck{c: c, peer: peer}
		slow := func(r *wire.MetaRequest) bool { return r.GetCreate().GetName() == "slow" }
		removal := func(r *wire.MetaRequest) bool { return r.GetRemove() != nil }
		s.holdBack(func(r *wire.MetaRequest) bool { return slow(r) || removal(r) })
		answered := make(chan error, 1)
		go func() {
			_, err := cl.Mkdir(c.ctx, "/slow", 0o755)
			answered <- err
		}()
		time.Sleep(100 * time.Millisecond)
		err = cl.Remove(c.within(2*time.Second), "/d")
		require.Equal(t, moraine.Timeout, moraine.KindOf(err), "%v", err)
		s.holdBack(slow)
		resp, err := rawclient.Of(cl).Meta(c.ctx, &wire.MetaRequest{Op: &wire.MetaRequest_LeaseJobs{LeaseJobs: &wire.LeaseJobs{}}})
		require.NoError(t, err)
		require.Empty(t, resp.GetJobs().GetJobs())
		_, err = cl.SetAttr(c.ctx, "/d", client.SetAttr{Mode: new(uint32(0o700))})
		require.NoError(t, err)
		require.Equal(t, 1, s.arrive(removal), "nothing was late")
		_, err = cl.Stat(c.ctx, "/d")
		require.NoError(t, err, "what was acknowledged is not there")
		s.holdBack(func(*wire.MetaRequest) bool { return false })
		require.NoError(t, <-answered)
	})
}
