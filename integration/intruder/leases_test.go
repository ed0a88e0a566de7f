package intruder_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/transport/wire"
)

// TestIntruderLeasesOfForeignInodes has a known weakness: a confined caller that says that it
// held leases on foreign inodes, whose numbers it guesses, hears of their changes, with names,
// and each waits until it says that it has, or for the term of a lease. Once Leases checks
// what it is told was held against the session's directory, nothing is to be heard, and the
// owner does not wait.
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
		require.Empty(w.t, begun.Recalls)
		heard := make(chan *wire.LeasesReply, 1)
		go func() {
			resp, _ := i.do(&wire.MetaRequest{Op: &wire.MetaRequest_Leases{Leases: &wire.Leases{Epoch: 2, WaitMillis: 2000}}})
			heard <- resp.GetLeases()
		}()
		synctest.Wait()
		began := time.Now()
		_, err := w.owner.Create(ctx, "/b/"+secret+"-dir/"+secret+"-new", client.CreateOptions{})
		require.NoError(w.t, err)
		_, err = w.owner.Mkdir(ctx, "/b/"+secret+"-dir/"+secret+"-subdir", 0o777)
		require.NoError(w.t, err)
		waited := time.Since(began)
		var names []string
		for _, r := range (<-heard).GetRecalls() {
			for _, touch := range r.Touches {
				if touch.Name != "" {
					names = append(names, touch.Name)
				}
			}
		}
		require.Equal(w.t, []string{secret + "-subdir"}, names)
		require.Greater(w.t, waited, 2*time.Second)
	})
}
