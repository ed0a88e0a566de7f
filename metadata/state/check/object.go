package check

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/layout"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tier"
	"github.com/morainefs/moraine/transport/wire"
)

// objectChecks check the object tier.
type objectChecks struct {
	*nameChecks
	uses      map[moraine.ObjectID]uint32 // tables that refer to an object
	uploading map[moraine.ObjectID]bool
	// What was found, for comparison with the counters:
	seen, bytes, intents, unsettled, withPolicy, bad uint64
}

// useObjects checks the object extents of one table and counts it as a user of
// their objects.
func (c *objectChecks) useObjects(id moraine.TableID, exts []moraine.Extent) error {
	seen := make(map[moraine.ObjectID]bool)
	for _, e := range exts {
		if e.Object == 0 {
			continue
		}
		o, err := layout.Object(c.View, e.Object)
		if err != nil {
			return err
		}
		if o == nil || uint64(e.StripeOffset+e.Length) > o.Size {
			c.problem("table %s uses bytes up to %d of object %s, which is missing or smaller", id, e.StripeOffset+e.Length, e.Object)
			continue
		}
		if !seen[o.Id] {
			seen[o.Id] = true
			c.uses[o.Id]++
		}
	}
	return nil
}

func (c *objectChecks) objects() error {
	return c.each(record.TabObject, func(key, value []byte) error {
		o := &record.Object{Id: moraine.ObjectID(record.LastU64(key))}
		if err := o.Decode(value); err != nil {
			return err
		}
		c.seen++
		c.bytes += o.Size
		uses := c.uses[o.Id]
		if o.Newest {
			uses++
		}
		if o.Refs != uses {
			c.problem("object %s counts %d references, but has %d", o.Id, o.Refs, uses)
		}
		if i := c.inodes[o.Inode]; o.Newest != (i != nil && i.Object == o.Id) {
			c.problem("object %s has a wrong mark: newest of inode %s: %t", o.Id, o.Inode, o.Newest)
		}
		w, err := layout.Owner(c.View, o.At)
		if err != nil {
			return err
		}
		if w.Object != o.Id {
			c.problem("object %s is at key %s, which belongs to object %s", o.Id, o.At, w.Object)
		}
		j, err := jobs.Job(c.View, o.Job)
		if err != nil {
			return err
		}
		condemned := j != nil && j.Live() && j.Kind == wire.JobKind_JOB_KIND_DELETE_OBJECT && moraine.ObjectID(j.Target) == o.Id
		if o.Refs == 0 && !condemned {
			c.problem("nothing refers to object %s, but no job deletes it", o.Id)
		}
		if o.Refs > 0 && o.Job != 0 {
			c.problem("object %s is in use, but job %s would delete it", o.Id, o.Job)
		}
		return nil
	})
}

func (c *objectChecks) removedIndexes() error {
	return c.each(record.TabRemovedIndex, func(key, value []byte) error {
		dir := layout.PlaceOfKey(key[3:])
		index, ok, err := layout.RemovedIndexBeside(c.View, dir)
		if err != nil || !ok {
			return err
		}
		w, err := layout.Owner(c.View, index)
		if err != nil {
			return err
		}
		if index.Beside() != dir || *w == (record.Owner{At: index}) {
			c.problem("key prefix %s has the removed index %s, which belongs to no object or is elsewhere", dir, index)
		}
		return nil
	})
}

func (c *objectChecks) badObjects() error {
	return c.each(record.TabBadObject, func(key, value []byte) error {
		if _, err := record.DecodeBadObject(value); err != nil {
			return err
		}
		c.bad++
		if o, err := layout.Object(c.View, moraine.ObjectID(record.LastU64(key))); err != nil {
			return err
		} else if o == nil || o.Refs == 0 {
			c.problem("object %x has a record as bad, but nothing refers to the object", record.LastU64(key))
		}
		return nil
	})
}

func (c *objectChecks) newestObjects() error {
	for _, i := range c.sorted() {
		if i.Object == 0 {
			continue
		}
		o, err := layout.Object(c.View, i.Object)
		switch {
		case err != nil:
			return err
		case o == nil || o.Inode != i.Id || o.Generation != i.ObjectGen:
			c.problem("inode %s has object %s of generation %d, which is missing or belongs to another inode", i.Id, i.Object, i.ObjectGen)
		case i.Clean() && (o.Size != uint64(i.Size) || i.Level != moraine.Object):
			c.problem("inode %s is clean with %d bytes at level %s, but its object has %d bytes", i.Id, i.Size, i.Level, o.Size)
		}
	}
	return nil
}

func (c *objectChecks) objectKeys() error {
	unsettled := make(map[string]bool)
	err := c.each(record.TabObjectKey, func(key, value []byte) error {
		w := &record.Owner{At: layout.PlaceOfKey(key[3:])}
		if err := w.Decode(value); err != nil {
			return err
		}
		if w.Object == 0 && w.Job == 0 && w.Until == 0 {
			c.problem("key %s has a record, but neither an object nor a job", w.At)
		}
		if w.Object != 0 {
			if o, err := layout.Object(c.View, w.Object); err != nil {
				return err
			} else if o == nil || o.At != w.At {
				c.problem("key %s belongs to object %s, which is missing or at another key", w.At, w.Object)
			}
		}
		if w.Until != 0 {
			unsettled[string(c.K.Unsettled(w.Until, w.At))] = true
		}
		if w.Job == 0 {
			return nil
		}
		in, err := tier.ObjectIntent(c.View, w.Job)
		if err != nil {
			return err
		}
		claimed := false
		if in != nil {
			for _, p := range in.Places() {
				claimed = claimed || p == w.At
			}
		}
		if !claimed {
			c.problem("key %s names job %s, which has not announced a change of it", w.At, w.Job)
		}
		return nil
	})
	if err != nil {
		return err
	}
	c.unsettled = uint64(len(unsettled))
	err = c.each(record.TabUnsettled, func(key, _ []byte) error {
		if !unsettled[string(key)] {
			c.problem("key %s is in the index of unsettled keys, but is settled", layout.PlaceOfKey(key[11:]))
		}
		delete(unsettled, string(key))
		return nil
	})
	if len(unsettled) > 0 {
		c.problem("%d unsettled keys are missing from their index", len(unsettled))
	}
	return err
}

func (c *objectChecks) objectIntents() error {
	return c.each(record.TabObjectIntent, func(key, value []byte) error {
		in := &record.ObjectIntent{Job: moraine.JobID(record.LastU64(key))}
		if err := in.Decode(value); err != nil {
			return err
		}
		c.intents++
		j, err := jobs.Job(c.View, in.Job)
		if err != nil {
			return err
		}
		if j == nil || !j.Live() || in.Epoch > j.Epoch {
			c.problem("the intent for key %s names job %s, which has ended, or a lease that does not exist yet", in.At, in.Job)
		}
		for _, p := range in.Places() {
			w, err := layout.Owner(c.View, p)
			if err != nil {
				return err
			}
			if w.Job != in.Job {
				c.problem("job %s has announced a change of key %s, which names job %s", in.Job, p, w.Job)
			}
		}
		if in.Kind == wire.IntentKind_INTENT_KIND_UPLOAD {
			c.uploading[in.Object] = true
		}
		return nil
	})
}

func (c *objectChecks) objectSums() error {
	return c.each(record.TabObjectSums, func(key, value []byte) error {
		id := moraine.ObjectID(tier.BeU64(key[3:]))
		o, err := layout.Object(c.View, id)
		if err != nil {
			return err
		}
		if (o == nil) != c.uploading[id] {
			c.problem("object %s has checksums; it has a record: %t, an upload in progress: %t", id, o != nil, c.uploading[id])
		}
		_, err = record.DecodeSums(value)
		return err
	})
}

// liveMoves checks the index of live moves, and the directories that tree jobs have yet to list.
func (c *objectChecks) liveMoves() error {
	want := make(map[string]bool)
	var n record.Counters
	err := c.each(record.TabJob, func(key, value []byte) error {
		j := &record.Job{Id: moraine.JobID(record.LastU64(key))}
		if err := j.Decode(value); err != nil || !j.Live() {
			return err
		}
		if j.Stuck() {
			n[record.CStuckMoves]++
		}
		switch j.Kind {
		case wire.JobKind_JOB_KIND_FLUSH:
			n[record.CFlushes]++
		case wire.JobKind_JOB_KIND_STAGE:
			n[record.CStages]++
		case wire.JobKind_JOB_KIND_EVICT:
			n[record.CEvictions]++
		case wire.JobKind_JOB_KIND_DELETE_OBJECT:
			n[record.CDeletions]++
		}
		if record.OfFile(j.Kind) && j.Ending == 0 {
			n[record.CMoves]++
			want[string(c.K.Move(moraine.InodeID(j.Target), uint8(j.Kind)))] = true
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
	for _, at := range []record.Counter{record.CFlushes, record.CStages, record.CEvictions, record.CDeletions, record.CMoves, record.CStuckMoves} {
		if have[at] != n[at] {
			c.problem("counter %d of live moves is %d, but must be %d", at, have[at], n[at])
		}
	}
	if int(n[record.CMoves]) != len(want) {
		c.problem("the state counts %d live moves, but has %d pairs of file and kind", n[record.CMoves], len(want))
	}
	err = c.each(record.TabMove, func(key, _ []byte) error {
		if !want[string(key)] {
			c.problem("the index of moves has key %x, which belongs to no live job", key)
		}
		delete(want, string(key))
		return nil
	})
	if err != nil {
		return err
	}
	if len(want) > 0 {
		c.problem("%d live moves are missing from the index", len(want))
	}
	return c.each(record.TabTreeDir, func(key, value []byte) error {
		j, err := jobs.Job(c.View, moraine.JobID(tier.BeU64(key[3:])))
		if err != nil {
			return err
		}
		if j == nil || !j.Live() || j.Kind != wire.JobKind_JOB_KIND_MOVE_TREE {
			c.problem("job %x has ended, but has a directory to list", tier.BeU64(key[3:]))
		}
		_, err = record.DecodeTreeDir(value)
		return err
	})
}

func (c *objectChecks) policies() error {
	err := c.each(record.TabPolicy, func(key, _ []byte) error {
		c.withPolicy++
		if i := c.inodes[moraine.InodeID(record.LastU64(key))]; i == nil || !i.Policy {
			c.problem("inode %x has a policy, but is missing or not marked so", record.LastU64(key))
		}
		return nil
	})
	for _, i := range c.sorted() {
		if !i.Policy {
			continue
		}
		if _, ok, err := c.R.Get(c.K.Policy(i.Id)); err != nil {
			return err
		} else if !ok {
			c.problem("inode %s is marked as having a policy, but has none", i.Id)
		}
	}
	return err
}

func (c *objectChecks) objectCounts() error {
	n, err := c.Counters()
	for _, row := range []struct {
		what      string
		have, has uint64
	}{
		{"objects", n[record.CObjects], c.seen},
		{"bytes in objects", n[record.CObjectBytes], c.bytes},
		{"intents for keys", n[record.CObjectIntents], c.intents},
		{"unsettled keys", n[record.CUnsettled], c.unsettled},
		{"policies", n[record.CPolicies], c.withPolicy},
		{"bad objects", n[record.CBadObjects], c.bad},
	} {
		if row.have != row.has {
			c.problem("the counter of %s is %d, but the state has %d", row.what, row.have, row.has)
		}
	}
	return err
}
