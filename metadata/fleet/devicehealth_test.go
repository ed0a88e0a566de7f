package fleet

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/transport/wire"
)

// slowFleet has hosts of two devices each: 1 and 2, 3 and 4, ... All take 3 ms for a write except
// the slow ones.
func slowFleet(n int, slow ...uint32) map[string]*host {
	hosts := make(map[string]*host)
	for i := range n {
		h := &host{alive: true, usage: make(map[uint32]usage), record: &wire.Host{Id: fmt.Sprintf("n%d", i+1)}}
		for id := uint32(2*i + 1); id <= uint32(2*i+2); id++ {
			h.record.Devices = append(h.record.Devices, &wire.Device{Id: id, State: DeviceIn})
			h.usage[id] = usage{putMicros: 3000}
		}
		hosts[h.record.Id] = h
	}
	for _, id := range slow {
		hosts[fmt.Sprintf("n%d", (id+1)/2)].usage[id] = usage{putMicros: 60_000}
	}
	return hosts
}

// judged returns the devices drained when the leader judges each second for that long.
func judged(s *slowness, from time.Time, length time.Duration, hosts map[string]*host) (worst uint32, alike []string) {
	for at := time.Duration(0); at <= length && worst == 0; at += time.Second {
		var host string
		if worst, host = s.judge(from.Add(at), hosts, 10); host != "" {
			alike = append(alike, host)
		}
	}
	return worst, alike
}

// If all devices of a host are slow, the host is reported once. If one of them is not slow, the
// other one is drained.
func TestSlowHostIsNotItsDevices(t *testing.T) {
	now := time.Unix(1000, 0)
	worst, alike := judged(&slowness{}, now, 2*slowFor, slowFleet(6, 3, 4))
	require.Zero(t, worst)
	require.Equal(t, []string{"n2"}, alike)
	worst, alike = judged(&slowness{}, now, 2*slowFor, slowFleet(6, 3))
	require.EqualValues(t, 3, worst)
	require.Empty(t, alike)
}

// A device that an administrator has set in is not judged for a day, and then again.
func TestPersonsWordOnASlowDevice(t *testing.T) {
	s, now := &slowness{}, time.Unix(1000, 0)
	hosts := slowFleet(6, 3)
	hosts["n2"].record.Devices[0].Reason = "set in by hand"
	worst, _ := judged(s, now, time.Hour, hosts)
	require.Zero(t, worst)
	worst, _ = judged(s, now.Add(slowTrust), slowFor, hosts)
	require.EqualValues(t, 3, worst)

	hosts["n2"].record.Devices[0].Reason = reasonBack
	worst, _ = judged(&slowness{}, now, slowFor, hosts)
	require.EqualValues(t, 3, worst, "its return is no person's word")
}

// The leader drains nothing while a host is away or something waits for repair, and ignores what it
// measured meanwhile.
func TestSlowDeviceStaysWhileTheFleetIsNotCalm(t *testing.T) {
	tp, now := NewTopology(1, time.Second), time.Unix(1000, 0)
	tp.hosts = slowFleet(6, 3)
	for at := range 101 {
		tp.hosts["n6"].alive = at >= 60
		device, _ := tp.slowest(now.Add(time.Duration(at)*time.Second), at < 60 || at >= 80, 10)
		require.Zero(t, device, "%d s", at)
	}
	device, _ := tp.slowest(now.Add(111*time.Second), true, 10)
	require.EqualValues(t, 3, device)
}
