package fleet

import (
	"cmp"
	"hash/crc32"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// Endpoint health: whether servers can be connected to. A heartbeat shows that a host can connect
// to the leader, but not that others can connect to it. Peers may refuse its certificate, or its
// address may be unreachable. Chunkservers therefore probe each other and the metadata servers
// (chunkserver/probe.go) and report the results with their heartbeats.
//
// Hosts form a ring, ordered by a hash of their names, and the probersEach hosts after each one
// probe it. Each host thus probes equally many others, however many there are, and the loss of one
// changes little. A single bad prober decides nothing: a server counts as unreachable if two
// probers report so, or its only one. The leader ignores a prober that reached no server at all.

const (
	// probersEach is the number of hosts that probe one server.
	probersEach = 3
	// probeStale is when a prober's last report is forgotten if no new one arrives.
	probeStale = 30 * time.Second
	// MaxProbeError bounds the stored text of an error, in bytes.
	MaxProbeError = 400
)

// server names a server that is probed.
type server struct {
	role transport.Role
	node string
}

// endpoints is the leader's knowledge of endpoint health.
type endpoints struct {
	base uint64 // of all marks: the term is in the upper half

	mu      sync.Mutex // guards the following fields
	version uint64     // topology version of the ring
	members string     // metadata servers of the ring
	targets map[server]*endpoint
	aims    map[string][]*wire.ProbeTarget // targets by prober
}

// endpoint is one probed server.
type endpoint struct {
	addresses []string
	boots     uint64          // registrations of the host since this leader began
	probers   []string        // hosts that probe it
	reports   map[string]word // by prober, only those in probers
}

// word is a prober's latest report on a server.
type word struct {
	err string
	at  time.Time
}

func newEndpoints(term uint64) *endpoints {
	return &endpoints{base: term << 32, targets: make(map[server]*endpoint), aims: make(map[string][]*wire.ProbeTarget)}
}

// arrange updates the set of servers. It is cheap if nothing has changed.
func (e *endpoints) arrange(v *View, members []*wire.MemberAddress) {
	key := ""
	for _, m := range members {
		key += m.Id + "\x00"
		for _, a := range m.Addresses {
			key += a + "\x00"
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.version == v.Wire.Version && e.members == key {
		return
	}
	e.version, e.members = v.Wire.Version, key
	var ring []string
	old := e.targets
	e.targets = make(map[server]*endpoint)
	for _, h := range v.Wire.Hosts {
		if h.Alive && !retired(h) {
			ring = append(ring, h.Id)
		}
		e.keep(old, server{transport.RoleChunkserver, h.Id}, h.Addresses)
	}
	slices.SortFunc(ring, byHash)
	for _, m := range members {
		e.keep(old, server{transport.RoleMetadata, m.Id}, m.Addresses)
	}
	e.aims = make(map[string][]*wire.ProbeTarget)
	for name, t := range e.targets {
		t.probers = probersOf(ring, name)
		for p := range t.reports {
			if !slices.Contains(t.probers, p) {
				delete(t.reports, p)
			}
		}
	}
	e.aim()
}

// keep makes a server a target and preserves its reports. The caller holds mu.
func (e *endpoints) keep(old map[server]*endpoint, name server, addresses []string) {
	t := old[name]
	if t == nil {
		t = &endpoint{reports: make(map[string]word)}
	}
	if !slices.Equal(t.addresses, addresses) {
		t.boots++
		clear(t.reports)
	}
	t.addresses = addresses
	e.targets[name] = t
}

// aim computes each prober's targets. The caller holds mu.
func (e *endpoints) aim() {
	e.aims = make(map[string][]*wire.ProbeTarget)
	for name, t := range e.targets {
		for _, p := range t.probers {
			e.aims[p] = append(e.aims[p], &wire.ProbeTarget{Role: string(name.role), Node: name.node, Addresses: t.addresses, Mark: e.base + t.boots})
		}
	}
}

// byHash orders names so that neighbors are unrelated.
func byHash(a, b string) int {
	return cmp.Or(cmp.Compare(crc32.ChecksumIEEE([]byte(a)), crc32.ChecksumIEEE([]byte(b))), cmp.Compare(a, b))
}

// probersOf returns the hosts that probe a server: those after it on the ring. An only host probes
// itself.
func probersOf(ring []string, name server) []string {
	at, found := slices.BinarySearchFunc(ring, name.node, byHash)
	var out []string
	for i := range ring {
		p := ring[(at+i)%len(ring)]
		itself := found && name.role == transport.RoleChunkserver && p == name.node
		if itself && len(ring) > 1 {
			continue
		}
		if out = append(out, p); len(out) == probersEach {
			break
		}
	}
	return out
}

// booted forgets reports about a host from before its start.
func (e *endpoints) booted(host string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if t := e.targets[server{transport.RoleChunkserver, host}]; t != nil {
		t.boots++
		clear(t.reports)
		e.aim()
	}
}

// noteProbes records a host's reports and returns its targets. It ignores reports about other
// servers than its targets, or from before they started.
func (e *endpoints) noteProbes(prober string, said []*wire.Probe, now time.Time) []*wire.ProbeTarget {
	e.mu.Lock()
	defer e.mu.Unlock()
	aims := e.aims[prober]
	for _, p := range said[:min(len(said), 4*probersEach+len(aims))] {
		t := e.targets[server{transport.Role(p.Role), p.Node}]
		if t == nil || p.Mark != e.base+t.boots || !slices.Contains(t.probers, prober) {
			continue
		}
		t.reports[prober] = word{wire.Text(p.Error, MaxProbeError), now}
	}
	return aims
}

// reachesNone reports whether a prober has probed at least two servers and reached none. The caller
// holds mu.
func (e *endpoints) reachesNone(prober string, now time.Time) bool {
	tried := 0
	for _, a := range e.aims[prober] {
		w, ok := e.targets[server{transport.Role(a.Role), a.Node}].reports[prober]
		switch {
		case !ok || now.Sub(w.at) > probeStale:
		case w.err == "":
			return false
		default:
			tried++
		}
	}
	return tried >= 2
}

// health returns the endpoint health of a server.
func (e *endpoints) health(name server, now time.Time) *wire.EndpointHealth {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.healthLocked(name, now)
}

// healthLocked is health. The caller holds mu.
func (e *endpoints) healthLocked(name server, now time.Time) *wire.EndpointHealth {
	h := &wire.EndpointHealth{}
	t := e.targets[name]
	if t == nil {
		return h
	}
	for _, p := range t.probers {
		w, ok := t.reports[p]
		if !ok || now.Sub(w.at) > probeStale || e.reachesNone(p, now) {
			continue
		}
		h.Tried++
		if w.err != "" {
			h.Failed++
			h.Error = p + ": " + w.err
		}
	}
	need := uint32(min(2, len(t.probers)))
	h.Known = need > 0 && h.Tried >= need
	h.Unreachable = need > 0 && h.Failed >= need
	h.Deaf = name.role == transport.RoleChunkserver && e.reachesNone(name.node, now)
	return h
}

// unreachable returns the hosts to which peers cannot connect; placement avoids them. If more than
// half of the hosts appear unreachable, the probers are more likely at fault, and it returns none.
func (e *endpoints) unreachable(v *View, now time.Time) map[string]bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	out, alive := make(map[string]bool), 0
	for _, h := range v.Wire.Hosts {
		if !h.Alive {
			continue
		}
		alive++
		if e.healthLocked(server{transport.RoleChunkserver, h.Id}, now).Unreachable {
			out[h.Id] = true
		}
	}
	if 2*len(out) > alive {
		return nil
	}
	return out
}

// MarkEndpoints returns the topology with the endpoint health of each host that is up.
func (f *Fleet) MarkEndpoints(t *wire.Topology) *wire.Topology {
	out, now := proto.CloneOf(t), f.Clock.Now()
	for _, h := range out.Hosts {
		if h.Alive && !retired(h) {
			h.Endpoint = f.endpoints.health(server{transport.RoleChunkserver, h.Id}, now)
		}
	}
	return out
}
