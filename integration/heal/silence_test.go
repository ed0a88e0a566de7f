package heal_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/transport/wire"
)

// TestHostThatDiesWhileDrained: its chunks are rebuilt, though there is no spare
// host. If too few chunks are left for that, its own chunks are the source as soon
// as it is back. It is then emptied to the end.
func TestHostThatDiesWhileDrained(t *testing.T) {
	const outState, drainingState = wire.DeviceState_DEVICE_STATE_OUT, wire.DeviceState_DEVICE_STATE_DRAINING
	inWorld(t, incluster.Options{Chunkservers: 6, RepairGrace: 20 * time.Second}, func(w *world) {
		set := func(host string, to wire.DeviceState) {
			w.ask(&wire.MetaRequest{Op: &wire.MetaRequest_SetHostState{SetHostState: &wire.SetHostState{Host: host, State: to}}})
		}
		until := func(host string, state wire.DeviceState) {
			w.until(host+" is "+state.String(), func() bool { return w.device(host, 0).State == state })
		}
		empty := func() bool { return w.device("n3", 0).Claimed == 0 }
		w.write(8) // 4+2, on all six
		set("n3", drainingState)
		w.Kill("n3")
		until("n3", outState)
		w.until("its chunks are rebuilt", empty)
		w.Kill("n5") // none has more than two chunks of a stripe
		w.readAll()
		require.NoError(t, w.Restart("n3", "n5"))
		until("n3", drainingState)
		set("n3", wire.DeviceState_DEVICE_STATE_IN)
		w.sound()

		// Three of six die: nothing can be rebuilt from the others.
		set("n3", drainingState)
		w.Kill("n3", "n4", "n5")
		for _, dead := range []string{"n3", "n4", "n5"} {
			until(dead, outState)
		}
		w.until("all are lost for now", func() bool {
			c := w.cluster()
			return c.GetHealing().GetScanning() == 0 && c.RepairQueued > 0 && c.Waits.GetLost() == c.RepairQueued
		})
		require.NoError(t, w.Restart("n3"))
		until("n3", drainingState)
		w.until("the chunks of the others are rebuilt", func() bool { return w.cluster().Waits.GetLostDevice() == 0 && w.cluster().Waits.GetLost() == 0 })
		w.readAll()
		_, err := w.AddChunkserver()
		require.NoError(t, err)
		require.NoError(t, w.Restart("n4", "n5"))
		w.until("it is emptied", empty)
		w.sound()
		w.Kill("n3", "n1", "n2")
		w.readAll()
	})
}
