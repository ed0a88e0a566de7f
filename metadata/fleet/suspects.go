package fleet

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// A client's report of a bad chunk is no proof. It changes nothing in the state and queues no
// repair. The leader has the chunkserver verify the chunk: the answer to its next heartbeat names
// the stripe. The chunkserver reads its chunks of the stripe and reports what it finds, as a scrub
// does. Each certificate may report a number of chunks per second.
//
// The suspects are in this leader's memory. It may lose them, or the answer to
// the heartbeat may be lost. Then a reader that still finds the chunk bad
// reports it again after a minute.

const (
	// maxReported bounds the chunks of one report.
	maxReported = 256
	// maxSuspects bounds the stripes that wait for a heartbeat, and those that were verified lately.
	maxSuspects = 4096
	// suspectsPerBeat bounds those of one heartbeat's answer.
	suspectsPerBeat = 64
	// suspectAgain is the time for which a stripe that was given to its host is not given again.
	suspectAgain = 30 * time.Second
	// suspectRate is the number of chunks per second that one certificate may
	// report, and suspectBurst the number at once. A reader of a damaged disk
	// reports many together.
	suspectRate, suspectBurst = 4, 256
	// maxReporters bounds the certificates whose rates are known. Those that may report a whole
	// burst are forgotten first.
	maxReporters = 4096
	// suspectLog is the least time between two log lines about refused reports.
	suspectLog = time.Minute
)

// suspect is a stripe with chunks on a device that a client reported as bad.
type suspect struct {
	device uint32
	stripe moraine.StripeID
	parity bool // the parity of the stripe must be compared with its data
}

// suspects is the leader's list of them. Safe for concurrent use.
type suspects struct {
	mu      sync.Mutex // guards the fields below
	waiting map[uint32]map[suspect]bool
	count   int // of those waiting
	given   map[suspect]time.Time
	rates   map[record.Principal]*rate.Limiter
	logged  time.Time
}

func newSuspects() *suspects {
	return &suspects{waiting: map[uint32]map[suspect]bool{}, given: map[suspect]time.Time{}, rates: map[record.Principal]*rate.Limiter{}}
}

// Unverified reports whether a caller's reports of bad chunks must be verified: those of clients and
// gateways. Chunkservers report what they read themselves, administrators what fsck compared.
func (f *Fleet) Unverified(c *lead.Call) bool {
	switch transport.Role(c.Caller.Role) {
	case transport.RoleClient, transport.RoleGateway:
		return true
	}
	return false
}

// Suspect has the chunks verified that a client reports as bad. It ignores a chunk that is not in
// the place that the report names, and those beyond the rate of the client's certificate.
func (f *Fleet) Suspect(c *lead.Call, chunks []*wire.BadChunk) error {
	if len(chunks) > maxReported {
		return &moraine.Error{Kind: moraine.TooLarge, Err: fmt.Errorf("the report has %d bad chunks, %d at most", len(chunks), maxReported)}
	}
	var all []suspect
	err := f.Store.View(func(r kvtx.Reader, _ uint64) error {
		for _, b := range chunks {
			s, err := f.suspectOf(r, b)
			if err != nil {
				return err
			}
			if s != nil {
				all = append(all, *s)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	taken, refused, log := f.suspects.add(record.PrincipalOf(c.Caller), all, f.Clock.Now())
	f.Metrics.Suspects.Add(float64(taken))
	f.Metrics.SuspectsRefused.Add(float64(refused))
	if log {
		f.Log.Warn("a client reported too many bad chunks for one certificate; the leader ignores the rest",
			"node", c.Caller.Node, "role", c.Caller.Role, "refused", refused)
	}
	return nil
}

// suspectOf returns what must be verified for a report. It is nil if its record
// has other chunks by now, or if the report says only that a host did not
// answer.
func (f *Fleet) suspectOf(r kvtx.Reader, b *wire.BadChunk) (*suspect, error) {
	switch moraine.Kind(min(b.GetKind(), 255)) {
	case moraine.NotFound, moraine.Corrupt, moraine.Stale, moraine.Lost:
	default:
		return nil, nil
	}
	s, err := fleet.StripeByID(f.Machine.View(r), moraine.StripeID(b.GetStripe()))
	if err != nil || s == nil {
		return nil, err
	}
	switch version := moraine.LayoutVersion(b.GetVersion()); {
	case b.GetIndex() >= uint32(len(s.Chunks)) || s.Chunks[b.GetIndex()].Device != moraine.DeviceID(b.GetDevice()):
		return nil, nil
	case version > s.Version || b.GetAtVersion() && version != s.Version:
		return nil, nil
	case !b.GetParity():
		return &suspect{device: b.GetDevice(), stripe: s.ID}, nil
	case s.Scheme.IsCopies() || b.GetIndex() < uint32(s.Scheme.K):
		return nil, nil // data chunks are right by definition
	}
	// The host of the first parity chunk compares the parity of a stripe.
	return &suspect{device: uint32(s.Chunks[s.Scheme.K].Device), stripe: s.ID, parity: true}, nil
}

// add adds suspects that a certificate reported. refused counts those beyond its rate, and beyond
// the bound of all. log says that a log line about them is due.
func (s *suspects) add(by record.Principal, all []suspect, now time.Time) (taken, refused int, log bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	limit := s.rateOf(by, now)
	for _, w := range all {
		if s.waiting[w.device][w] || now.Sub(s.given[w]) < suspectAgain {
			continue
		}
		if s.count >= maxSuspects || !limit.AllowN(now, 1) {
			refused++
			continue
		}
		if s.waiting[w.device] == nil {
			s.waiting[w.device] = map[suspect]bool{}
		}
		s.waiting[w.device][w] = true
		s.count++
		taken++
	}
	if log = refused > 0 && now.Sub(s.logged) >= suspectLog; log {
		s.logged = now
	}
	return taken, refused, log
}

// rateOf returns the rate of a certificate. The caller holds the mutex.
func (s *suspects) rateOf(p record.Principal, now time.Time) *rate.Limiter {
	if l := s.rates[p]; l != nil {
		return l
	}
	if len(s.rates) >= maxReporters {
		for other, l := range s.rates {
			if l.TokensAt(now) >= suspectBurst {
				delete(s.rates, other)
			}
		}
	}
	l := rate.NewLimiter(suspectRate, suspectBurst)
	if len(s.rates) >= maxReporters { // all of them report more than they should
		l.SetBurstAt(now, 1)
		return l
	}
	s.rates[p] = l
	return l
}

// give returns the suspects on devices of a host, which it must verify now.
func (s *suspects) give(devices []uint32, now time.Time) (out []*wire.SuspectChunk) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.count == 0 {
		return nil
	}
	for _, d := range devices {
		for w := range s.waiting[d] {
			if len(out) == suspectsPerBeat {
				return out
			}
			s.remove(w)
			if len(s.given) >= maxSuspects {
				clear(s.given)
			}
			s.given[w] = now
			out = append(out, &wire.SuspectChunk{Device: w.device, Stripe: uint64(w.stripe), Parity: w.parity})
		}
	}
	return out
}

// remove removes a waiting suspect. The caller holds the mutex.
func (s *suspects) remove(w suspect) {
	delete(s.waiting[w.device], w)
	if len(s.waiting[w.device]) == 0 {
		delete(s.waiting, w.device)
	}
	s.count--
}

// forget drops the suspects on devices that no host serves: nobody can verify them.
func (s *suspects) forget(v *View) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for d, all := range s.waiting {
		if h := v.Devices[d]; h == nil || v.Hosts[h.Host] == nil || !v.Hosts[h.Host].Alive {
			s.count -= len(all)
			delete(s.waiting, d)
		}
	}
}
