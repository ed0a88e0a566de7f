package main

import (
	"fmt"
	"strings"

	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/transport/wire"
)

// waitsStatus is what the repair queue contains, and why stripes in it that do not move
// wait.
type waitsStatus struct {
	Counted    uint64 `json:"counted"`
	More       bool   `json:"more"` // than were counted
	Lost       uint64 `json:"lost"`
	LostDevice uint64 `json:"lost_device"`
	Corrupt    uint64 `json:"corrupt"`
	Degraded   uint64 `json:"degraded"` // chunks share a host
	Drain      uint64 `json:"drain"`    // nothing is wrong with them
	NoRoom     uint64 `json:"no_room"`
	NoHost     uint64 `json:"no_host"`
	Unreadable uint64 `json:"unreadable"`
}

func describeWaits(w *wire.RepairWaits) *waitsStatus {
	if w == nil {
		return nil
	}
	return &waitsStatus{Counted: w.Counted, More: w.More, Lost: w.Lost, LostDevice: w.LostDevice, Corrupt: w.Corrupt, Degraded: w.Spread,
		Drain: w.Drain, NoRoom: w.NoRoom, NoHost: w.NoHost, Unreadable: w.Unreadable}
}

// onlyDrained reports whether all stripes of the queue are whole, and on devices in drain.
func (w *waitsStatus) onlyDrained() bool { return w != nil && !w.More && w.Drain == w.Counted }

// hurt is how many stripes wait because chunks are lost or corrupt, of those counted.
func (w *waitsStatus) hurt() uint64 {
	if w == nil {
		return 0
	}
	return w.Lost + w.LostDevice + w.Corrupt
}

// causes says in words what the stripes wait for.
func (w *waitsStatus) causes() string {
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

// stuck says why stripes wait that no job can repair now; empty where there are none.
func (w *waitsStatus) stuck() (out []string) {
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

// judgeWaits reports what the repair queue contains.
func (s *clusterStatus) judgeWaits(queued, running uint64) {
	w := s.Waits
	if w.onlyDrained() {
		s.Notes = append(s.Notes, fmt.Sprintf("%s to be moved off devices that are drained, with full "+
			"protection meanwhile (%d on their way)",
			cli.Are(int(queued), "stripe is", "stripes are"), running))
	} else {
		what := fmt.Sprintf("%s not fully protected and wait for repair (%d being rebuilt)", cli.Are(int(queued), "stripe is", "stripes are"), running)
		switch {
		case w == nil:
		case w.More:
			what = fmt.Sprintf("%s for repair, or to be moved (%d on their way): %s", cli.Are(int(queued), "stripe waits", "stripes wait"), running, w.causes())
		case w.Drain > 0:
			what = fmt.Sprintf("%s not fully protected and wait for repair, and %s to be moved (%d on their way): %s",
				cli.Are(int(w.Counted-w.Drain), "stripe is", "stripes are"), cli.Are(int(w.Drain), "waits", "wait"), running, w.causes())
		default:
			what += ": " + w.causes()
		}
		s.worse(healthDegraded, "%s", what)
	}
	for _, why := range w.stuck() {
		s.worse(healthDegraded, "%s", why)
	}
}

// refusing says why hosts take no chunks.
func (s *clusterStatus) refusing() string {
	count := map[string]int{}
	for _, h := range s.Hosts {
		count[h.Status]++
	}
	var out []string
	for _, c := range []struct {
		n   int
		why string
	}{{s.draining, "draining"}, {s.away, "announced to be away"}, {count[serverDown], "down"}, {count[serverUnknown], "unknown"}} {
		if c.n > 0 {
			out = append(out, fmt.Sprintf("%d %s", c.n, c.why))
		}
	}
	if len(out) == 0 {
		return ""
	}
	return " (" + strings.Join(out, ", ") + ")"
}
