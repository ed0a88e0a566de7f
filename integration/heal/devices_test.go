package heal_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
)

// device is a host's device as the metadata service knows it, by its place in the
// list.
func (w *world) device(host string, n int) *wire.Device {
	w.t.Helper()
	return w.host(host).Devices[n]
}

func (w *world) setDevice(id uint32, to wire.DeviceState) {
	w.t.Helper()
	w.ask(&wire.MetaRequest{Op: &wire.MetaRequest_SetDeviceState{SetDeviceState: &wire.SetDeviceState{Device: id, State: to}}})
}

// TestDisksComeAndGoWhileTheServerRuns replaces a disk that works. A second one is
// added to a running chunkserver and gets its share. The first is drained, retired
// and dropped, and the server is never restarted. Every byte reads right at each
// step, and as many hosts may be lost as before.
func TestDisksComeAndGoWhileTheServerRuns(t *testing.T) {
	inWorld(t, incluster.Options{CapacityBytes: 16 << 20, Grace: 10 * time.Second}, func(w *world) {
		w.write(20)
		require.ErrorIs(t, w.SetDevices(w.ctx, "n1", "/device1", "/device2"), moraine.NotFound, "nothing is mounted there yet")
		require.NoError(t, w.FormatDevice("n1", "/device2"))
		require.NoError(t, w.SetDevices(w.ctx, "n1", "/device1", "/device2"))
		require.Equal(t, wire.DeviceState_DEVICE_STATE_IN, w.device("n1", 1).State)
		w.until("it gets its share of the host's chunks", func() bool {
			a, b := w.device("n1", 0).Used, w.device("n1", 1).Used
			return w.rebalanced().GetState() == stuck && b > 0 && max(a, b)-min(a, b) < 1<<19
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

// TestDeviceThatIsOutIsKeptUntilItIsRebuilt: a disk that is out is retired only
// once it holds nothing that counts. If three of six hosts are out none is retired,
// and all is whole again when they come back. Chunks that a person abandons are
// rebuilt from the others.
func TestDeviceThatIsOutIsKeptUntilItIsRebuilt(t *testing.T) {
	inWorld(t, incluster.Options{Chunkservers: 7, RepairGrace: 20 * time.Second}, func(w *world) {
		out := func(host string) {
			w.until(host+" is out", func() bool { return w.device(host, 0).State == wire.DeviceState_DEVICE_STATE_OUT })
		}
		refused := func(set *wire.SetDeviceState, host *wire.SetHostState) {
			t.Helper()
			for _, req := range []*wire.MetaRequest{{Op: &wire.MetaRequest_SetDeviceState{SetDeviceState: set}}, {Op: &wire.MetaRequest_SetHostState{SetHostState: host}}} {
				_, err := rawclient.Of(w.admin).Meta(w.ctx, req)
				require.ErrorIs(t, err, moraine.Conflict)
				require.ErrorContains(t, err, "--accept-loss")
			}
		}
		const retired = wire.DeviceState_DEVICE_STATE_RETIRED
		w.write(10)
		w.setDevice(w.device("n2", 0).Id, wire.DeviceState_DEVICE_STATE_OUT)
		out("n2")
		w.until("its chunks are rebuilt", func() bool { return w.device("n2", 0).Claimed == 0 })
		w.setDevice(w.device("n2", 0).Id, retired)
		w.sound()

		dead := []string{"n5", "n6", "n7"} // of six: nothing can be rebuilt
		w.Kill(dead...)
		for _, host := range dead {
			out(host)
		}
		for _, host := range dead {
			refused(&wire.SetDeviceState{Device: w.device(host, 0).Id, State: retired}, &wire.SetHostState{Host: host, State: retired})
		}
		require.NoError(t, w.Restart(dead...))
		for _, host := range dead {
			w.until(host+" is back", func() bool { return w.device(host, 0).State == wire.DeviceState_DEVICE_STATE_IN })
		}
		w.sound()
		w.readAll()

		id := w.device("n5", 0).Id
		w.setDevice(id, wire.DeviceState_DEVICE_STATE_OUT)
		refused(&wire.SetDeviceState{Device: id, State: retired}, &wire.SetHostState{Host: "n5", State: retired})
		w.ask(&wire.MetaRequest{Op: &wire.MetaRequest_SetHostState{SetHostState: &wire.SetHostState{Host: "n5", State: retired, AcceptLoss: true}}})
		w.readAll()
	})
}
