package check

import (
	"encoding/binary"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/ckpt"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// clusterPasses check what concerns devices, repair, jobs and checkpoints.
func (c *checker) clusterPasses() []func() error {
	return []func() error{c.fleetCounts, c.graves, c.repairs, c.intents, c.jobIndexes, c.allSteps, c.stepIndexes, c.attempts, c.seals, c.stepLeases}
}

func (c *checker) fleetCounts() error {
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
				c.problem("host %s lists device %d, which it does not have, or another has too", h.Id, id)
				continue
			}
			on[id] = h.Id
			if d.State != record.DeviceRetired {
				live++
			}
		}
		if live != h.Live {
			c.problem("host %s counts %d devices and has %d", h.Id, h.Live, live)
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
		c.problem("the fleet counts %+v and is %+v", have, want)
	}
	var leaked uint64
	err = fleet.EachDevice(c.View, func(d *record.Device) {
		if on[d.Id] != d.Host {
			c.problem("device %d is on host %q, which does not list it", d.Id, d.Host)
		}
		leaked += d.UnknownBytes
	})
	if n, _ := c.Counters(); n[record.CLeakedBytes] != leaked {
		c.problem("%d bytes are counted as leaked and %d are", n[record.CLeakedBytes], leaked)
	}
	return err
}

// graves checks the tables of tombstones against each other, and their totals.
func (c *checker) graves() error {
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
			return c.grave(id, chunk, s, binary.BigEndian.Uint64(key[7:]))
		})
		if err != nil {
			return err
		}
	}
	n, _ := c.Counters()
	if n[record.CPendingBytes] != bytes || n[record.CKeptBytes] != kept {
		c.problem("%d bytes are counted as pending and %d are, %d as kept and %d are", n[record.CPendingBytes], bytes, n[record.CKeptBytes], kept)
	}
	err := c.each(record.TabKeptOn, func(key, value []byte) error {
		k, err := record.DecodeKeptOn(value)
		if want := on[fleet.DeviceOfKey(key)]; err == nil && (k.Bytes != want.Bytes || k.Chunks != want.Chunks) {
			c.problem("device %d is said to keep %d chunks of %d bytes, and keeps %d of %d", fleet.DeviceOfKey(key), k.Chunks, k.Bytes, want.Chunks, want.Bytes)
		}
		delete(on, fleet.DeviceOfKey(key))
		return err
	})
	if err != nil {
		return err
	}
	for id := range on {
		c.problem("device %d keeps chunks that are not counted", id)
	}
	return c.each(record.TabTombstoneAt, func(key, _ []byte) error {
		if !places[string(key)] {
			c.problem("place %x has no tombstone", key)
		}
		return nil
	})
}

// grave checks one tombstone.
func (c *checker) grave(id moraine.DeviceID, chunk moraine.ChunkID, s record.Tombstone, died uint64) error {
	at, since, ok, err := fleet.TombstoneOf(c.View, id, chunk)
	if err != nil {
		return err
	}
	if !ok || at != s || since != died {
		c.problem("the tombstone of %s on device %d is not found by its chunk", chunk, id)
	}
	if st := c.stripes[chunk.Stripe]; st != nil && s.Below > st.Version+1 {
		c.problem("the tombstone of %s on device %d is for versions below %d, the stripe has %d", chunk, id, s.Below, st.Version)
	}
	return nil
}

// repairs checks the repair queue against its order, its counters and the jobs.
func (c *checker) repairs() error {
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
			c.problem("stripe %s waits for repair and does not exist", i.Stripe)
		}
		if i.Balance && i.Job == 0 {
			c.problem("stripe %s is moved by no job", i.Stripe)
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
			c.problem("stripe %s is under repair by job %s, which does not repair it", i.Stripe, i.Job)
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
			c.problem("counter %d of the repair queue is %d and should be %d", n, have[n], want[n])
		}
	}
	for n := record.CSpare; n <= record.CSpareMany; n++ {
		if have[n] != want[n] {
			c.problem("%d stripes are counted with %d hosts to spare, %d have", have[n], n-record.CSpare, want[n])
		}
	}
	err = c.each(record.TabRepair, func(key, _ []byte) error {
		if !waiting[string(key)] {
			c.problem("the repair queue has %x, which waits for nothing", key)
		}
		delete(waiting, string(key))
		return nil
	})
	if len(waiting) > 0 {
		c.problem("%d stripes wait for repair and do not stand in the queue", len(waiting))
	}
	return err
}

// intents checks that each live intent belongs to a live repair with its stripe.
func (c *checker) intents() error {
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
			c.problem("intent %s is of job %s, which does not repair it", in.Chunk, in.Job)
		}
		s := c.stripes[in.Chunk.Stripe]
		if s != nil && (int(in.Chunk.Index) >= len(s.Chunks) || in.Base > s.Version || in.Version <= in.Base) {
			c.problem("intent %s has version %d after %d, the stripe %d", in.Chunk, in.Version, in.Base, s.Version)
		}
		if d, err := fleet.Device(c.View, in.Device); err != nil || d == nil {
			c.problem("intent %s is for device %d, which does not exist", in.Chunk, in.Device)
		}
		return nil
	})
}

// allSteps checks checkpoints against their parts, blocks, directories and jobs.
func (c *checker) allSteps() error {
	unnamed, lost := 0, uint64(0)
	err := c.each(record.TabStep, func(key, value []byte) error {
		s := &record.Step{Id: ckpt.StepOfKey(key)}
		if err := s.Decode(value); err != nil {
			return err
		}
		live := s.State == record.StepOpen || s.State == record.StepSealed
		if live {
			unnamed++
			if err := c.liveStep(s); err != nil {
				return err
			}
		}
		if dir := c.inodes[s.Dir]; live && (dir == nil || dir.Typ != record.TypeDirectory || dir.Parent != moraine.InodeID(s.Id.Run) || dir.Nlink == 0) {
			c.problem("step %s has no directory without a name", s.Id)
		}
		if s.Lost() {
			lost++
			if s.State != record.StepCommitted {
				c.problem("step %s is %s and has lost bytes", s.Id, s.State)
			}
		}
		_, open, err := c.R.Get(c.K.OpenStep(s.Id))
		if err != nil {
			return err
		}
		_, committed, err := c.R.Get(c.K.RunCommit(s.Id))
		if err != nil {
			return err
		}
		if open != (s.State == record.StepOpen) || committed != (s.State == record.StepCommitted) {
			c.problem("step %s is %s; open %t, committed %t by the indexes", s.Id, s.State, open, committed)
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
	if have[record.CLostSteps] != lost {
		c.problem("%d steps are counted as lost, %d are", have[record.CLostSteps], lost)
	}
	clones, err := c.treeClones()
	if unnamed+clones != c.detached {
		c.problem("%d directories have no name, %d steps are being saved and %d trees cloned", c.detached, unnamed, clones)
	}
	return err
}

// treeClones checks the rows of CLONE_TREE jobs and returns the number of these jobs. Each has a
// directory without a name.
func (c *checker) treeClones() (n int, err error) {
	live := make(map[moraine.JobID]bool)
	err = c.each(record.TabJob, func(key, value []byte) error {
		j := &record.Job{Id: moraine.JobID(record.LastU64(key))}
		if err := j.Decode(value); err != nil || j.Kind != wire.JobKind_JOB_KIND_CLONE_TREE || !j.Live() {
			return err
		}
		n++
		live[j.Id] = true
		t := &record.TreeClone{}
		if err := t.Decode(j.Cursor); err != nil {
			return err
		}
		if top := c.inodes[t.Top]; top == nil || top.Typ != record.TypeDirectory || top.Parent != 0 || top.Nlink == 0 {
			c.problem("job %s clones a tree to %s, which is no directory without a name", j.Id, t.Top)
		}
		return nil
	})
	if err != nil {
		return n, err
	}
	return n, c.each(record.TabCloneDir, func(key, value []byte) error {
		if id := moraine.JobID(record.LastU64(key[:11])); !live[id] {
			c.problem("job %s has directories to clone, and is over", id)
		}
		row := &record.ClonedDir{}
		return row.Decode(value)
	})
}

// concats checks the rows of CONCAT jobs and returns the files that they build, which have no name
// and no owner.
func (c *checker) concats() (map[moraine.InodeID]bool, error) {
	making := make(map[moraine.InodeID]bool)
	left := make(map[moraine.JobID]uint64) // number of ranges left
	var ending map[moraine.JobID]bool
	err := c.each(record.TabJob, func(key, value []byte) error {
		j := &record.Job{Id: moraine.JobID(record.LastU64(key))}
		if err := j.Decode(value); err != nil || j.Kind != wire.JobKind_JOB_KIND_CONCAT || !j.Live() {
			return err
		}
		cursor := &record.ConcatJob{}
		if err := cursor.Decode(j.Cursor); err != nil {
			return err
		}
		i := c.inodes[moraine.InodeID(j.Target)]
		if i == nil || i.Typ != record.TypeFile || i.Nlink != 0 || i.Owner != 0 {
			c.problem("job %s makes %s, which is no file without a name", j.Id, moraine.InodeID(j.Target))
		}
		making[moraine.InodeID(j.Target)] = true
		left[j.Id] = cursor.Ranges - cursor.Next/record.ConcatRow*record.ConcatRow // consumed ranges of the present row stay in it until the row ends
		if j.Ending != 0 {
			if ending == nil {
				ending = make(map[moraine.JobID]bool)
			}
			ending[j.Id] = true
		} else if cursor.Next == cursor.Ranges {
			left[j.Id] = 0
		}
		return nil
	})
	if err != nil {
		return making, err
	}
	have := make(map[moraine.JobID]uint64)
	err = c.each(record.TabConcatRow, func(key, value []byte) error {
		row, err := record.DecodeConcatRow(value)
		have[moraine.JobID(record.LastU64(key[:11]))] += uint64(len(row))
		return err
	})
	for id, n := range have {
		if n > left[id] || n < left[id] && !ending[id] {
			c.problem("job %s has rows of %d ranges, and %d to lay", id, n, left[id])
		}
		delete(left, id)
	}
	for id, n := range left {
		if n > 0 && !ending[id] {
			c.problem("job %s has no rows of the %d ranges that it has to lay", id, n)
		}
	}
	return making, err
}

// liveStep checks a step that is being saved or checked.
func (c *checker) liveStep(s *record.Step) error {
	sealed := uint32(0)
	for rank := range s.World {
		p, err := ckpt.PartRecord(c.View, s.Id, rank)
		if err != nil {
			return err
		}
		if p != nil && p.Sealed {
			sealed++
		}
		if p != nil && !p.Sealed {
			_, ok, err := c.R.Get(c.K.SessionStep(p.Session, s.Id, rank))
			if err != nil {
				return err
			}
			if !ok || !c.known(p.Session) {
				c.problem("step %s waits for rank %d, whose session %s is gone or does not know", s.Id, rank, p.Session)
			}
		}
	}
	missing, err := ckpt.MissingRanks(c.View, s)
	if err != nil {
		return err
	}
	if sealed != s.Sealed || len(missing) != min(int(s.World-sealed), ckpt.MaxMissing) || (s.State == record.StepSealed) != (sealed == s.World) {
		c.problem("step %s (%s) counts %d sealed ranks of %d, has %d, and misses %d", s.Id, s.State, s.Sealed, s.World, sealed, len(missing))
	}
	if s.State != record.StepSealed {
		return nil
	}
	j, err := jobs.Job(c.View, s.Job)
	if err != nil {
		return err
	}
	if j == nil || !j.Live() || j.Step != s.Id {
		c.problem("step %s is sealed and job %s does not check it", s.Id, s.Job)
	}
	return nil
}

// stepIndexes checks the indexes of steps.
func (c *checker) stepIndexes() error {
	for _, table := range []byte{record.TabOpenStep, record.TabRunCommit} {
		err := c.each(table, func(key, _ []byte) error {
			id := ckpt.StepOfKey(key)
			if table == record.TabRunCommit {
				id.Step = ^id.Step
			}
			s, err := tree.StepRecord(c.View, id)
			if err == nil && s == nil {
				c.problem("index %x has step %s, which does not exist", table, id)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return c.each(record.TabSessionStep, func(key, _ []byte) error {
		if id := moraine.SessionID(binary.BigEndian.Uint64(key[3:])); !c.known(id) {
			c.problem("session %s is gone and steps wait for it", id)
		}
		return nil
	})
}

// attempts checks runs against their attempts and the sessions that joined them.
func (c *checker) attempts() error {
	committed := make(map[moraine.RunID]uint64)
	err := c.each(record.TabRunCommit, func(key, _ []byte) error {
		committed[ckpt.StepOfKey(key).Run]++
		return nil
	})
	if err != nil {
		return err
	}
	err = c.each(record.TabRun, func(key, value []byte) error {
		r := &record.Run{Id: moraine.RunID(record.LastU64(key))}
		if err := r.Decode(value); err != nil {
			return err
		}
		if r.Committed != committed[r.Id] {
			c.problem("run %s counts %d committed steps and has %d", moraine.InodeID(r.Id), r.Committed, committed[r.Id])
		}
		for n := uint32(1); n <= r.Attempt; n++ {
			a, err := ckpt.Attempt(c.View, r.Id, n)
			if err != nil {
				return err
			}
			known, err := ckpt.AttemptOf(c.View, r.Id, a.Launch)
			if err != nil {
				return err
			}
			if known != n || a.Parent.Attempt >= n {
				c.problem("attempt %d of run %s: launch %q is attempt %d, the parent %s", n, moraine.InodeID(r.Id), a.Launch, known, a.Parent)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return c.each(record.TabSessRun, func(key, _ []byte) error {
		id := moraine.SessionID(binary.BigEndian.Uint64(key[3:]))
		r, n := moraine.RunID(binary.BigEndian.Uint64(key[11:])), binary.BigEndian.Uint32(key[19:])
		_, ok, err := c.R.Get(c.K.AttemptSession(r, n, id))
		if err == nil && (!ok || !c.known(id)) {
			c.problem("session %s joined attempt %d of run %s, which does not know, or the session is gone", id, n, moraine.InodeID(r))
		}
		return err
	})
}
