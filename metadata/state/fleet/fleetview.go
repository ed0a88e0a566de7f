package fleet

import (
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// Hosts returns every host with its devices, also retired ones, by ID. The state does not know
// whether they are up or how full they are.
func Hosts(v *kvtx.View) ([]*wire.Host, error) {
	var out []*wire.Host
	byID := make(map[string]*wire.Host)
	prefix := v.K.Table(record.TabHost)
	err := v.EachIn(prefix, func(key, value []byte) (bool, error) {
		h := &record.Host{Id: string(key[len(prefix):])}
		if err := h.Decode(value); err != nil {
			return false, err
		}
		w := &wire.Host{Id: h.Id, Rack: h.Rack, Addresses: h.Addresses, AdminAddress: h.Admin, Bucket: h.Bucket,
			MaintenanceUntil: h.Away, MaintenanceReason: h.AwayWhy}
		out, byID[h.Id] = append(out, w), w
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	err = EachDevice(v, func(d *record.Device) {
		if h := byID[d.Host]; h != nil {
			h.Devices = append(h.Devices, d.ToWire())
		}
	})
	return out, err
}

// Devices returns every device, by number.
func Devices(r *kvtx.View) ([]*wire.Device, error) {
	var out []*wire.Device
	err := EachDevice(r, func(d *record.Device) { out = append(out, d.ToWire()) })
	return out, err
}

// RepairCursor is a place in the repair queue; the zero value is the front.
type RepairCursor struct {
	key  []byte
	last bool
}

// End reports whether the queue ends here.
func (c RepairCursor) End() bool { return c.last }

// RepairQueue returns at most limit waiting stripes without a job, from a place on, and the place
// after them. They are sorted by least redundancy, lost stripes last. It skips items whose retry
// time has not come. An exception are lost stripes last tried before back, the cluster time when a
// host returned that may have some of their chunks. It inspects at most 16 times limit items.
func RepairQueue(v *kvtx.View, from RepairCursor, limit int, back uint64) ([]*wire.RepairTask, RepairCursor, error) {
	c, err := v.Counters()
	if err != nil {
		return nil, from, err
	}
	prefix := v.K.Table(record.TabRepair)
	lo := prefix
	if from.key != nil {
		lo = from.key
	}
	var out []*wire.RepairTask
	next := RepairCursor{last: true}
	seen := 0
	err = v.Each(lo, kvtx.PrefixEnd(prefix), func(key, _ []byte) (bool, error) {
		if seen++; len(out) == limit || seen > 16*limit {
			next = RepairCursor{key: slices.Clone(key)}
			return false, nil
		}
		task, err := waitingTask(v, moraine.StripeID(record.LastU64(key)), c[record.CClusterTime], back)
		if task != nil {
			out = append(out, task)
		}
		return true, err
	})
	return out, next, err
}

// waitingTask returns the repair task of a queued stripe; nil if its time has not come.
func waitingTask(v *kvtx.View, id moraine.StripeID, now, back uint64) (*wire.RepairTask, error) {
	i, err := RepairOf(v, id)
	switch {
	case err != nil:
		return nil, err
	case i == nil:
		return nil, kvtx.Corrupt("repair queue", id.String(), "the queue has the stripe, but no repair record")
	case i.After > now && !(i.Lost() && i.TriedBefore(back, now)):
		return nil, nil
	}
	return repairTask(v, i)
}

// StripesBySpare returns how many stripes on the repair queue survive the loss of 0, 1, 2 ... more
// hosts. The last element counts all higher numbers. Lost stripes are not counted.
func StripesBySpare(r *kvtx.View) ([]uint64, error) {
	c, err := r.Counters()
	if err != nil {
		return nil, err
	}
	return slices.Clone(c[record.CSpare : record.CSpareMany+1]), nil
}

// RepairRunning returns the number of stripes that repair jobs work on.
func RepairRunning(r *kvtx.View) (uint64, error) {
	c, err := r.Counters()
	return c[record.CRepairRunning], err
}

// RepairHopeful is RepairRunning without lost stripes. For those a job only tries whether chunks
// that do not count can still be read, which mostly fails.
func RepairHopeful(v *kvtx.View) (uint64, error) {
	c, err := v.Counters()
	if err != nil || c[record.CRepairRunning] == 0 || c[record.CLostStripes] == 0 {
		return c[record.CRepairRunning], err
	}
	list, err := jobs.LiveJobs(v, wire.JobKind_JOB_KIND_REPAIR, jobs.MaxRunningJobs)
	if err != nil {
		return 0, err
	}
	tried := uint64(0)
	for _, j := range list {
		for _, s := range j.Stripes {
			i, err := RepairOf(v, s)
			if err != nil {
				return 0, err
			}
			if i != nil && i.Job == j.Id && i.Lost() {
				tried++
			}
		}
	}
	return c[record.CRepairRunning] - min(tried, c[record.CRepairRunning]), nil
}

// DefaultScheme returns the scheme of new stripes without a policy, by the number of registered
// hosts and devices.
func DefaultScheme(r *kvtx.View) (moraine.Scheme, error) {
	f, err := Fleet(r)
	return moraine.DefaultScheme(int(f.Hosts), int(f.Devices)), err
}

// Intent returns the live intent for a chunk; nil if there is none.
func Intent(r *kvtx.View, chunk moraine.ChunkID) (*wire.Intent, error) {
	in, err := readIntent(r, chunk)
	if err != nil || in == nil {
		return nil, err
	}
	return in.ToWire(), nil
}
