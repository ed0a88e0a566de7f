package view

import (
	"fmt"
	"time"

	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/transport/wire"
)

// RebalanceStatus is how evenly the devices are filled.
type RebalanceStatus struct {
	State          string  `json:"state"`
	Band           float64 `json:"band_percent"`
	Limit          uint64  `json:"limit_bytes_per_second"` // to, and from, each host
	Mean           float64 `json:"mean_percent"`
	Fullest        float64 `json:"fullest_percent"`
	FullestDevice  uint32  `json:"fullest_device"`
	Emptiest       float64 `json:"emptiest_percent"`
	EmptiestDevice uint32  `json:"emptiest_device"`
	Outside        uint32  `json:"devices_outside"`
	LeftBytes      uint64  `json:"left_bytes"`
	MovedChunks    uint64  `json:"moved_chunks"`
	MovedBytes     uint64  `json:"moved_bytes"`
	BytesPerSec    uint64  `json:"bytes_per_second"`
	ETASeconds     uint64  `json:"eta_seconds"` // 0: not known
	Elapsed        uint64  `json:"elapsed_seconds"`
}

// RebalanceStates are the states in words.
var RebalanceStates = map[wire.RebalanceState]string{
	wire.RebalanceState_REBALANCE_STATE_UNSPECIFIED: "not judged yet",
	wire.RebalanceState_REBALANCE_STATE_EVEN:        "even",
	wire.RebalanceState_REBALANCE_STATE_MOVING:      "moving",
	wire.RebalanceState_REBALANCE_STATE_PAUSED:      "paused",
	wire.RebalanceState_REBALANCE_STATE_WAITING:     "waiting",
	wire.RebalanceState_REBALANCE_STATE_STUCK:       "stuck",
}

// DescribeRebalance returns what the leader says of the rebalance, nil where it says nothing.
func DescribeRebalance(r *wire.Rebalance) *RebalanceStatus {
	if r == nil {
		return nil
	}
	percent := func(permille uint32) float64 { return float64(permille) / 10 }
	return &RebalanceStatus{State: RebalanceStates[r.State], Band: percent(r.BandPermille), Limit: r.LimitBytesPerSecond,
		Mean: percent(r.MeanPermille), Fullest: percent(r.FullestPermille), FullestDevice: r.FullestDevice,
		Emptiest: percent(r.EmptiestPermille), EmptiestDevice: r.EmptiestDevice, Outside: r.Outside, LeftBytes: r.LeftBytes,
		MovedChunks: r.MovedChunks, MovedBytes: r.MovedBytes, BytesPerSec: r.BytesPerSecond,
		ETASeconds: (r.EtaMillis + 999) / 1000, Elapsed: r.ElapsedMillis / 1000}
}

// Words describes the state in a line; empty where there is nothing to do.
func (r *RebalanceStatus) Words() string {
	if r == nil || r.Outside == 0 {
		return ""
	}
	how := fmt.Sprintf("%s filled unevenly (%.1f%% in the mean, %.1f%% to %.1f%%), ",
		cli.Are(int(r.Outside), "device is", "devices are"), r.Mean, r.Emptiest, r.Fullest)
	left := fmt.Sprintf("%s moved, about %s left", cli.Size(r.MovedBytes), cli.Size(r.LeftBytes))
	switch r.State {
	case "paused":
		return how + "and moving chunks is paused (`moraine rebalance resume`); " + left
	case "waiting":
		return how + "and chunks are moved when repairs are done; " + left
	case "stuck":
		return how + "and no chunk can move to an emptier device without less protection: add hosts, " +
			"or devices to the hosts that are full"
	}
	line := how + "chunks are being moved: " + left
	if r.BytesPerSec > 0 {
		line += fmt.Sprintf(", %s/s", cli.Size(r.BytesPerSec))
	}
	if r.ETASeconds > 0 {
		line += fmt.Sprintf(", about %v to go", time.Duration(r.ETASeconds)*time.Second)
	}
	return line
}
