package check

import (
	"encoding/binary"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
)

// fleetChecks check hosts, devices, tombstones, the repair queue and jobs.
type fleetChecks struct {
	*checker
	stripes map[moraine.StripeID]*moraine.Stripe
}

func (c *fleetChecks) fleetCounts() error {
	var want record.Fleet
	on := make(map[moraine.DeviceID]string)
	err := c.each(record.TabHost, func(key, value []byte) error {
		h := &record.Host{Id: string(key[3:])}
		if err := h.Decode(value); err != nil {
			return err
		}
		live := uint32(0)
		for _, id := range h.Devices {
			d, err := fleet.Device(c.View, id)
			if err != nil {
				return err
			}
			if on[id] != "" || d == nil || d.Host != h.Id {
				c.problem("host %s lists device %d, which is missing or listed by another host", h.Id, id)
				continue
			}
			on[id] = h.Id
			if d.State != record.DeviceRetired {
				live++
			}
		}
		if live != h.Live {
			c.problem("host %s counts %d devices, but has %d", h.Id, h.Live, live)
		}
		want.Devices += uint64(live)
		if live > 0 {
			want.Hosts++
		}
		return nil
	})
	if err != nil {
		return err
	}
	have, err := fleet.Fleet(c.View)
	if err != nil {
		return err
	}
	if have != want {
		c.problem("the fleet counts %+v, but has %+v", have, want)
	}
	var leaked uint64
	err = fleet.EachDevice(c.View, func(d *record.Device) {
		if on[d.Id] != d.Host {
			c.problem("device %d names host %q, which does not list the device", d.Id, d.Host)
		}
		leaked += d.UnknownBytes
	})
	if n, _ := c.Counters(); n[record.CLeakedBytes] != leaked {
		c.problem("the state counts %d leaked bytes, but has %d", n[record.CLeakedBytes], leaked)
	}
	return err
}

// tombstones checks the tables of tombstones against each other, and their totals.
func (c *fleetChecks) tombstones() error {
	var bytes, kept uint64
	places, on := make(map[string]bool), make(map[moraine.DeviceID]record.KeptOn)
	for _, tab := range []byte{record.TabTombstone, record.TabKept} {
		err := c.each(tab, func(key, value []byte) error {
			s, err := record.DecodeTombstone(value)
			if err != nil {
				return err
			}
			s.Kept = tab == record.TabKept
			bytes += uint64(s.Bytes)
			id, chunk := fleet.DeviceOfKey(key), fleet.ChunkOfKey(key)
			if s.Kept {
				kept += uint64(s.Bytes)
				k := on[id]
				on[id] = record.KeptOn{Bytes: k.Bytes + uint64(s.Bytes), Chunks: k.Chunks + 1}
			}
			places[string(c.K.TombstoneAt(id, chunk))] = true
			return c.tombstone(id, chunk, s, binary.BigEndian.Uint64(key[7:]))
		})
		if err != nil {
			return err
		}
	}
	n, _ := c.Counters()
	if n[record.CPendingBytes] != bytes || n[record.CKeptBytes] != kept {
		c.problem("the state counts %d pending bytes, but has %d; it counts %d kept bytes, but has %d", n[record.CPendingBytes], bytes, n[record.CKeptBytes], kept)
	}
	err := c.each(record.TabKeptOn, func(key, value []byte) error {
		k, err := record.DecodeKeptOn(value)
		if want := on[fleet.DeviceOfKey(key)]; err == nil && (k.Bytes != want.Bytes || k.Chunks != want.Chunks) {
			c.problem("device %d counts %d kept chunks with %d bytes, but has %d with %d", fleet.DeviceOfKey(key), k.Chunks, k.Bytes, want.Chunks, want.Bytes)
		}
		delete(on, fleet.DeviceOfKey(key))
		return err
	})
	if err != nil {
		return err
	}
	for id := range on {
		c.problem("device %d has kept chunks without a count", id)
	}
	return c.each(record.TabTombstoneAt, func(key, _ []byte) error {
		if !places[string(key)] {
			c.problem("key %x of the tombstone index has no tombstone", key)
		}
		return nil
	})
}

// tombstone checks one tombstone.
func (c *fleetChecks) tombstone(id moraine.DeviceID, chunk moraine.ChunkID, s record.Tombstone, died uint64) error {
	at, since, ok, err := fleet.TombstoneOf(c.View, id, chunk)
	if err != nil {
		return err
	}
	if !ok || at != s || since != died {
		c.problem("the tombstone of chunk %s on device %d is missing from the index of chunks", chunk, id)
	}
	if st := c.stripes[chunk.Stripe]; st != nil && s.Below > st.Version+1 {
		c.problem("the tombstone of chunk %s on device %d covers versions below %d, but the stripe has version %d", chunk, id, s.Below, st.Version)
	}
	return nil
}

// repairs checks the repair queue against its order, its counters and the jobs.
func (c *fleetChecks) repairs() error {
	var want record.Counters
	waiting := make(map[string]bool)
	err := c.each(record.TabRepairStripe, func(key, value []byte) error {
		i := &record.RepairItem{Stripe: moraine.StripeID(record.LastU64(key))}
		if err := i.Decode(value); err != nil {
			return err
		}
		t := kvtx.Tx{Count: want}
		fleet.CountRepair(&t, i, 1)
		want = t.Count
		if c.stripes[i.Stripe] == nil {
			c.problem("stripe %s waits for repair, but does not exist", i.Stripe)
		}
		if i.Balance && i.Job == 0 {
			c.problem("stripe %s has a row for a move, but no job moves it", i.Stripe)
		}
		if i.Job == 0 {
			waiting[string(c.K.Repair(i.Spare, i.Stripe))] = true
			return nil
		}
		j, err := jobs.Job(c.View, i.Job)
		if err != nil {
			return err
		}
		if j == nil || !j.Live() || !slices.Contains(j.Stripes, i.Stripe) {
			c.problem("stripe %s names job %s, which does not repair it", i.Stripe, i.Job)
		}
		return nil
	})
	if err != nil {
		return err
	}
	have, err := c.Counters()
	if err != nil {
		return err
	}
	for _, n := range []record.Counter{record.CRepairQueued, record.CRepairRunning, record.CLostStripes, record.CRebalancing} {
		if have[n] != want[n] {
			c.problem("counter %d of the repair queue is %d, but must be %d", n, have[n], want[n])
		}
	}
	for n := record.CSpare; n <= record.CSpareMany; n++ {
		if have[n] != want[n] {
			c.problem("the state counts %d stripes with %d hosts to spare, but has %d", have[n], n-record.CSpare, want[n])
		}
	}
	err = c.each(record.TabRepair, func(key, _ []byte) error {
		if !waiting[string(key)] {
			c.problem("the repair queue has key %x, which belongs to no waiting stripe", key)
		}
		delete(waiting, string(key))
		return nil
	})
	if len(waiting) > 0 {
		c.problem("%d stripes wait for repair, but are not in the queue", len(waiting))
	}
	return err
}

// intents checks that each live intent belongs to a live repair with its stripe.
func (c *fleetChecks) intents() error {
	return c.each(record.TabIntent, func(key, value []byte) error {
		in := &record.Intent{Chunk: fleet.ChunkOfKey(key)}
		if err := in.Decode(value); err != nil {
			return err
		}
		j, err := jobs.Job(c.View, in.Job)
		if err != nil {
			return err
		}
		if j == nil || !j.Live() || !slices.Contains(j.Stripes, in.Chunk.Stripe) {
			c.problem("the intent for chunk %s names job %s, which does not repair the stripe", in.Chunk, in.Job)
		}
		s := c.stripes[in.Chunk.Stripe]
		if s != nil && (int(in.Chunk.Index) >= len(s.Chunks) || in.Base > s.Version || in.Version <= in.Base) {
			c.problem("the intent for chunk %s has version %d after %d, but the stripe has version %d", in.Chunk, in.Version, in.Base, s.Version)
		}
		if d, err := fleet.Device(c.View, in.Device); err != nil || d == nil {
			c.problem("the intent for chunk %s names device %d, which does not exist", in.Chunk, in.Device)
		}
		return nil
	})
}
