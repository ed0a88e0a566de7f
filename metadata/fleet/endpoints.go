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

// Whether servers can be called. A heartbeat shows that a host can call, not that it can be
// called: its certificate may be one that nobody takes, or its address one that nobody
// reaches. So chunkservers try each other, and the metadata servers (chunkserver/probe.go),
// and say what came of it with their heartbeats.
//
// Who tries whom: hosts stand on a ring, in the order of a hash of their names, and each is
// tried by the probersEach that follow it. So each host tries as many others, however many
// there are, and the loss of one changes little. One bad prober condemns nobody: a server is
// called unreachable where two probers say so, or the only one, and what a prober says counts
// for nothing where it reached no server at all.

const (
	// probersEach is how many hosts try one server.
	probersEach = 3
	// probeStale is when the word of a prober is forgotten that says nothing any more.
	probeStale = 30 * time.Second
	// MaxProbeError bounds the text of an error that is kept.
	MaxProbeError = 400
)

// server names one that is tried.
type server struct {
	role transport.Role
	node string
}

// endpoints is what the leader knows of whether servers can be called.
type endpoints struct {
	base uint64 // of all marks: the term in the upper half

	mu      sync.Mutex // guards what follows
	version uint64     // of the topology that the ring is of
	members string     // and the metadata servers
	targets map[server]*endpoint
	aims    map[string][]*wire.ProbeTarget // by prober
}

// endpoint is one server.
type endpoint struct {
	addresses []string
	boots     uint64          // registrations of the host that this leader has seen
	probers   []string        // that are to try it
	reports   map[string]word // by prober, of those alone
}

// word is what a prober said of a server last.
type word struct {
	err string
	at  time.Time
}

func newEndpoints(term uint64) *endpoints {
	return &endpoints{base: term << 32, targets: make(map[server]*endpoint), aims: make(map[string][]*wire.ProbeTarget)}
}

// arrange takes over which servers there are. It is cheap where nothing has changed.
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

// keep makes a server a target, with what is known of it. The caller holds mu.
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

// aim tells each prober whom to try. The caller holds mu.
func (e *endpoints) aim() {
	e.aims = make(map[string][]*wire.ProbeTarget)
	for name, t := range e.targets {
		for _, p := range t.probers {
			e.aims[p] = append(e.aims[p], &wire.ProbeTarget{Role: string(name.role), Node: name.node, Addresses: t.addresses, Mark: e.base + t.boots})
		}
	}
}

// byHash orders names so that neighbours have nothing to do with each other.
func byHash(a, b string) int {
	return cmp.Or(cmp.Compare(crc32.ChecksumIEEE([]byte(a)), crc32.ChecksumIEEE([]byte(b))), cmp.Compare(a, b))
}

// probersOf are the hosts that try a server: those that follow it on the ring; the only host
// tries itself.
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

// booted forgets what was said of a host before it started.
func (e *endpoints) booted(host string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if t := e.targets[server{transport.RoleChunkserver, host}]; t != nil {
		t.boots++
		clear(t.reports)
		e.aim()
	}
}

// noteProbes takes in what a host found, and returns whom it is to try. What it says of others than
// those that it was told to try, or of a time before they started, is passed over.
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

// reachesNone reports whether a prober has tried two servers at least, and reached none. The caller
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

// health is what is known of a server.
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

// unreachable are the hosts that nothing new is to be placed on, as their peers get no
// connection to them. Where that is so of more than half of the hosts, the fault is more
// likely that of who says so, and it is of none.
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

// MarkEndpoints returns the topology with what peers found of each host that is up.
func (f *Fleet) MarkEndpoints(t *wire.Topology) *wire.Topology {
	out, now := proto.CloneOf(t), f.Clock.Now()
	for _, h := range out.Hosts {
		if h.Alive && !retired(h) {
			h.Endpoint = f.endpoints.health(server{transport.RoleChunkserver, h.Id}, now)
		}
	}
	return out
}
