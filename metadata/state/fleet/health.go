package fleet

import (
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
)

// health is the condition of a stripe by the device records and the known bad chunks. The state
// does not know which hosts are up, so they do not count.
type health struct {
	// missing and moving are bit masks of chunks: missing ones, and present ones on a draining
	// device.
	missing, moving uint32
	// lost says that fewer than K chunks are left.
	lost bool
	// Protects is the number of further hosts that may fail (devices, if one host is registered).
	Protects int
	// gone says that a chunk is missing because its device is.
	gone bool
}

// HealthOf returns the condition of a stripe; bad is the bit mask of chunks known to be corrupt or
// missing.
func HealthOf(v *kvtx.View, s *moraine.Stripe, bad uint32) (health, error) {
	hosts, err := hostCount(v)
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
	h.Protects = protects(s.Scheme, domains)
	return h, nil
}

// Sound reports whether there is nothing to repair.
func (h health) Sound(s *moraine.Stripe) bool {
	return h.missing == 0 && h.moving == 0 && h.Protects >= int(s.Scheme.M)
}

// spare returns the stripe's priority in the repair queue.
func (h health) spare() uint8 {
	if h.lost {
		return record.LostSpare
	}
	return uint8(h.Protects)
}

// reason says why a stripe needs repair, for texts and metrics: lost (too few chunks left), lost
// device, corrupt, drain, or spread.
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
