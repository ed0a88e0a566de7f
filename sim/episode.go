package sim

import (
	"math"
	"math/bits"
	"math/rand/v2"
)

// maxUnits limits the lost units that matter at one time: they are bits.
const maxUnits = 30

// maxFailures limits the losses of one episode.
const maxFailures = 10_000

// unit is a lost device, or a lost host. An empty one replaces it once no stripe
// misses a chunk that was on it.
type unit struct {
	host         int
	whole        bool    // all devices of the host
	weight       float64 // devices; 0 if the slot is free
	declaredDead float64 // when the rebuild of its chunks begins
}

// episode runs from the first loss until every stripe is whole again. It counts
// stripes instead of drawing them: groups has how many miss chunks on exactly these
// lost units.
type episode struct {
	f   *Fleet
	rng *rand.Rand

	now       float64 // seconds since the first loss
	logWeight float64 // probability of these events relative to how they were drawn
	lost      float64 // stripes

	units    []unit // by bit
	groups   map[uint32]float64
	goneHost map[int]bool // hosts lost as a whole
	gone     map[int]int  // devices lost by themselves, by host
	devices  int          // remaining devices
	hosts    int
	failures int
}

func newEpisode(f *Fleet, rng *rand.Rand) *episode {
	return &episode{f: f, rng: rng, groups: map[uint32]float64{}, goneHost: map[int]bool{}, gone: map[int]int{},
		devices: f.Hosts * f.Devices, hosts: f.Hosts}
}

func (e *episode) run() error {
	for e.fail(); len(e.groups) > 0; {
		if e.failures >= maxFailures {
			return errEndless
		}
		rate := e.rate()
		window, drawn := e.untilWhole(), rate
		if e.lost == 0 && e.hosts > 1 {
			// While stripes miss that many chunks, a further loss is drawn about
			// half of the time. Otherwise almost no loss would fall into these few
			// seconds, which matter most.
			window = e.untilBetter()
			drawn = max(rate, 1/window)
		}
		t := e.rng.ExpFloat64() / drawn
		if t >= window {
			e.advance(window)
			e.logWeight += (drawn - rate) * window
			continue
		}
		e.advance(t)
		e.logWeight += math.Log(rate/drawn) + (drawn-rate)*t
		e.fail()
	}
	return nil
}

// rate is how many of the remaining units are lost per second.
func (e *episode) rate() float64 { return e.yearly() / Year.Seconds() }

func (e *episode) yearly() float64 {
	return float64(e.devices)*e.f.DeviceAFR + float64(e.hosts)*e.f.HostAFR
}

// fail loses a unit.
func (e *episode) fail() {
	e.failures++
	e.replace()
	if e.hosts == 0 {
		e.lost, e.groups = e.f.Stripes(), nil
		return
	}
	u := unit{weight: 1, declaredDead: e.now + e.f.Detect.Seconds()}
	if u.whole = e.wholeHost(); u.whole {
		u.host = e.someHost()
		u.declaredDead += e.f.Grace.Seconds()
		u.weight = float64(e.left(u.host))
		e.change(u.host, func() { e.goneHost[u.host] = true })
	} else {
		u.host = e.hostOfDevice()
		e.change(u.host, func() { e.gone[u.host]++ })
	}
	e.hit(u)
}

// wholeHost draws whether a host or a device is lost. While nothing is lost yet,
// both are equally likely. The rarer one, usually a host, loses more stripes, and
// an estimate that hardly draws it is wrong without showing it.
func (e *episode) wholeHost() bool {
	p := float64(e.hosts) * e.f.HostAFR / e.yearly()
	q := p
	if p > 0 && p < 1 && e.lost == 0 {
		q = 0.5
	}
	host := e.rng.Float64() < q
	if host {
		e.logWeight += math.Log(p / q)
	} else if q < 1 {
		e.logWeight += math.Log((1 - p) / (1 - q))
	}
	return host
}

// left is how many devices of a host remain.
func (e *episode) left(host int) int {
	if e.goneHost[host] {
		return 0
	}
	return e.f.Devices - e.gone[host]
}

// change loses or replaces a part of a host.
func (e *episode) change(host int, do func()) {
	before := e.left(host)
	do()
	after := e.left(host)
	e.devices += after - before
	e.hosts += min(after, 1) - min(before, 1)
}

// replace puts empty units in place of lost ones that no stripe misses.
func (e *episode) replace() {
	used := uint32(0)
	for set := range e.groups {
		used |= set
	}
	for b := range e.units {
		u := &e.units[b]
		if u.weight == 0 || used&(1<<b) != 0 {
			continue
		}
		e.change(u.host, func() {
			if u.whole {
				e.goneHost[u.host] = false
			} else {
				e.gone[u.host]--
			}
		})
		u.weight = 0
	}
}

// someHost draws a remaining host.
func (e *episode) someHost() int {
	for {
		if h := e.rng.IntN(e.f.Hosts); e.left(h) > 0 {
			return h
		}
	}
}

// hostOfDevice draws a remaining device, and returns its host.
func (e *episode) hostOfDevice() int {
	for {
		if h := e.rng.IntN(e.f.Hosts); e.rng.IntN(e.f.Devices) < e.left(h) {
			return h
		}
	}
}

// hit moves the stripes with a chunk on a unit to groups that miss it.
func (e *episode) hit(u unit) {
	bit := e.enter(u)
	order := order(e.groups)
	whole := e.f.Stripes() - e.lost
	for _, set := range order {
		whole -= e.groups[set]
	}
	for _, set := range append(order, 0) {
		n := whole
		if set != 0 {
			n = e.groups[set]
		}
		if n *= e.share(set, u, bit); n <= 0 {
			continue
		}
		if set != 0 {
			e.groups[set] -= n
		}
		if bits.OnesCount32(set)+1 > int(e.f.Scheme.M) {
			e.lost += n
		} else {
			e.groups[set|1<<bit] += n
		}
	}
}

// share is the fraction of the stripes that miss the chunks of set and have one on
// u. Their other chunks are anywhere except in the domains of set and on the units
// that were lost without hitting them.
func (e *episode) share(set uint32, u unit, bit int) float64 {
	left := float64(e.f.Hosts * e.f.Devices)
	domain := left / float64(e.f.domains())
	for b, o := range e.units {
		if o.weight == 0 || b == bit {
			continue
		}
		in := set&(1<<b) != 0
		switch {
		case in && e.f.Domain != DomainDevice:
			if e.f.apart(o.host, u.host) {
				return 0 // its domain has one of their chunks, and that is lost
			}
			left -= domain
		case e.domainIn(set, o.host):
		default:
			left -= o.weight
		}
	}
	chunks := float64(e.f.Scheme.Chunks() - bits.OnesCount32(set))
	return min(1, chunks*u.weight/left)
}

// domainIn reports whether a unit of set is in the domain of a host.
func (e *episode) domainIn(set uint32, host int) bool {
	for b, o := range e.units {
		if set&(1<<b) != 0 && e.f.apart(o.host, host) {
			return true
		}
	}
	return false
}

// enter assigns a bit to a unit.
func (e *episode) enter(u unit) int {
	for b := range e.units {
		if e.units[b].weight == 0 {
			e.units[b] = u
			return b
		}
	}
	if len(e.units) == maxUnits {
		e.failures = maxFailures // the rebuild is too slow: run reports it
		e.units[0] = u
		return 0
	}
	e.units = append(e.units, u)
	return len(e.units) - 1
}
