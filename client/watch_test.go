package client_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/transport/wire"
)

// A watch names the incarnation of the metadata that its log position belongs to. In another
// incarnation it begins with a resync, once.
func TestAWatchCarriesTheIncarnation(t *testing.T) {
	inCluster(t, 0, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		var other atomic.Bool
		other.Store(true)
		c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
			if req.GetWatch() == nil || !other.Swap(false) {
				return nil, nil
			}
			return func(resp *wire.MetaResponse, err error) (*wire.MetaResponse, error) {
				if err == nil {
					resp.GetWatch().Incarnation += 6 // answers from a lost incarnation
				}
				return resp, err
			}, nil
		})
		ctx, stop := context.WithCancel(c.ctx)
		defer stop()
		var kinds []client.EventKind
		for e, err := range cl.Watch(ctx, "/") {
			require.NoError(t, err)
			kinds = append(kinds, e.Kind)
			if len(kinds) == 2 {
				_, err := cl.Mkdir(c.ctx, "/d", 0)
				require.NoError(t, err)
			}
			if len(kinds) == 3 {
				break
			}
		}
		require.Equal(t, []client.EventKind{client.EventResync, client.EventResync, client.EventCreated}, kinds)
	})
}
