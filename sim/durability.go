// Package sim computes how a cluster of given parts would behave, where no such
// cluster is available. It computes how likely the cluster is to lose a stripe in a
// year, and the bandwidth that its parts allow. It is arithmetic and a seeded
// random source: no clock, no I/O.
//
// One path through it: Durability draws episodes, from the first lost unit to the
// moment when everything is whole again (episode.go). In an episode, it counts the
// stripes that miss chunks by the lost units that held them. It rebuilds those with
// the least redundancy first.
package sim

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/morainefs/moraine"
)

// Year is the unit of rates and probabilities.
const Year = 365.25 * 24 * time.Hour

// Domain is what the chunks of a stripe never share.
type Domain string

const (
	// DomainHost: each chunk of a stripe is on another host.
	DomainHost Domain = "host"
	// DomainRack: each chunk of a stripe is in another rack.
	DomainRack Domain = "rack"
	// DomainDevice: chunks of a stripe may share a host, not a device.
	DomainDevice Domain = "device"
)

// Fleet is the cluster whose durability is computed. All of its devices are alike
// and equally full, and stripes are spread over all of them.
type Fleet struct {
	Scheme         moraine.Scheme
	Domain         Domain
	Hosts, Devices int // devices of each host
	Racks          int // of equally many hosts; only DomainRack uses them
	// DeviceBytes is how many bytes each device stores, parity included.
	DeviceBytes float64
	// ChunkBytes is the length of a chunk.
	ChunkBytes float64
	// DeviceAFR and HostAFR are the expected permanent losses per year of one
	// device, and of one host with all its devices.
	DeviceAFR, HostAFR float64
	// RebuildRate is how many bytes of lost chunks each host rebuilds per second.
	RebuildRate float64
	// StripesPerSecond limits the stripes that the metadata leader gives out for
	// rebuild, to all hosts together; 0: no limit.
	StripesPerSecond float64
	// Detect is how long a loss goes unnoticed. A lost host is declared dead after
	// Grace in addition, in case it returns. A lost device counts at once, since
	// its host reports the failure. In the model, a stripe on several lost units
	// waits for the last of them. A real cluster rebuilds the chunks of the first
	// meanwhile, so the model is pessimistic here.
	Detect, Grace time.Duration
}

func (f *Fleet) validate() error {
	bad := func(format string, args ...any) error {
		return &moraine.Error{Op: "sim", Kind: moraine.InvalidArgument, Err: fmt.Errorf(format, args...)}
	}
	switch {
	case !f.Scheme.Valid() || f.Scheme.M == 0:
		return bad("scheme %s has no redundancy", f.Scheme)
	case f.Domain != DomainHost && f.Domain != DomainDevice && f.Domain != DomainRack:
		return bad("unknown domain %q: use device, host or rack", f.Domain)
	case f.Hosts < 1 || f.Devices < 1:
		return bad("%d hosts with %d devices: both must be positive", f.Hosts, f.Devices)
	case f.Domain == DomainRack && (f.Racks < 1 || f.Hosts%f.Racks != 0):
		return bad("%d racks for %d hosts: each rack needs the same number of hosts", f.Racks, f.Hosts)
	case f.domains() <= f.Scheme.Chunks():
		return bad("%s needs more than %d %ss, so that lost chunks can be rebuilt on another; the fleet has %d", f.Scheme, f.Scheme.Chunks(), f.Domain, f.domains())
	case f.DeviceBytes < f.ChunkBytes || f.ChunkBytes <= 0:
		return bad("%.0f bytes per device in chunks of %.0f: both must be positive", f.DeviceBytes, f.ChunkBytes)
	case f.DeviceAFR < 0 || f.HostAFR < 0 || f.DeviceAFR+f.HostAFR <= 0 || f.DeviceAFR > 20 || f.HostAFR > 20:
		return bad("invalid annual failure rates: %g per device, %g per host", f.DeviceAFR, f.HostAFR)
	case f.StripesPerSecond < 0:
		return bad("invalid limit of %g stripes per second", f.StripesPerSecond)
	case f.RebuildRate <= 0:
		return bad("invalid rebuild rate of %g bytes/s", f.RebuildRate)
	case f.Detect < 0 || f.Grace < 0:
		return bad("negative duration")
	}
	return nil
}

// domains counts the units over which the chunks of a stripe are spread.
func (f *Fleet) domains() int {
	switch f.Domain {
	case DomainHost:
		return f.Hosts
	case DomainRack:
		return f.Racks
	}
	return f.Hosts * f.Devices
}

// apart reports whether the chunks of a stripe never share the domain of two hosts,
// which may be the same host.
func (f *Fleet) apart(a, b int) bool {
	return f.Domain == DomainHost && a == b || f.Domain == DomainRack && a%f.Racks == b%f.Racks
}

// Stripes is the number of stripes in the fleet.
func (f *Fleet) Stripes() float64 {
	return float64(f.Hosts*f.Devices) * f.DeviceBytes / f.ChunkBytes / float64(f.Scheme.Chunks())
}

// rates are how many devices and hosts are lost per second.
func (f *Fleet) rates() (devices, hosts float64) {
	return float64(f.Hosts*f.Devices) * f.DeviceAFR / Year.Seconds(), float64(f.Hosts) * f.HostAFR / Year.Seconds()
}

// Estimate is a probability with the bounds of its confidence interval.
type Estimate struct {
	Value float64 `json:"value"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
}

// Result is the result of Durability.
type Result struct {
	// AnyStripe is the probability that the fleet loses one stripe or more in a
	// year, OneStripe that of a given stripe.
	AnyStripe Estimate `json:"any_stripe"`
	OneStripe Estimate `json:"one_stripe"`
	// Stripes is the number of stripes in the fleet.
	Stripes float64 `json:"stripes"`
	// RebuildDevice and RebuildHost are how long the chunks of one lost device, and
	// of one lost host, take to rebuild. They are in seconds, and do not include the
	// wait before the rebuild begins.
	RebuildDevice float64 `json:"rebuild_device_seconds"`
	RebuildHost   float64 `json:"rebuild_host_seconds"`
	// Episodes is how many were drawn, and Lossy how many of them lost stripes.
	Episodes int `json:"episodes"`
	Lossy    int `json:"lossy"`
}

// errEndless: the rebuild is slower than the losses.
var errEndless = &moraine.Error{Op: "sim", Kind: moraine.InvalidArgument,
	Err: errors.New("units are lost faster than their chunks are rebuilt: raise the rebuild rate, or lower the loss rates")}

// z95 makes a 95% confidence interval of a mean.
const z95 = 1.96

// Durability draws episodes by Monte Carlo. Losses of stripes are far too rare
// to occur by chance. So further failures within an episode are drawn more
// often than they occur, and each episode is weighted accordingly. This is
// importance sampling (see Nicola, Shahabuddin, Nakayama, "Techniques for fast
// simulation of models of highly dependable systems", IEEE Transactions on
// Reliability 50, 2001). The same seed gives the same result.
func Durability(f Fleet, episodes int, seed uint64) (Result, error) {
	if err := f.validate(); err != nil {
		return Result{}, err
	}
	if episodes < 100 {
		return Result{}, &moraine.Error{Op: "sim", Kind: moraine.InvalidArgument, Err: fmt.Errorf("%d episodes are too few: use at least 100", episodes)}
	}
	rng := rand.New(rand.NewPCG(seed, uint64(f.Scheme.K)<<8|uint64(f.Scheme.M)))
	res := Result{Stripes: f.Stripes(), Episodes: episodes}
	perSecond := f.RebuildRate * float64(f.Hosts)
	if f.StripesPerSecond > 0 {
		perSecond = min(perSecond, f.StripesPerSecond*f.ChunkBytes)
	}
	res.RebuildDevice = f.DeviceBytes / perSecond
	res.RebuildHost = res.RebuildDevice * float64(f.Devices)
	var anyLost, lost, length mean
	for range episodes {
		e := newEpisode(&f, rng)
		if err := e.run(); err != nil {
			return Result{}, err
		}
		w := math.Exp(e.logWeight)
		anyLost.add(w * -math.Expm1(-e.lost))
		lost.add(w * e.lost / res.Stripes)
		length.add(w * e.now)
		if e.lost > 0 {
			res.Lossy++
		}
	}
	devices, hosts := f.rates()
	// Between two episodes everything is whole for 1/rate on average.
	perYear := Year.Seconds() / (1/(devices+hosts) + length.value())
	res.AnyStripe = anyLost.yearly(perYear)
	res.OneStripe = lost.yearly(perYear)
	return res, nil
}

// mean is a running mean with its variance (Welford).
type mean struct {
	n       float64
	m, sums float64
}

func (m *mean) add(x float64) {
	m.n++
	d := x - m.m
	m.m += d / m.n
	m.sums += d * (x - m.m)
}

func (m *mean) value() float64 { return m.m }

// yearly turns a mean per episode into a probability per year.
func (m *mean) yearly(episodes float64) Estimate {
	half := z95 * math.Sqrt(m.sums/(m.n-1)/m.n)
	p := func(x float64) float64 { return -math.Expm1(-episodes * max(x, 0)) }
	return Estimate{Value: p(m.m), Low: p(m.m - half), High: p(m.m + half)}
}
