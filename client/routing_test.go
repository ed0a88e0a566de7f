package client_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
)

// The routing epoch rises again and again while clients work and replies are lost. Each client
// learns the new epoch and repeats its request, once.
func TestRoutingChangesWhileClientsWork(t *testing.T) {
	inCluster(t, 1, func(c *cluster) {
		admin := c.admin(config())
		defer admin.Close()
		present := func() uint64 {
			resp, err := rawclient.Of(admin).Meta(c.ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: &wire.GetCluster{}}})
			require.NoError(t, err)
			return resp.GetCluster().RoutingEpoch
		}
		require.EqualValues(t, 1, present())
		var stale, requests atomic.Int64
		c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
			n := requests.Add(1)
			return func(resp *wire.MetaResponse, err error) (*wire.MetaResponse, error) {
				if errors.Is(err, moraine.Misrouted) {
					stale.Add(1)
				} else if n%7 == 0 && req.Number != 0 {
					return nil, &moraine.Error{Kind: moraine.Timeout}
				}
				return resp, err
			}, nil
		})
		const rounds, workers = 10, 4
		var clients []*client.Client
		for w := range workers {
			cl := c.dial(fmt.Sprintf("c%d", w), config())
			defer cl.Close()
			clients = append(clients, cl)
		}
		for round := range rounds {
			_, err := rawclient.Of(admin).Meta(c.ctx, &wire.MetaRequest{Op: &wire.MetaRequest_RaiseRouting{RaiseRouting: &wire.RaiseRouting{From: uint64(round + 1)}}})
			require.NoError(t, err)
			var wg sync.WaitGroup
			for w, cl := range clients {
				wg.Go(func() {
					name := fmt.Sprintf("/%d-%d", w, round)
					if _, err := cl.Mkdir(c.ctx, name, 0o755); err != nil {
						t.Errorf("mkdir: %v", err)
					}
					if _, err := cl.Stat(c.ctx, name); err != nil {
						t.Errorf("stat: %v", err)
					}
				})
			}
			wg.Wait()
		}
		c.OnMeta(nil)
		require.EqualValues(t, rounds+1, present())
		require.NotZero(t, stale.Load(), "nobody was at a stale epoch: the test shows nothing")
		names := 0
		for _, err := range admin.ReadDir(c.ctx, "/") {
			require.NoError(t, err)
			names++
		}
		require.Equal(t, rounds*workers, names)
	})
}

// Restored metadata may have a lower routing epoch than a client has seen. Its sessions have
// ended, and the next session has the current epoch.
func TestRoutingAfterRestore(t *testing.T) {
	inCluster(t, 1, func(c *cluster) {
		var opened, before atomic.Int64
		c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
			if old := before.Load(); old != 0 && req.Session == uint64(old) {
				return nil, &moraine.Error{Kind: moraine.SessionExpired}
			}
			if req.GetOpenSession() == nil || opened.Add(1) > 1 {
				return nil, nil
			}
			return func(resp *wire.MetaResponse, err error) (*wire.MetaResponse, error) {
				if s := resp.GetSession(); s != nil {
					s.RoutingEpoch = 9
					before.Store(int64(s.Session))
				}
				return resp, err
			}, nil
		})
		cl := c.dial("c1", config())
		defer cl.Close()
		_, err := cl.Mkdir(c.ctx, "/d", 0o755)
		require.NoError(t, err)
		require.Greater(t, opened.Load(), int64(1), "the first session did not end: the test shows nothing")
		_, err = cl.Stat(c.ctx, "/d")
		require.NoError(t, err)
	})
}
