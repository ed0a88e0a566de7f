package fleet

import (
	"errors"
	"fmt"
	"sync"

	"github.com/morainefs/moraine"
)

// claims are the chunkservers that say that they have heard of an incarnation that
// outlives this server's. One alone is refused; where most of those that the state
// knows say so this server is the one that is wrong.
type claims struct {
	mu    sync.Mutex
	hosts map[string]bool
}

// note takes in what a host says, and returns how many claim a newer one.
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

// checkReportedIncarnation fails where a chunkserver has heard of an incarnation that is not this
// leader's and not before it.
func (f *Fleet) checkReportedIncarnation(host string, heard moraine.MarkedIncarnation) error {
	own := f.leader.Incarnation()
	if own.Number == 0 || !heard.Differs(own) || own.Outlives(heard) {
		f.claims.note(host, false)
		return nil
	}
	f.Metrics.Outlived.Inc()
	if !heard.Outlives(own) {
		return &moraine.Error{Ref: host, Kind: moraine.Unavailable,
			Err: fmt.Errorf("the host follows incarnation %v of the metadata, and this server is of %v: the number was given out twice; end the servers of the one that is not wanted", heard, own)}
	}
	claimed := f.claims.note(host, true)
	f.Log.Error("a chunkserver has heard of an incarnation that outlives this server's", "host", host, "heard", heard.String(), "own", own.String(), "hosts that say so", claimed)
	if 2*claimed > len(f.Topology.View().Wire.Hosts) {
		f.leader.OutlivedBy(heard, fmt.Sprintf("the chunkserver %s, with %d others,", host, claimed-1))
	}
	return &moraine.Error{Ref: host, Kind: moraine.Unavailable, Err: errors.New("this metadata server is of an incarnation that was given up")}
}
