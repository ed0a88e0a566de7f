package heal_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/transport/wire"
)

// rot flips a bit in the last byte of a chunk.
func (w *world) rot(node string, r record) {
	b := w.peek(node, r)
	data := len(b) - int((r.Header.Length+4095)/4096*4096)
	at := data + int(r.Header.Length) - 1
	w.poke(node, r, int64(at), []byte{b[at] ^ 0x10})
}

// TestScrubHealsRot: a scrub finds flipped bits, and a record that lies where
// another belongs, without any read. They are rebuilt from the others, and
// reported. Afterwards as many hosts may be lost as before.
func TestScrubHealsRot(t *testing.T) {
	inWorld(t, incluster.Options{Chunkservers: 7}, func(w *world) {
		w.write(6)
		require.Zero(t, w.scrubAll(), "nothing is wrong yet")
		var damaged uint64
		for _, node := range []string{"n1", "n2"} {
			recs := w.records(node)
			require.Greater(t, len(recs), 3)
			w.rot(node, recs[0])
			damaged++
		}
		// On n3 one record takes the place of another of the same size.
		recs := w.records("n3")
		for i := range recs {
			if j := (i + 1) % len(recs); recs[i].Size == recs[j].Size && recs[i].Header.ID != recs[j].Header.ID {
				w.poke("n3", recs[i], 0, w.peek("n3", recs[j]))
				damaged++
				break
			}
		}
		require.EqualValues(t, 3, damaged)
		require.Equal(t, damaged, w.scrubAll())
		require.EqualValues(t, 1, w.host("n1").Devices[0].CorruptChunks)
		w.sound()
		time.Sleep(2 * time.Minute) // replaced chunks are deleted after their grace
		require.Zero(t, w.scrubAll(), "all is healed")
		w.Kill("n6", "n7")
		w.readAll()
	})
}

// TestScrubGoesByItsSchedule: devices are scrubbed without a request, and the time
// of the last scrub survives a restart.
func TestScrubGoesByItsSchedule(t *testing.T) {
	inWorld(t, incluster.Options{Chunkservers: 6, ScrubInterval: time.Minute}, func(w *world) {
		w.write(3)
		w.rot("n4", w.records("n4")[0])
		time.Sleep(80 * time.Second)
		for _, h := range w.cluster().GetTopology().GetHosts() {
			require.NotZero(t, h.Devices[0].Scrub.GetLastDone(), "the device of %s was not read within its interval", h.Id)
		}
		require.EqualValues(t, 1, w.host("n4").Devices[0].CorruptChunks)
		last := w.host("n4").Devices[0].Scrub
		w.StopNode("n4")
		require.NoError(t, w.Restart("n4"))
		require.NoError(t, w.WaitReady(w.ctx))
		time.Sleep(3 * time.Second)
		require.LessOrEqual(t, last.LastDone, w.host("n4").Devices[0].Scrub.GetLastDone(), "it is remembered over a restart")
		w.sound()
		w.readAll()
	})
}

// TestDeviceWithCorruptChunksGoesOut: a device with repeatedly corrupt chunks goes out,
// its chunks are rebuilt, and a restart of its server does not bring it back.
func TestDeviceWithCorruptChunksGoesOut(t *testing.T) {
	inWorld(t, incluster.Options{Chunkservers: 7}, func(w *world) {
		w.write(20)
		recs := w.records("n2")
		require.Greater(t, len(recs), 17)
		for _, r := range recs[:17] {
			w.rot("n2", r)
		}
		w.ask(&wire.MetaRequest{Op: &wire.MetaRequest_StartScrub{StartScrub: &wire.StartScrub{Host: "n2"}}})
		out := func() bool { return w.host("n2").Devices[0].State == wire.DeviceState_DEVICE_STATE_OUT }
		w.until("the device is out", out)
		require.Contains(t, w.host("n2").Devices[0].Reason, "corrupt within a day")
		w.sound()
		w.StopNode("n2")
		require.NoError(t, w.Restart("n2"))
		require.NoError(t, w.WaitReady(w.ctx))
		time.Sleep(5 * time.Second)
		require.True(t, out(), "a start does not mend a disk")
		w.Kill("n6", "n7")
		w.readAll()
	})
}

// TestDeviceThatIsSlowToReadIsTakenOut: a device whose reads alone are slow is
// drained, so that its chunks move elsewhere while it serves. Before that, while it
// is idle, and after a restart, no device is drained.
func TestDeviceThatIsSlowToReadIsTakenOut(t *testing.T) {
	var slow atomic.Bool
	rule := func(node string, op vfs.Op) error {
		if node == "n2" && op.Kind == vfs.OpRead && strings.Contains(op.Path, "segments") && slow.Load() {
			time.Sleep(60 * time.Millisecond)
		}
		return nil
	}
	inWorld(t, incluster.Options{Chunkservers: 7, Rule: rule}, func(w *world) {
		w.write(10)
		drained := func() bool { return w.host("n2").Devices[0].State == wire.DeviceState_DEVICE_STATE_DRAINING }
		slow.Store(true)
		w.StopNode("n2")
		require.NoError(t, w.Restart("n2"))
		require.NoError(t, w.WaitReady(w.ctx))
		time.Sleep(2 * time.Minute)
		require.False(t, drained(), "it has begun, and does nothing")
		slow.Store(false)
		reads := func() {
			w.ask(&wire.MetaRequest{Op: &wire.MetaRequest_StartScrub{StartScrub: &wire.StartScrub{}}})
		}
		for range 60 {
			reads()
			time.Sleep(time.Second)
		}
		require.False(t, drained(), "it reads as the others do")
		require.NotEmpty(t, w.host("n3").Devices[0].ReadMicros)
		slow.Store(true)
		w.until("the device is drained", func() bool { reads(); return drained() })
		require.Contains(t, w.host("n2").Devices[0].Reason, "slower than its peers")
		w.sound()
		w.StopNode("n2")
		w.Kill("n7")
		w.readAll()
	})
}
