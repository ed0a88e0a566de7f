package intruder_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/transport/wire"
)

// TestIntruderLeasesOfForeignInodes: a confined caller claims to have held leases
// on foreign inodes, whose numbers it guesses. It learns nothing of their changes,
// and delays nobody.
func TestIntruderLeasesOfForeignInodes(t *testing.T) {
	inWorld(t, func(w *world) {
		ctx := w.t.Context()
		i := w.intrude(confined[0].peer)
		leases := func(l *wire.Leases) *wire.LeasesReply {
			resp, err := i.do(&wire.MetaRequest{Op: &wire.MetaRequest_Leases{Leases: l}})
			require.NoError(w.t, err)
			return resp.GetLeases()
		}
		exact := leases(&wire.Leases{Epoch: 1, Begin: true}).Exact
		require.NotZero(w.t, exact)
		begun := leases(&wire.Leases{Epoch: 2, Begin: true, Exact: exact, Held: []uint64{w.foreign.dir, w.foreign.file, w.foreign.run, w.own.dir}})
		require.Len(w.t, begun.Recalls, 1)
		require.True(w.t, begun.Recalls[0].All, "it holds nothing")
		ack := begun.Recalls[0].Number
		received := make(chan *wire.LeasesReply, 1)
		go func() {
			resp, _ := i.do(&wire.MetaRequest{Op: &wire.MetaRequest_Leases{Leases: &wire.Leases{Epoch: 2, Ack: ack, WaitMillis: 2000}}})
			received <- resp.GetLeases()
		}()
		synctest.Wait()
		began := time.Now()
		_, err := w.owner.Create(ctx, "/b/"+secret+"-dir/"+secret+"-new", client.CreateOptions{})
		require.NoError(w.t, err)
		_, err = w.owner.Mkdir(ctx, "/b/"+secret+"-dir/"+secret+"-subdir", 0o777)
		require.NoError(w.t, err)
		waited := time.Since(began)
		require.Empty(w.t, (<-received).GetRecalls())
		require.Less(w.t, waited, time.Second, "no change waits for the term of a lease")
	})
}
