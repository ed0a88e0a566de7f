package heal_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// repairs is how many repair jobs there are or were.
func (w *world) repairs() (n int) {
	w.t.Helper()
	for _, j := range w.ask(&wire.MetaRequest{Op: &wire.MetaRequest_ListJobs{ListJobs: &wire.ListJobs{Limit: 1000, Ended: true}}}).GetJobs().GetJobs() {
		if j.Kind == wire.JobKind_JOB_KIND_REPAIR {
			n++
		}
	}
	return n
}

// TestFalseReportsOfClientsChangeNothing: a read-only client of the root reports every good chunk of
// a stripe as bad, for every reason. The chunkservers verify the chunks; the record does not change
// and nothing is repaired. After one chunk is damaged on its disk, the same report has it repaired.
func TestFalseReportsOfClientsChangeNothing(t *testing.T) {
	inWorld(t, incluster.Options{Chunkservers: 8, RepairGrace: 30 * time.Second}, func(w *world) {
		w.writeOne("/f", moraine.Scheme{K: 4, M: 2})
		s := w.stripe("/f")
		liar, err := w.ClientAs(w.ctx, transport.Peer{Role: transport.RoleClient, Node: "liar", Scope: "/", ReadOnly: true}, client.Config{})
		require.NoError(t, err)
		defer liar.Close()
		report := func(kind moraine.Kind, parity bool) {
			op := &wire.ReportBadChunks{}
			for i, c := range s.Chunks {
				op.Chunks = append(op.Chunks, &wire.BadChunk{Stripe: s.Id, Index: uint32(i), Device: c.Device, Version: s.Version, AtVersion: true, Kind: uint32(kind), Parity: parity})
			}
			_, err := rawclient.Of(liar).Meta(w.ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ReportBadChunks{ReportBadChunks: op}})
			require.NoError(t, err)
		}
		for _, kind := range []moraine.Kind{moraine.NotFound, moraine.Corrupt, moraine.Stale, moraine.Lost} {
			for _, parity := range []bool{false, true} {
				report(kind, parity)
				time.Sleep(40 * time.Second) // each is verified
				c := w.cluster()
				require.Zero(t, c.LostStripes)
				require.Zero(t, c.RepairQueued+c.RepairRunning)
			}
		}
		require.Zero(t, w.repairs())
		require.Equal(t, s.Version, w.stripe("/f").Version)

		w.rotChunk(s, 1)
		require.Equal(t, s.Version, w.stripe("/f").Version, "nobody has found it yet")
		report(moraine.Corrupt, false)
		w.until("it is repaired", func() bool { return w.stripe("/f").Version > s.Version })
		w.sound()
		w.readAll()
	})
}
