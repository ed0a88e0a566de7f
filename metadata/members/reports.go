package members

import (
	"slices"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/transport/wire"
)

// maxMembers bounds the servers that the leader remembers of; see note.
const maxMembers = 64

// memberNews is what the leader heard from the other metadata servers.
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

// note remembers what was heard of a server. Where that would be one too many,
// the one that is no member and was not heard of for longest is forgotten.
func (n *memberNews) note(id string, h memberReport, members func() []lead.Member) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, known := n.reports[id]; !known && len(n.reports) >= maxMembers {
		n.evict(members())
	}
	n.reports[id] = h
}

// evict forgets one; nobody where all are members, of which there are few.
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

// of returns what was heard of a server lately.
func (n *memberNews) of(id string, now time.Time) (memberReport, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	h, ok := n.reports[id]
	return h, ok && now.Sub(h.at) < 5*lead.BeatEvery
}

// ids returns all servers that were heard of lately.
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
