package repair_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/repair"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	in       = wire.DeviceState_DEVICE_STATE_IN
	out      = wire.DeviceState_DEVICE_STATE_OUT
	draining = wire.DeviceState_DEVICE_STATE_DRAINING
	retired  = wire.DeviceState_DEVICE_STATE_RETIRED
)

// fleet makes hosts n1.. with one device each, numbered like the host.
func fleet(n int) []*wire.Host {
	hosts := make([]*wire.Host, n)
	for i := range hosts {
		id := fmt.Sprintf("n%d", i+1)
		hosts[i] = &wire.Host{Id: id, Alive: true, Devices: []*wire.Device{
			{Id: uint32(i + 1), Host: id, State: in, Capacity: 1 << 40, Epoch: 1}}}
	}
	return hosts
}

// wide makes one host with n devices.
func wide(n int) []*wire.Host {
	h := &wire.Host{Id: "n1", Alive: true}
	for i := range n {
		h.Devices = append(h.Devices, &wire.Device{Id: uint32(i + 1), Host: "n1", State: in, Capacity: 1 << 40})
	}
	return []*wire.Host{h}
}

func setState(hosts []*wire.Host, host, device int, s wire.DeviceState) []*wire.Host {
	hosts[host].Devices[device].State = s
	return hosts
}

func silent(hosts []*wire.Host, ids ...int) []*wire.Host {
	for _, i := range ids {
		hosts[i].Alive = false
	}
	return hosts
}

func TestPlanRepair(t *testing.T) {
	ec := moraine.Scheme{K: 4, M: 2}
	tests := []struct {
		name    string
		hosts   []*wire.Host
		scheme  moraine.Scheme
		devices []moraine.DeviceID
		bad     uint32
		memory  map[int]moraine.Epoch // chunks only in memory, and their boot; hosts are at the first boot
		// want are the moved chunks and their targets; 0 means any other place.
		want map[uint32]uint32
	}{
		{name: "sound", hosts: fleet(7), scheme: ec, devices: []moraine.DeviceID{1, 2, 3, 4, 5, 6}},
		{name: "out device, a host to spare", hosts: setState(fleet(7), 2, 0, out), scheme: ec,
			devices: []moraine.DeviceID{1, 2, 3, 4, 5, 6}, want: map[uint32]uint32{2: 7}},
		{name: "out device, no host to spare: hosts are shared", hosts: setState(fleet(6), 2, 0, out), scheme: ec,
			devices: []moraine.DeviceID{1, 2, 3, 4, 5, 6}, want: map[uint32]uint32{2: 0}},
		{name: "silent host, not out yet: waited for", hosts: silent(fleet(7), 2), scheme: ec,
			devices: []moraine.DeviceID{1, 2, 3, 4, 5, 6}},
		{name: "corrupt chunk", hosts: fleet(6), scheme: ec,
			devices: []moraine.DeviceID{1, 2, 3, 4, 5, 6}, bad: 1 << 4, want: map[uint32]uint32{4: 5}},
		{name: "draining", hosts: setState(fleet(7), 0, 0, draining), scheme: ec,
			devices: []moraine.DeviceID{1, 2, 3, 4, 5, 6}, want: map[uint32]uint32{0: 7}},
		{name: "draining with nowhere as good to go", hosts: setState(fleet(6), 0, 0, draining), scheme: ec,
			devices: []moraine.DeviceID{1, 2, 3, 4, 5, 6}},
		{name: "draining and silent, not out yet: waited for", hosts: silent(setState(fleet(6), 2, 0, draining), 2), scheme: ec,
			devices: []moraine.DeviceID{1, 2, 3, 4, 5, 6}},
		{name: "draining and silent, a host to spare", hosts: silent(setState(fleet(7), 2, 0, draining), 2), scheme: ec,
			devices: []moraine.DeviceID{1, 2, 3, 4, 5, 6}, want: map[uint32]uint32{2: 7}},
		{name: "out and silent, no host to spare", hosts: silent(setState(fleet(6), 2, 0, out), 2), scheme: ec,
			devices: []moraine.DeviceID{1, 2, 3, 4, 5, 6}, want: map[uint32]uint32{2: 0}},
		{name: "shared host, and now there is another", hosts: fleet(6), scheme: ec,
			devices: []moraine.DeviceID{1, 2, 3, 4, 5, 5}, want: map[uint32]uint32{5: 6}},
		{name: "shared hosts, and still no other", hosts: fleet(5), scheme: ec,
			devices: []moraine.DeviceID{1, 2, 3, 4, 5, 5}},
		{name: "too few chunks can be read", hosts: silent(setState(fleet(8), 2, 0, out), 0, 1), scheme: ec,
			devices: []moraine.DeviceID{1, 2, 3, 4, 5, 6}},
		{name: "copies on one device are no better", hosts: setState(wide(2), 0, 1, out), scheme: moraine.Copies(2),
			devices: []moraine.DeviceID{1, 2}},
		{name: "copies, single host with a device to spare", hosts: setState(wide(3), 0, 1, out), scheme: moraine.Copies(2),
			devices: []moraine.DeviceID{1, 2}, want: map[uint32]uint32{1: 3}},
		{name: "both copies made on one device", hosts: wide(2), scheme: moraine.Copies(2),
			devices: []moraine.DeviceID{1, 1}, want: map[uint32]uint32{1: 2}},
		{name: "three copies, one host gone of three", hosts: setState(fleet(3), 0, 0, out), scheme: moraine.Copies(3),
			devices: []moraine.DeviceID{1, 2, 3}},
		{name: "too few left, the one on a device that is out is tried", hosts: setState(fleet(4), 0, 0, out), scheme: moraine.Copies(2),
			devices: []moraine.DeviceID{1, 2}, bad: 1 << 1, want: map[uint32]uint32{0: 0}},
		{name: "too few left, and the host of that device is silent: what is said to be bad is tried", hosts: silent(setState(fleet(4), 0, 0, out), 0),
			scheme: moraine.Copies(2), devices: []moraine.DeviceID{1, 2}, bad: 1 << 1, want: map[uint32]uint32{0: 0}},
		{name: "too few left, and all hosts are silent", hosts: silent(setState(fleet(4), 0, 0, out), 0, 1),
			scheme: moraine.Copies(2), devices: []moraine.DeviceID{1, 2}, bad: 1 << 1},
		{name: "too few left, the other is retired", hosts: silent(setState(fleet(4), 0, 0, retired), 1),
			scheme: moraine.Copies(2), devices: []moraine.DeviceID{1, 2}, bad: 1 << 1},
		{name: "too few left, and nowhere else to go: what is out stays, what is bad is put over", hosts: setState(fleet(2), 0, 0, out),
			scheme: moraine.Copies(2), devices: []moraine.DeviceID{1, 2}, bad: 1 << 1, want: map[uint32]uint32{1: 2}},
		{name: "all are said to be bad", hosts: fleet(6), scheme: ec, devices: []moraine.DeviceID{1, 2, 3, 4, 5, 6}, bad: 0x3f,
			want: map[uint32]uint32{0: 0, 1: 0}},
		{name: "too few may be read, with those too that are said to be bad", hosts: silent(setState(setState(fleet(8), 2, 0, out), 3, 0, out), 1, 2, 3),
			scheme: ec, devices: []moraine.DeviceID{1, 2, 3, 4, 5, 6}, bad: 1 << 4},
		{name: "just enough may be read", hosts: silent(setState(setState(fleet(8), 2, 0, out), 3, 0, out), 2, 3),
			scheme: ec, devices: []moraine.DeviceID{1, 2, 3, 4, 5, 6}, bad: 1 << 4, want: map[uint32]uint32{2: 0, 3: 0}},
		{name: "enough are left, on hosts that are silent: they are waited for", hosts: silent(fleet(4), 0), scheme: moraine.Copies(2),
			devices: []moraine.DeviceID{1, 2}, bad: 1 << 1},
		{name: "in memory, of the present boot of a host whose device is out", hosts: setState(fleet(4), 0, 0, out), scheme: moraine.Copies(2),
			devices: []moraine.DeviceID{1, 2}, bad: 1 << 1, memory: map[int]moraine.Epoch{0: 1, 1: 1}, want: map[uint32]uint32{0: 0}},
		{name: "in memory that is gone, of all", hosts: setState(fleet(4), 0, 0, out), scheme: moraine.Copies(2),
			devices: []moraine.DeviceID{1, 2}, bad: 1<<1 | 1<<0, memory: map[int]moraine.Epoch{0: 0, 1: 2}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := &moraine.Stripe{ID: 77, Scheme: tt.scheme, Version: 3, Length: 1 << 20}
			for _, d := range tt.devices {
				s.Chunks = append(s.Chunks, moraine.ChunkState{Device: d, Level: moraine.NVMe})
			}
			for i, epoch := range tt.memory {
				s.Chunks[i].Level, s.Chunks[i].Epoch = moraine.Memory, epoch
			}
			got := map[uint32]uint32{}
			for _, i := range repair.PlanRepair(tt.hosts, s, tt.bad) {
				require.Equal(t, uint32(4), i.Version)
				require.Equal(t, uint64(77), i.Stripe)
				got[i.Index] = i.Device
			}
			require.Len(t, got, len(tt.want), "%v", got)
			for index, device := range tt.want {
				require.Contains(t, got, index)
				if device != 0 {
					require.Equal(t, device, got[index])
				}
			}
		})
	}
}
