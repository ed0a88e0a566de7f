package clustercmd

import (
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/cmd/moraine/internal/view"
	"github.com/morainefs/moraine/transport/wire"
)

type hostStatus struct {
	ID       string `json:"id"`
	Rack     string `json:"rack,omitempty"`
	Status   string `json:"status"` // up, down or unknown
	Alive    bool   `json:"alive"`  // the leader knows that it is up
	Reported bool   `json:"reports_complete"`
	Devices  int    `json:"devices"`
	In       int    `json:"devices_in"`
	Capacity uint64 `json:"capacity_bytes"`
	Used     uint64 `json:"used_bytes"`
	Chunks   uint64 `json:"chunks"`
	State    string `json:"state"`    // as `host ls` shows it
	Endpoint string `json:"endpoint"` // reachable, partly reachable, unreachable or unknown; empty where it is not up
}

func (s *clusterStatus) judgeHosts(hosts []*wire.Host, clusterTime uint64) {
	for _, h := range hosts {
		row := view.DescribeHost(h, clusterTime)
		hs := hostStatus{ID: h.Id, Rack: h.Rack, Status: row.Status, Alive: row.Alive, Reported: true, Devices: len(h.Devices), State: row.State}
		away := h.MaintenanceUntil > clusterTime
		var can hostRoom
		for _, d := range h.Devices {
			s.judgeDevice(h, d, &hs, &can)
		}
		switch {
		case row.Status == view.ServerUnknown && row.Devices > 0:
			s.worse(healthUnknown, "it is not known yet whether host %s is up: it has not registered "+
				"with this metadata leader, or has not answered this request", h.Id)
		case !h.Alive && away:
			s.worse(healthDegraded, "host %s is down for maintenance (%d s left)", h.Id, row.AwaySeconds)
		case !h.Alive:
			s.worse(healthDegraded, "host %s is down", h.Id)
		case away:
			s.away++
			s.Notes = append(s.Notes, fmt.Sprintf("host %s is up and announced to be away (%s): it "+
				"takes nothing new", h.Id, row.State))
		case can.draining && !can.takes:
			s.draining++
		}
		if can.silent {
			s.silent++
		}
		if can.takes && !away {
			s.taking++
		}
		if can.room && !away {
			s.up++
		}
		s.Hosts = append(s.Hosts, hs)
		s.Capacity += hs.Capacity
		s.Used += hs.Used
	}
	if len(hosts) == 0 {
		s.worse(healthDegraded, "no chunkserver has registered: nothing can be written")
	}
}

// hostRoom is what the devices of a host can take.
type hostRoom struct {
	silent, takes, room, draining bool
}

func (s *clusterStatus) judgeDevice(h *wire.Host, d *wire.Device, hs *hostStatus, can *hostRoom) {
	s.judgeKnown(h, d, hs)
	switch {
	case d.State == wire.DeviceState_DEVICE_STATE_DRAINING:
		can.draining = true
	case d.State != wire.DeviceState_DEVICE_STATE_IN:
	case !hs.Alive:
		can.silent = true
	case isFull(d):
		hs.In++
		s.full++
		can.takes = true
		s.worse(healthDegraded, "device %d of host %s is full and takes only repaired chunks: make "+
			"room (`moraine rm`), or add devices", d.Id, h.Id)
	default:
		hs.In++
		can.takes, can.room = true, true
	}
	if view.InService(d) {
		hs.Capacity += d.Capacity
		hs.Used += d.Used
		hs.Chunks += d.Chunks
	}
	if d.State == wire.DeviceState_DEVICE_STATE_OUT {
		s.worse(healthDegraded, "device %d of host %s is out", d.Id, h.Id)
	}
	if d.Health.GetFailing() {
		s.worse(healthDegraded, "the disk of device %d of host %s says that it is failing (%s): drain "+
			"it (`moraine device set %d draining`) and replace it", d.Id, h.Id, d.Health.Text, d.Id)
	}
}

// judgeKnown reports what is not known yet of a device whose host is up.
func (s *clusterStatus) judgeKnown(h *wire.Host, d *wire.Device, hs *hostStatus) {
	if !view.InService(d) {
		return
	}
	hs.Reported = hs.Reported && d.Reported
	if !hs.Alive {
		return
	}
	if !d.Reported {
		s.worse(healthUnknown, "it is not known yet whether chunks are missing on device %d of host "+
			"%s: the report of all its chunks is not complete", d.Id, h.Id)
	}
	if !d.Measured {
		s.worse(healthUnknown, "it is not known yet how full device %d of host %s is", d.Id, h.Id)
	}
}

// isFull reports whether a device takes nothing new: the last 2% of it are for repair.
func isFull(d *wire.Device) bool {
	return d.Capacity > 0 && d.Used+d.Capacity/50+moraine.DefaultChunkSize > d.Capacity
}
