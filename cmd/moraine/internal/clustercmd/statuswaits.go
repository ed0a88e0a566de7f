package clustercmd

import (
	"fmt"
	"strings"

	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/cmd/moraine/internal/view"
)

// judgeWaits reports what the repair queue contains.
func (s *clusterStatus) judgeWaits(queued, running uint64) {
	w := s.Waits
	if w.OnlyDrained() {
		s.Notes = append(s.Notes, fmt.Sprintf("%s to be moved off devices that are drained, with full "+
			"protection meanwhile (%d on their way)",
			cli.Are(int(queued), "stripe is", "stripes are"), running))
	} else {
		what := fmt.Sprintf("%s not fully protected and wait for repair (%d being rebuilt)", cli.Are(int(queued), "stripe is", "stripes are"), running)
		switch {
		case w == nil:
		case w.More:
			what = fmt.Sprintf("%s for repair, or to be moved (%d on their way): %s", cli.Are(int(queued), "stripe waits", "stripes wait"), running, w.Causes())
		case w.Drain > 0:
			what = fmt.Sprintf("%s not fully protected and wait for repair, and %s to be moved (%d on their way): %s",
				cli.Are(int(w.Counted-w.Drain), "stripe is", "stripes are"), cli.Are(int(w.Drain), "waits", "wait"), running, w.Causes())
		default:
			what += ": " + w.Causes()
		}
		s.worse(healthDegraded, "%s", what)
	}
	for _, why := range w.Stuck() {
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
	}{{s.draining, "draining"}, {s.away, "announced to be away"}, {count[view.ServerDown], "down"}, {count[view.ServerUnknown], "unknown"}} {
		if c.n > 0 {
			out = append(out, fmt.Sprintf("%d %s", c.n, c.why))
		}
	}
	if len(out) == 0 {
		return ""
	}
	return " (" + strings.Join(out, ", ") + ")"
}
