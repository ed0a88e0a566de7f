package view

import (
	"fmt"
	"time"

	"github.com/morainefs/moraine/transport/wire"
)

// HostRow is a host as `host ls` prints it.
type HostRow struct {
	ID       string `json:"id"`
	Status   string `json:"status"` // up, down or unknown
	Alive    bool   `json:"alive"`  // the leader knows that it is up
	Rack     string `json:"rack,omitempty"`
	Devices  int    `json:"devices"`    // not retired
	State    string `json:"state"`      // in, or its other state
	Used     uint64 `json:"used_bytes"` // of its devices in use, as the capacity and the chunks
	Capacity uint64 `json:"capacity_bytes"`
	Chunks   uint64 `json:"chunks"`
	// Measured: all of its devices in use have reported how full they are; else used is an
	// estimate.
	Measured bool `json:"usage_known"`
	// AwaySeconds is how long its maintenance still lasts.
	AwaySeconds int64 `json:"maintenance_seconds,omitempty"`
}

// DescribeHost returns what the leader knows of a host, as host ls prints it.
func DescribeHost(h *wire.Host, clusterTime uint64) HostRow {
	r := HostRow{ID: h.Id, Status: ServerStatus(h.Alive, h.Seen), Rack: h.Rack, State: "in", Measured: true}
	r.Alive = r.Status == ServerUp
	states := map[wire.DeviceState]int{}
	for _, d := range h.Devices {
		if d.State == wire.DeviceState_DEVICE_STATE_RETIRED {
			continue
		}
		r.Devices++
		states[d.State]++
		if InService(d) {
			r.Used, r.Capacity, r.Chunks = r.Used+d.Used, r.Capacity+d.Capacity, r.Chunks+d.Chunks
			r.Measured = r.Measured && d.Measured
		}
	}
	switch {
	case r.Devices == 0:
		r.State = "removed"
	case h.CertRevoked:
		r.State = "certificate revoked"
	case h.MaintenanceUntil > clusterTime:
		left := time.Duration(h.MaintenanceUntil-clusterTime) * time.Millisecond
		r.AwaySeconds = int64(left.Round(time.Second).Seconds())
		r.State = fmt.Sprintf("maintenance, %v left", left.Round(time.Second))
	case states[wire.DeviceState_DEVICE_STATE_DRAINING] == r.Devices:
		r.State = "draining"
	case states[wire.DeviceState_DEVICE_STATE_OUT] == r.Devices:
		r.State = "out"
	case states[wire.DeviceState_DEVICE_STATE_IN] < r.Devices:
		r.State = fmt.Sprintf("%d in, %d draining, %d out", states[wire.DeviceState_DEVICE_STATE_IN],
			states[wire.DeviceState_DEVICE_STATE_DRAINING], states[wire.DeviceState_DEVICE_STATE_OUT])
	}
	return r
}
