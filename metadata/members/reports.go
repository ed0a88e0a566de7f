package members

import (
	"slices"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/transport/wire"
)

// maxMembers bounds the servers that the leader remembers; see note.
const maxMembers = 64

// memberNews has the latest reports of the other metadata servers.
type memberNews struct {
	mu      sync.Mutex
	reports map[string]memberReport
}

type memberReport struct {
	status *wire.MemberStatus
	dataID moraine.UUID
	at     time.Time
}

func newMemberNews() *memberNews { return &memberNews{reports: make(map[string]memberReport)} }

// note records a report of a server. If there is no room, it forgets the server without membership
// that reported longest ago.
func (n *memberNews) note(id string, h memberReport, members func() []lead.Member) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, known := n.reports[id]; !known && len(n.reports) >= maxMembers {
		n.evict(members())
	}
	n.reports[id] = h
}

// evict forgets one server, or none if all are members, which are few.
func (n *memberNews) evict(members []lead.Member) {
	oldest := ""
	for id, h := range n.reports {
		member := slices.ContainsFunc(members, func(m lead.Member) bool { return m.ID == id })
		if !member && (oldest == "" || h.at.Before(n.reports[oldest].at)) {
			oldest = id
		}
	}
	delete(n.reports, oldest)
}

// of returns a server's report if it is recent.
func (n *memberNews) of(id string, now time.Time) (memberReport, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	h, ok := n.reports[id]
	return h, ok && now.Sub(h.at) < 5*lead.BeatEvery
}

// ids returns all servers with a recent report.
func (n *memberNews) ids(now time.Time) []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []string
	for id, h := range n.reports {
		if now.Sub(h.at) < 5*lead.BeatEvery {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}
