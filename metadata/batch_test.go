package metadata_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// A batch is applied in order and as a whole, also if it was retried after the routing had changed:
// its requests use the batch's routing.
func TestBatch(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		admin, k := c.open(peer(transport.RoleAdmin, "a1")), c.open(peer(transport.RoleClient, "c1"))
		_, err := admin.do(&wire.MetaRequest{Op: &wire.MetaRequest_RaiseRouting{RaiseRouting: &wire.RaiseRouting{From: 1}}})
		require.NoError(t, err)
		batch := func(epoch uint64, reqs ...*wire.MetaRequest) ([]*wire.MetaResponse, error) {
			for _, r := range reqs {
				k.number++
				r.Session, r.Number, r.AckedBelow, r.RoutingEpoch = k.session, k.number, k.number, 1
			}
			resp, err := k.ask(&wire.MetaRequest{RoutingEpoch: epoch, Op: &wire.MetaRequest_Batch{Batch: &wire.Batch{Requests: reqs}}})
			return resp.GetBatch().GetResponses(), err
		}
		_, err = batch(1, mkdir(root, "a"))
		require.ErrorIs(t, err, moraine.Misrouted)
		got, err := batch(2, mkdir(root, "a"), mkdir(root, "b"), mkdir(root, "a"))
		require.NoError(t, err)
		require.Len(t, got, 3)
		require.Nil(t, got[0].Error)
		require.Equal(t, got[0].GetEntry().GetAttr().GetInode()+1, got[1].GetEntry().GetAttr().GetInode())
		require.ErrorIs(t, transport.ErrorFromWire(got[2].Error), moraine.Exists)
		for _, bad := range [][]*wire.MetaRequest{nil, {lookup("a")}, {mkdir(root, "c"), lookup("a")}} {
			_, err := batch(2, bad...)
			require.ErrorIs(t, err, moraine.InvalidArgument)
		}
		none := lookup("c")
		none.RoutingEpoch = 2
		_, err = k.ask(none)
		require.ErrorIs(t, err, moraine.NotFound)
	})
}
