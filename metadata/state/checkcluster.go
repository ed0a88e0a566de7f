package state

import (
	"encoding/binary"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// clusterPasses check what concerns devices, repair, jobs and checkpoints.
func (c *checker) clusterPasses() []func() error {
	return []func() error{c.fleetCounts, c.graves, c.repairs, c.intents, c.jobIndexes, c.allSteps, c.stepIndexes, c.attempts, c.seals, c.stepLeases}
}

func (c *checker) fleetCounts() error {
	var want fleet
	on := make(map[moraine.DeviceID]string)
	err := c.each(tabHost, func(key, value []byte) error {
		h := &host{id: string(key[3:])}
		if err := h.decode(value); err != nil {
			return err
		}
		live := uint32(0)
		for _, id := range h.devices {
			d, err := c.device(id)
			if err != nil {
				return err
			}
			if on[id] != "" || d == nil || d.host != h.id {
				c.problem("host %s lists device %d, which it does not have, or another has too", h.id, id)
				continue
			}
			on[id] = h.id
			if d.state != deviceRetired {
				live++
			}
		}
		if live != h.live {
			c.problem("host %s counts %d devices and has %d", h.id, h.live, live)
		}
		want.devices += uint64(live)
		if live > 0 {
			want.hosts++
		}
		return nil
	})
	if err != nil {
		return err
	}
	have, err := c.fleet()
	if err != nil {
		return err
	}
	if have != want {
		c.problem("the fleet counts %+v and is %+v", have, want)
	}
	var leaked uint64
	err = c.devices(func(d *device) {
		if on[d.id] != d.host {
			c.problem("device %d is on host %q, which does not list it", d.id, d.host)
		}
		leaked += d.unknownBytes
	})
	if n, _ := c.counters(); n[cLeakedBytes] != leaked {
		c.problem("%d bytes are counted as leaked and %d are", n[cLeakedBytes], leaked)
	}
	return err
}

// graves checks the tables of tombstones against each other, and what is counted of them.
func (c *checker) graves() error {
	var bytes, kept uint64
	places, on := make(map[string]bool), make(map[moraine.DeviceID]keptOn)
	for _, tab := range []byte{tabTombstone, tabKept} {
		err := c.each(tab, func(key, value []byte) error {
			s, err := decodeTombstone(value)
			if err != nil {
				return err
			}
			s.kept = tab == tabKept
			bytes += uint64(s.bytes)
			id, chunk := deviceOfKey(key), chunkOfKey(key)
			if s.kept {
				kept += uint64(s.bytes)
				k := on[id]
				on[id] = keptOn{bytes: k.bytes + uint64(s.bytes), chunks: k.chunks + 1}
			}
			places[string(c.k.tombstoneAt(id, chunk))] = true
			return c.grave(id, chunk, s, binary.BigEndian.Uint64(key[7:]))
		})
		if err != nil {
			return err
		}
	}
	n, _ := c.counters()
	if n[cPendingBytes] != bytes || n[cKeptBytes] != kept {
		c.problem("%d bytes are counted as pending and %d are, %d as kept and %d are", n[cPendingBytes], bytes, n[cKeptBytes], kept)
	}
	err := c.each(tabKeptOn, func(key, value []byte) error {
		k, err := decodeKeptOn(value)
		if want := on[deviceOfKey(key)]; err == nil && (k.bytes != want.bytes || k.chunks != want.chunks) {
			c.problem("device %d is said to keep %d chunks of %d bytes, and keeps %d of %d", deviceOfKey(key), k.chunks, k.bytes, want.chunks, want.bytes)
		}
		delete(on, deviceOfKey(key))
		return err
	})
	if err != nil {
		return err
	}
	for id := range on {
		c.problem("device %d keeps chunks that are not counted", id)
	}
	return c.each(tabTombstoneAt, func(key, _ []byte) error {
		if !places[string(key)] {
			c.problem("place %x has no tombstone", key)
		}
		return nil
	})
}

// grave checks one tombstone.
func (c *checker) grave(id moraine.DeviceID, chunk moraine.ChunkID, s tombstone, died uint64) error {
	at, since, ok, err := c.tombstoneOf(id, chunk)
	if err != nil {
		return err
	}
	if !ok || at != s || since != died {
		c.problem("the tombstone of %s on device %d is not found by its chunk", chunk, id)
	}
	if st := c.stripes[chunk.Stripe]; st != nil && s.below > st.Version+1 {
		c.problem("the tombstone of %s on device %d is for versions below %d, the stripe has %d", chunk, id, s.below, st.Version)
	}
	return nil
}

// repairs checks the repair queue against its order, its counters and the jobs.
func (c *checker) repairs() error {
	var want counters
	waiting := make(map[string]bool)
	err := c.each(tabRepairStripe, func(key, value []byte) error {
		i := &repairItem{stripe: moraine.StripeID(lastU64(key))}
		if err := i.decode(value); err != nil {
			return err
		}
		t := tx{count: want}
		t.countRepair(i, 1)
		want = t.count
		if c.stripes[i.stripe] == nil {
			c.problem("stripe %s waits for repair and does not exist", i.stripe)
		}
		if i.balance && i.job == 0 {
			c.problem("stripe %s is moved by no job", i.stripe)
		}
		if i.job == 0 {
			waiting[string(c.k.repair(i.spare, i.stripe))] = true
			return nil
		}
		j, err := c.job(i.job)
		if err != nil {
			return err
		}
		if j == nil || !j.live() || !slices.Contains(j.stripes, i.stripe) {
			c.problem("stripe %s is under repair by job %s, which does not repair it", i.stripe, i.job)
		}
		return nil
	})
	if err != nil {
		return err
	}
	have, err := c.counters()
	if err != nil {
		return err
	}
	for _, n := range []counter{cRepairQueued, cRepairRunning, cLostStripes, cRebalancing} {
		if have[n] != want[n] {
			c.problem("counter %d of the repair queue is %d and should be %d", n, have[n], want[n])
		}
	}
	for n := cSpare; n <= cSpareMany; n++ {
		if have[n] != want[n] {
			c.problem("%d stripes are counted with %d hosts to spare, %d have", have[n], n-cSpare, want[n])
		}
	}
	err = c.each(tabRepair, func(key, _ []byte) error {
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

// intents checks that each live intent is of a live repair that has its stripe.
func (c *checker) intents() error {
	return c.each(tabIntent, func(key, value []byte) error {
		in := &intent{chunk: chunkOfKey(key)}
		if err := in.decode(value); err != nil {
			return err
		}
		j, err := c.job(in.job)
		if err != nil {
			return err
		}
		if j == nil || !j.live() || !slices.Contains(j.stripes, in.chunk.Stripe) {
			c.problem("intent %s is of job %s, which does not repair it", in.chunk, in.job)
		}
		s := c.stripes[in.chunk.Stripe]
		if s != nil && (int(in.chunk.Index) >= len(s.Chunks) || in.base > s.Version || in.version <= in.base) {
			c.problem("intent %s has version %d after %d, the stripe %d", in.chunk, in.version, in.base, s.Version)
		}
		if d, err := c.device(in.device); err != nil || d == nil {
			c.problem("intent %s is for device %d, which does not exist", in.chunk, in.device)
		}
		return nil
	})
}

// allSteps checks checkpoints against their parts, blocks, directories and jobs.
func (c *checker) allSteps() error {
	unnamed, lost := 0, uint64(0)
	err := c.each(tabStep, func(key, value []byte) error {
		s := &step{id: stepOfKey(key)}
		if err := s.decode(value); err != nil {
			return err
		}
		live := s.state == stepOpen || s.state == stepSealed
		if live {
			unnamed++
			if err := c.liveStep(s); err != nil {
				return err
			}
		}
		if dir := c.inodes[s.dir]; live && (dir == nil || dir.typ != typeDirectory || dir.parent != moraine.InodeID(s.id.run) || dir.nlink == 0) {
			c.problem("step %s has no directory without a name", s.id)
		}
		if s.lost() {
			lost++
			if s.state != stepCommitted {
				c.problem("step %s is %s and has lost bytes", s.id, s.state)
			}
		}
		_, open, err := c.r.Get(c.k.openStep(s.id))
		if err != nil {
			return err
		}
		_, committed, err := c.r.Get(c.k.runCommit(s.id))
		if err != nil {
			return err
		}
		if open != (s.state == stepOpen) || committed != (s.state == stepCommitted) {
			c.problem("step %s is %s; open %t, committed %t by the indexes", s.id, s.state, open, committed)
		}
		return nil
	})
	if err != nil {
		return err
	}
	have, err := c.counters()
	if err != nil {
		return err
	}
	if have[cLostSteps] != lost {
		c.problem("%d steps are counted as lost, %d are", have[cLostSteps], lost)
	}
	clones, err := c.treeClones()
	if unnamed+clones != c.detached {
		c.problem("%d directories have no name, %d steps are being saved and %d trees cloned", c.detached, unnamed, clones)
	}
	return err
}

// treeClones checks the rows of jobs that clone trees, and returns how many of
// those there are: each has a directory without a name.
func (c *checker) treeClones() (n int, err error) {
	live := make(map[moraine.JobID]bool)
	err = c.each(tabJob, func(key, value []byte) error {
		j := &job{id: moraine.JobID(lastU64(key))}
		if err := j.decode(value); err != nil || j.kind != wire.JobKind_JOB_KIND_CLONE_TREE || !j.live() {
			return err
		}
		n++
		live[j.id] = true
		t := &treeClone{}
		if err := t.decode(j.cursor); err != nil {
			return err
		}
		if top := c.inodes[t.top]; top == nil || top.typ != typeDirectory || top.parent != 0 || top.nlink == 0 {
			c.problem("job %s clones a tree to %s, which is no directory without a name", j.id, t.top)
		}
		return nil
	})
	if err != nil {
		return n, err
	}
	return n, c.each(tabCloneDir, func(key, value []byte) error {
		if id := moraine.JobID(lastU64(key[:11])); !live[id] {
			c.problem("job %s has directories to clone, and is over", id)
		}
		row := &clonedDir{}
		return row.decode(value)
	})
}

// concats checks the rows of jobs that concatenate, and returns the files that
// they make: those have no name and no owner.
func (c *checker) concats() (map[moraine.InodeID]bool, error) {
	making := make(map[moraine.InodeID]bool)
	left := make(map[moraine.JobID]uint64) // ranges
	var ending map[moraine.JobID]bool
	err := c.each(tabJob, func(key, value []byte) error {
		j := &job{id: moraine.JobID(lastU64(key))}
		if err := j.decode(value); err != nil || j.kind != wire.JobKind_JOB_KIND_CONCAT || !j.live() {
			return err
		}
		cursor := &concatJob{}
		if err := cursor.decode(j.cursor); err != nil {
			return err
		}
		i := c.inodes[moraine.InodeID(j.target)]
		if i == nil || i.typ != typeFile || i.nlink != 0 || i.owner != 0 {
			c.problem("job %s makes %s, which is no file without a name", j.id, moraine.InodeID(j.target))
		}
		making[moraine.InodeID(j.target)] = true
		left[j.id] = cursor.ranges - cursor.next/concatRow*concatRow // those of the present row are in it to its end
		if j.ending != 0 {
			if ending == nil {
				ending = make(map[moraine.JobID]bool)
			}
			ending[j.id] = true
		} else if cursor.next == cursor.ranges {
			left[j.id] = 0
		}
		return nil
	})
	if err != nil {
		return making, err
	}
	have := make(map[moraine.JobID]uint64)
	err = c.each(tabConcatRow, func(key, value []byte) error {
		row, err := decodeConcatRow(value)
		have[moraine.JobID(lastU64(key[:11]))] += uint64(len(row))
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
func (c *checker) liveStep(s *step) error {
	sealed := uint32(0)
	for rank := range s.world {
		p, err := c.partRecord(s.id, rank)
		if err != nil {
			return err
		}
		if p != nil && p.sealed {
			sealed++
		}
		if p != nil && !p.sealed {
			_, ok, err := c.r.Get(c.k.sessionStep(p.session, s.id, rank))
			if err != nil {
				return err
			}
			if !ok || !c.known(p.session) {
				c.problem("step %s waits for rank %d, whose session %s is gone or does not know", s.id, rank, p.session)
			}
		}
	}
	missing, err := c.missingRanks(s)
	if err != nil {
		return err
	}
	if sealed != s.sealed || len(missing) != min(int(s.world-sealed), MaxMissing) || (s.state == stepSealed) != (sealed == s.world) {
		c.problem("step %s (%s) counts %d sealed ranks of %d, has %d, and misses %d", s.id, s.state, s.sealed, s.world, sealed, len(missing))
	}
	if s.state != stepSealed {
		return nil
	}
	j, err := c.job(s.job)
	if err != nil {
		return err
	}
	if j == nil || !j.live() || j.step != s.id {
		c.problem("step %s is sealed and job %s does not check it", s.id, s.job)
	}
	return nil
}

// stepIndexes checks what points at steps.
func (c *checker) stepIndexes() error {
	for _, table := range []byte{tabOpenStep, tabRunCommit} {
		err := c.each(table, func(key, _ []byte) error {
			id := stepOfKey(key)
			if table == tabRunCommit {
				id.step = ^id.step
			}
			s, err := c.stepRecord(id)
			if err == nil && s == nil {
				c.problem("index %x has step %s, which does not exist", table, id)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return c.each(tabSessionStep, func(key, _ []byte) error {
		if id := moraine.SessionID(binary.BigEndian.Uint64(key[3:])); !c.known(id) {
			c.problem("session %s is gone and steps wait for it", id)
		}
		return nil
	})
}

// attempts checks runs against their attempts, and who joined them.
func (c *checker) attempts() error {
	committed := make(map[moraine.RunID]uint64)
	err := c.each(tabRunCommit, func(key, _ []byte) error {
		committed[stepOfKey(key).run]++
		return nil
	})
	if err != nil {
		return err
	}
	err = c.each(tabRun, func(key, value []byte) error {
		r := &run{id: moraine.RunID(lastU64(key))}
		if err := r.decode(value); err != nil {
			return err
		}
		if r.committed != committed[r.id] {
			c.problem("run %s counts %d committed steps and has %d", moraine.InodeID(r.id), r.committed, committed[r.id])
		}
		for n := uint32(1); n <= r.attempt; n++ {
			a, err := c.attempt(r.id, n)
			if err != nil {
				return err
			}
			known, err := c.attemptOf(r.id, a.launch)
			if err != nil {
				return err
			}
			if known != n || a.parent.attempt >= n {
				c.problem("attempt %d of run %s: launch %q is attempt %d, the parent %s", n, moraine.InodeID(r.id), a.launch, known, a.parent)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return c.each(tabSessRun, func(key, _ []byte) error {
		id := moraine.SessionID(binary.BigEndian.Uint64(key[3:]))
		r, n := moraine.RunID(binary.BigEndian.Uint64(key[11:])), binary.BigEndian.Uint32(key[19:])
		_, ok, err := c.r.Get(c.k.attemptSession(r, n, id))
		if err == nil && (!ok || !c.known(id)) {
			c.problem("session %s joined attempt %d of run %s, which does not know, or the session is gone", id, n, moraine.InodeID(r))
		}
		return err
	})
}
