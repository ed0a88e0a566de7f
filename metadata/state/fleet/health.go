package fleet

import (
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
)

// health is how a stripe stands, by the registry of devices and what is known
// of its chunks. Whether hosts are alive is not in the state, and not judged.
type health struct {
	// missing and moving have a bit for each chunk: those that are gone, and
	// those that are there but on a device that is being emptied.
	missing, moving uint32
	// lost is whether fewer than K chunks are left.
	lost bool
	// protects is how many more hosts may be lost (devices, where one host is
	// registered).
	Protects int
	// gone is whether a chunk is missing because its device is.
	gone bool
}

// HealthOf judges a stripe; bad has a bit for each chunk that is known to be
// corrupt or not where it should be.
func HealthOf(v *kvtx.View, s *moraine.Stripe, bad uint32) (health, error) {
	hosts, err := HostCount(v)
	if err != nil {
		return health{}, err
	}
	var h health
	domains := make([]string, 0, len(s.Chunks))
	for i, c := range s.Chunks {
		d, err := LookDevice(v, c.Device)
		if err != nil {
			return health{}, err
		}
		switch {
		case gone(&c, d):
			h.missing |= 1 << i
			h.gone = true
			continue
		case bad&(1<<i) != 0:
			h.missing |= 1 << i
			continue
		case d.State == record.DeviceDraining:
			h.moving |= 1 << i
		}
		domain := d.Host
		if hosts == 1 {
			domain = record.Utoa(uint64(c.Device))
		}
		domains = append(domains, domain)
	}
	h.lost = len(domains) < int(s.Scheme.K)
	h.Protects = Protects(s.Scheme, domains)
	return h, nil
}

// Sound reports whether there is nothing to repair.
func (h health) Sound(s *moraine.Stripe) bool {
	return h.missing == 0 && h.moving == 0 && h.Protects >= int(s.Scheme.M)
}

// spare is the stripe's place in the repair queue.
func (h health) spare() uint8 {
	if h.lost {
		return record.LostSpare
	}
	return uint8(h.Protects)
}

// reason says why a stripe is to be repaired, for people and metrics: lost
// (too few chunks left), lost device, corrupt, drain, or spread.
func (h health) reason() string {
	var why []string
	add := func(is bool, what string) {
		if is {
			why = append(why, what)
		}
	}
	add(h.lost, "lost")
	add(h.gone, "lost device")
	add(h.missing != 0 && !h.gone, "corrupt")
	add(h.moving != 0, "drain")
	add(len(why) == 0, "spread")
	return strings.Join(why, ", ")
}
