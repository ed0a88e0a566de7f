package check

import (
	"bytes"
	"encoding/binary"
	"math"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/ckpt"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
)

// stepChecks check runs and checkpoints.
type stepChecks struct{ *nameChecks }

// allSteps checks checkpoints against their parts, blocks, directories and jobs.
func (c *stepChecks) allSteps() error {
	unnamed, lost, reserved := 0, uint64(0), uint64(0)
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
			if dir := c.inodes[s.Dir]; dir != nil {
				reserved += dir.Reserved
			}
		}
		run := moraine.InodeID(s.Id.Run)
		if c.inodes[run] == nil {
			run = 0 // it was removed meanwhile
		}
		if dir := c.inodes[s.Dir]; live && (dir == nil || dir.Typ != record.TypeDirectory || dir.Parent != run || dir.Nlink == 0) {
			c.problem("step %s needs a directory without a name, and has none", s.Id)
		}
		if dir := c.inodes[s.Dir]; dir != nil && dir.Step == s.Id {
			if err := c.stepLevel(s); err != nil {
				return err
			}
		}
		if s.Lost() {
			lost++
			if s.State != record.StepCommitted {
				c.problem("step %s is %s, but has lost bytes", s.Id, s.State)
			}
		}
		_, open, err := c.R.Get(c.K.OpenStep(s.Id))
		if err != nil {
			return err
		}
		row, committed, err := c.R.Get(c.K.RunCommit(s.Id))
		if err != nil {
			return err
		}
		if committed && !bytes.Equal(row, ckpt.CommitRow(s)) {
			c.problem("step %s has row %x in the list of its run, want %x", s.Id, row, ckpt.CommitRow(s))
		}
		if open != (s.State == record.StepOpen) || committed != (s.State == record.StepCommitted) {
			c.problem("step %s is %s, but the indexes have open %t and committed %t", s.Id, s.State, open, committed)
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
	if have[record.CReserved] != reserved {
		c.problem("the state counts %d reserved bytes, but has %d", have[record.CReserved], reserved)
	}
	if have[record.CLostSteps] != lost {
		c.problem("the state counts %d lost steps, but has %d", have[record.CLostSteps], lost)
	}
	clones, err := c.treeClones()
	if unnamed+clones != c.detached {
		c.problem("%d directories have no name, but %d steps and %d tree clones are unfinished", c.detached, unnamed, clones)
	}
	return err
}

// stepLevel checks what a step counts of its files, and its level.
func (c *stepChecks) stepLevel(s *record.Step) error {
	want := record.Step{}
	names, entries, err := tree.ListDir(c.View, s.Dir, "", math.MaxInt)
	if err != nil {
		return err
	}
	for n := range names {
		if i := c.inodes[entries[n].Inode]; i != nil && i.Sealed {
			want.AddFile(i.Safety())
		}
	}
	if s.Files != want.Files || s.BelowNVMe != want.BelowNVMe || s.BelowObject != want.BelowObject {
		c.problem("step %s counts %d files, %d below nvme, %d below object, but has %d, %d, %d", s.Id,
			s.Files, s.BelowNVMe, s.BelowObject, want.Files, want.BelowNVMe, want.BelowObject)
	}
	if s.State == record.StepCommitted && s.Level != s.FilesLevel() {
		c.problem("step %s is at %s, but its files at %s", s.Id, s.Level, s.FilesLevel())
	}
	return nil
}

// liveStep checks a step that is being saved or checked.
func (c *stepChecks) liveStep(s *record.Step) error {
	sealed, claims, reserved := uint32(0), uint32(0), uint64(0)
	for rank := range s.World {
		p, err := ckpt.PartRecord(c.View, s.Id, rank)
		if err != nil {
			return err
		}
		if p != nil && p.Sealed {
			sealed++
		}
		if p != nil {
			reserved += p.Reserved
			claims += p.Claims
		}
		if p != nil && !p.Sealed {
			_, ok, err := c.R.Get(c.K.SessionStep(p.Session, s.Id, rank))
			if err != nil {
				return err
			}
			if !ok || !c.known(p.Session) {
				c.problem("step %s waits for rank %d, whose session %s has ended or has no row for it", s.Id, rank, p.Session)
			}
		}
	}
	if dir := c.inodes[s.Dir]; dir != nil && dir.Reserved != reserved {
		c.problem("step %s reserves %d bytes, but its ranks announced %d", s.Id, dir.Reserved, reserved)
	}
	if err := c.liveClaims(s, claims); err != nil {
		return err
	}
	missing, err := ckpt.MissingRanks(c.View, s)
	if err != nil {
		return err
	}
	if sealed != s.Sealed || len(missing) != min(int(s.World-sealed), ckpt.MaxMissing) || (s.State == record.StepSealed) != (sealed == s.World) {
		c.problem("step %s (%s) counts %d sealed ranks of %d, but has %d and lacks %d", s.Id, s.State, s.Sealed, s.World, sealed, len(missing))
	}
	if s.State == record.StepOpen && s.Job == 0 {
		return nil // the last seal queues the job
	}
	j, err := jobs.Job(c.View, s.Job)
	if err != nil {
		return err
	}
	if j == nil || !j.Live() || j.Step != s.Id {
		c.problem("step %s is %s, but job %s does not check it", s.Id, s.State, s.Job)
	}
	return nil
}

// stepIndexes checks the indexes of steps.
func (c *stepChecks) stepIndexes() error {
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
			c.problem("session %s has ended, but steps wait for it", id)
		}
		return nil
	})
}

// attempts checks runs against their attempts and the sessions that joined them.
func (c *stepChecks) attempts() error {
	committed := make(map[moraine.RunID]record.Run)
	err := c.each(record.TabRunCommit, func(key, value []byte) error {
		r := committed[ckpt.StepOfKey(key).Run]
		r.AddStep(moraine.Level(value[len(value)-1]), 1)
		committed[ckpt.StepOfKey(key).Run] = r
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
		if have := committed[r.Id]; r.Committed != have.Committed || r.AtNVMe != have.AtNVMe || r.AtObject != have.AtObject {
			c.problem("run %s counts %d committed steps, %d at nvme, %d at object, but has %d, %d, %d", moraine.InodeID(r.Id),
				r.Committed, r.AtNVMe, r.AtObject, have.Committed, have.AtNVMe, have.AtObject)
		}
		var stepped, before uint32 // the latest earlier attempt with a committed step, and that or one with a parent
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
				c.problem("attempt %d of run %s contradicts its rows: launch %q is attempt %d, the parent is %s", n, moraine.InodeID(r.Id), a.Launch, known, a.Parent)
			}
			if a.Stepped < stepped || a.Before < before || a.Stepped > a.Before || a.Before >= n {
				c.problem("attempt %d of run %s points back to attempts %d and %d, past %d and %d", n, moraine.InodeID(r.Id), a.Stepped, a.Before, stepped, before)
			}
			rows, err := c.KeysUnder(record.Be32(c.K.RunCommits(r.Id), n), 1)
			if err != nil {
				return err
			}
			if len(rows) > 0 {
				stepped, before = n, n
			} else if a.Resolved {
				before = n
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
			c.problem("session %s joined attempt %d of run %s, which has no row for it, or the session has ended", id, n, moraine.InodeID(r))
		}
		return err
	})
}
