package heal_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/transport/wire"
)

// device is what the service says of a host's device, by its place in the list.
func (w *world) device(host string, n int) *wire.Device {
	w.t.Helper()
	return w.host(host).Devices[n]
}

func (w *world) setDevice(id uint32, to wire.DeviceState) {
	w.t.Helper()
	w.ask(&wire.MetaRequest{Op: &wire.MetaRequest_SetDeviceState{SetDeviceState: &wire.SetDeviceState{Device: id, State: to}}})
}

// TestDisksComeAndGoWhileTheServerRuns is the replacement of a disk that works: a second
// one comes into a running chunkserver and gets its share, the first is drained, retired
// and let go, and the server is never started anew. Every byte reads right at each step,
// and as many hosts may be lost as before.
func TestDisksComeAndGoWhileTheServerRuns(t *testing.T) {
	inWorld(t, incluster.Options{CapacityBytes: 32 << 20}, func(w *world) {
		w.write(40)
		require.ErrorIs(t, w.SetDevices(w.ctx, "n1", "/device1", "/device2"), moraine.NotFound, "nothing is mounted there yet")
		require.NoError(t, w.FormatDevice("n1", "/device2"))
		require.NoError(t, w.SetDevices(w.ctx, "n1", "/device1", "/device2"))
		require.Equal(t, wire.DeviceState_DEVICE_STATE_IN, w.device("n1", 1).State)
		w.until("it gets its share of the host's chunks", func() bool {
			a, b := w.device("n1", 0).Used, w.device("n1", 1).Used
			return w.rebalanced().GetState() == stuck && b > 0 && max(a, b)-min(a, b) < 1<<20
		})
		w.readAll()
		first := w.device("n1", 0).Id
		require.ErrorIs(t, w.SetDevices(w.ctx, "n1", "/device2"), moraine.Conflict, "what is on it counts")

		w.setDevice(first, wire.DeviceState_DEVICE_STATE_DRAINING)
		w.until("the first is drained", func() bool {
			d := w.device("n1", 0)
			return d.State == wire.DeviceState_DEVICE_STATE_DRAINING && d.Claimed == 0
		})
		w.setDevice(first, wire.DeviceState_DEVICE_STATE_RETIRED)
		require.NoError(t, w.SetDevices(w.ctx, "n1", "/device2"))
		w.readAll()
		w.write(5)
		w.sound()
		w.readAll()
		require.NoError(t, w.Check())
		require.Zero(t, w.cluster().LeakedBytes)
		w.Kill("n2", "n3")
		w.readAll()
	})
}
