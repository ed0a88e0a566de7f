package fleet

import (
	"errors"
	"fmt"
	"sync"

	"github.com/morainefs/moraine"
)

// claims are the chunkservers that report a newer incarnation than this server's. The leader
// refuses a single one. If most of the registered ones report it, this server itself is outdated.
type claims struct {
	mu    sync.Mutex
	hosts map[string]bool
}

// note records a host's report and returns how many hosts report a newer incarnation.
func (c *claims) note(host string, newer bool) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hosts == nil {
		c.hosts = map[string]bool{}
	}
	if newer {
		c.hosts[host] = true
	} else {
		delete(c.hosts, host)
	}
	return len(c.hosts)
}

// checkReportedIncarnation fails if a chunkserver has received an incarnation that is neither this
// leader's nor an earlier one.
func (f *Fleet) checkReportedIncarnation(host string, reported moraine.MarkedIncarnation) error {
	own := f.leader.Incarnation()
	if own.Number == 0 || !reported.Differs(own) || own.Outlives(reported) {
		f.claims.note(host, false)
		return nil
	}
	f.Metrics.Outlived.Inc()
	if !reported.Outlives(own) {
		return &moraine.Error{Ref: host, Kind: moraine.Unavailable,
			Err: fmt.Errorf("the host follows incarnation %v, but this server has %v under the same number: stop the servers of the unwanted one", reported, own)}
	}
	claimed := f.claims.note(host, true)
	f.Log.Error("a chunkserver follows a later incarnation than this server's", "host", host, "reported", reported.String(), "own", own.String(), "hosts that reported it", claimed)
	if 2*claimed > len(f.Topology.View().Wire.Hosts) {
		f.leader.OutlivedBy(reported, fmt.Sprintf("the chunkserver %s, with %d others,", host, claimed-1))
	}
	return &moraine.Error{Ref: host, Kind: moraine.Unavailable, Err: errors.New("this metadata server has an abandoned incarnation: ask the leader of the current one")}
}
