package view

import (
	"fmt"
	"strings"
	"time"

	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/transport/wire"
)

// EtaOf says in words how long a repair still takes; empty where that is unknown.
func EtaOf(h *wire.Healing) string {
	if h.GetEtaMillis() == 0 {
		return ""
	}
	return fmt.Sprintf(", about %v to go", (time.Duration(h.EtaMillis) * time.Millisecond).Round(time.Second))
}

// WaitsStatus is what the repair queue contains, and why stripes in it that do not move
// wait.
type WaitsStatus struct {
	Counted    uint64 `json:"counted"`
	More       bool   `json:"more"` // the queue has more than were counted
	Lost       uint64 `json:"lost"`
	LostDevice uint64 `json:"lost_device"`
	Corrupt    uint64 `json:"corrupt"`
	Degraded   uint64 `json:"degraded"` // chunks share a host
	Drain      uint64 `json:"drain"`    // whole, on devices that drain
	NoRoom     uint64 `json:"no_room"`
	NoHost     uint64 `json:"no_host"`
	Unreadable uint64 `json:"unreadable"`
}

// DescribeWaits returns the counts of waiting repairs.
func DescribeWaits(w *wire.RepairWaits) *WaitsStatus {
	if w == nil {
		return nil
	}
	return &WaitsStatus{Counted: w.Counted, More: w.More, Lost: w.Lost, LostDevice: w.LostDevice, Corrupt: w.Corrupt, Degraded: w.Spread,
		Drain: w.Drain, NoRoom: w.NoRoom, NoHost: w.NoHost, Unreadable: w.Unreadable}
}

// OnlyDrained reports whether all stripes of the queue are whole, and on devices in drain.
func (w *WaitsStatus) OnlyDrained() bool { return w != nil && !w.More && w.Drain == w.Counted }

// Hurt is how many stripes wait because chunks are lost or corrupt, of those counted.
func (w *WaitsStatus) Hurt() uint64 {
	if w == nil {
		return 0
	}
	return w.Lost + w.LostDevice + w.Corrupt
}

// Causes says in words what the stripes wait for.
func (w *WaitsStatus) Causes() string {
	if w == nil {
		return ""
	}
	var out []string
	add := func(n uint64, what string) {
		if n > 0 {
			out = append(out, fmt.Sprintf("%d %s", n, what))
		}
	}
	add(w.Lost, "with too few chunks left")
	add(w.LostDevice, "lost a device")
	add(w.Corrupt, "corrupt")
	add(w.Degraded, "with chunks on a shared host")
	add(w.Drain, "whole and being drained")
	if w.More && len(out) > 0 {
		return fmt.Sprintf("of the first %d: %s", w.Counted, strings.Join(out, ", "))
	}
	return strings.Join(out, ", ")
}

// Stuck says why stripes wait that no job can repair now; empty where there are none.
func (w *WaitsStatus) Stuck() (out []string) {
	if w == nil {
		return nil
	}
	add := func(n uint64, why string) {
		if n > 0 {
			out = append(out, fmt.Sprintf("%s %s", cli.Are(int(n), "stripe waits", "stripes wait"), why))
		}
	}
	add(w.NoRoom, "as no other host has room for a chunk: make room (`moraine rm`), or add devices")
	add(w.NoHost, "as there is no host for their chunks: each host that takes chunks has one of them "+
		"already; add a host, or take one in again")
	add(w.Unreadable, "as too few of their hosts answer to read what is left: start them")
	return out
}
