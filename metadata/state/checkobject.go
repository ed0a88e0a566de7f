package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// objectPasses check what concerns the object tier.
func (c *checker) objectPasses() []func() error {
	return []func() error{c.objects, c.newestObjects, c.badObjects, c.objectKeys, c.removedIndexes, c.objectIntents, c.objectSums, c.liveMoves, c.policies, c.objectCounts}
}

// useObjects checks the object extents of one table and counts it as a user of
// their objects.
func (c *checker) useObjects(id moraine.TableID, exts []moraine.Extent) error {
	seen := make(map[moraine.ObjectID]bool)
	for _, e := range exts {
		if e.Object == 0 {
			continue
		}
		o, err := c.object(e.Object)
		if err != nil {
			return err
		}
		if o == nil || uint64(e.StripeOffset+e.Length) > o.size {
			c.problem("table %s names bytes up to %d of object %s, which does not exist or has fewer", id, e.StripeOffset+e.Length, e.Object)
			continue
		}
		if !seen[o.id] {
			seen[o.id] = true
			c.objectUses[o.id]++
		}
	}
	return nil
}

func (c *checker) objects() error {
	return c.each(tabObject, func(key, value []byte) error {
		o := &object{id: moraine.ObjectID(lastU64(key))}
		if err := o.decode(value); err != nil {
			return err
		}
		c.objectsSeen++
		c.objectBytes += o.size
		uses := c.objectUses[o.id]
		if o.newest {
			uses++
		}
		if o.refs != uses {
			c.problem("object %s counts %d references and has %d", o.id, o.refs, uses)
		}
		if i := c.inodes[o.inode]; o.newest != (i != nil && i.object == o.id) {
			c.problem("object %s says that it is the newest of %s: %t", o.id, o.inode, o.newest)
		}
		w, err := c.owner(o.at)
		if err != nil {
			return err
		}
		if w.object != o.id {
			c.problem("object %s is at %s, which is object %s's", o.id, o.at, w.object)
		}
		j, err := c.job(o.job)
		if err != nil {
			return err
		}
		condemned := j != nil && j.live() && j.kind == wire.JobKind_JOB_KIND_DELETE_OBJECT && moraine.ObjectID(j.target) == o.id
		if o.refs == 0 && !condemned {
			c.problem("nothing refers to object %s and no job deletes it", o.id)
		}
		if o.refs > 0 && o.job != 0 {
			c.problem("object %s is in use, and job %s is to delete it", o.id, o.job)
		}
		return nil
	})
}

func (c *checker) removedIndexes() error {
	return c.each(tabRemovedIndex, func(key, value []byte) error {
		dir := placeOfKey(key[3:])
		index, ok, err := c.removedIndexBeside(dir)
		if err != nil || !ok {
			return err
		}
		w, err := c.owner(index)
		if err != nil {
			return err
		}
		if index.beside() != dir || *w == (owner{at: index}) {
			c.problem("the directory %s is recorded to have the removed index %s, which is nobody's or elsewhere", dir, index)
		}
		return nil
	})
}

func (c *checker) badObjects() error {
	return c.each(tabBadObject, func(key, value []byte) error {
		if _, err := decodeBadObject(value); err != nil {
			return err
		}
		c.badObjectsSeen++
		if o, err := c.object(moraine.ObjectID(lastU64(key))); err != nil {
			return err
		} else if o == nil || o.refs == 0 {
			c.problem("object %x is recorded as bad, and nothing refers to it", lastU64(key))
		}
		return nil
	})
}

func (c *checker) newestObjects() error {
	for _, i := range c.sorted() {
		if i.object == 0 {
			continue
		}
		o, err := c.object(i.object)
		switch {
		case err != nil:
			return err
		case o == nil || o.inode != i.id || o.generation != i.objectGen:
			c.problem("inode %s has object %s of generation %d, which does not exist or is another's", i.id, i.object, i.objectGen)
		case i.clean() && (o.size != uint64(i.size) || i.level != moraine.Object):
			c.problem("inode %s is clean with %d bytes at level %s, its object has %d", i.id, i.size, i.level, o.size)
		}
	}
	return nil
}

func (c *checker) objectKeys() error {
	unsettled := make(map[string]bool)
	err := c.each(tabObjectKey, func(key, value []byte) error {
		w := &owner{at: placeOfKey(key[3:])}
		if err := w.decode(value); err != nil {
			return err
		}
		if w.object == 0 && w.job == 0 && w.until == 0 {
			c.problem("%s is nobody's and has a record", w.at)
		}
		if w.object != 0 {
			if o, err := c.object(w.object); err != nil {
				return err
			} else if o == nil || o.at != w.at {
				c.problem("%s is object %s's, which does not exist or is elsewhere", w.at, w.object)
			}
		}
		if w.until != 0 {
			unsettled[string(c.k.unsettled(w.until, w.at))] = true
		}
		if w.job == 0 {
			return nil
		}
		in, err := c.objectIntent(w.job)
		if err != nil {
			return err
		}
		claimed := false
		if in != nil {
			for _, p := range in.places() {
				claimed = claimed || p == w.at
			}
		}
		if !claimed {
			c.problem("%s is job %s's, which has not announced to change it", w.at, w.job)
		}
		return nil
	})
	if err != nil {
		return err
	}
	c.unsettledKeys = uint64(len(unsettled))
	err = c.each(tabUnsettled, func(key, _ []byte) error {
		if !unsettled[string(key)] {
			c.problem("%s stands with the unsettled keys, and is not", placeOfKey(key[11:]))
		}
		delete(unsettled, string(key))
		return nil
	})
	if len(unsettled) > 0 {
		c.problem("%d unsettled keys do not stand with those", len(unsettled))
	}
	return err
}

func (c *checker) objectIntents() error {
	return c.each(tabObjectIntent, func(key, value []byte) error {
		in := &objectIntent{job: moraine.JobID(lastU64(key))}
		if err := in.decode(value); err != nil {
			return err
		}
		c.intentsSeen++
		j, err := c.job(in.job)
		if err != nil {
			return err
		}
		if j == nil || !j.live() || in.epoch > j.epoch {
			c.problem("the intent for %s is of job %s, which is over, or of a lease to come", in.at, in.job)
		}
		for _, p := range in.places() {
			w, err := c.owner(p)
			if err != nil {
				return err
			}
			if w.job != in.job {
				c.problem("job %s has announced to change %s, which is job %s's", in.job, p, w.job)
			}
		}
		if in.kind == wire.IntentKind_INTENT_KIND_UPLOAD {
			c.uploading[in.object] = true
		}
		return nil
	})
}

func (c *checker) objectSums() error {
	return c.each(tabObjectSums, func(key, value []byte) error {
		id := moraine.ObjectID(beU64(key[3:]))
		o, err := c.object(id)
		if err != nil {
			return err
		}
		if (o == nil) != c.uploading[id] {
			c.problem("sums are kept for object %s: recorded %t, being uploaded %t", id, o != nil, c.uploading[id])
		}
		_, err = decodeSums(value)
		return err
	})
}

// liveMoves checks the index of live moves, and what trees have yet to list.
func (c *checker) liveMoves() error {
	want := make(map[string]bool)
	var n counters
	err := c.each(tabJob, func(key, value []byte) error {
		j := &job{id: moraine.JobID(lastU64(key))}
		if err := j.decode(value); err != nil || !j.live() {
			return err
		}
		switch j.kind {
		case wire.JobKind_JOB_KIND_FLUSH:
			n[cFlushes]++
		case wire.JobKind_JOB_KIND_STAGE:
			n[cStages]++
		case wire.JobKind_JOB_KIND_EVICT:
			n[cEvictions]++
		case wire.JobKind_JOB_KIND_DELETE_OBJECT:
			n[cDeletions]++
		}
		if ofFile(j.kind) && j.ending == 0 {
			n[cMoves]++
			want[string(c.k.move(moraine.InodeID(j.target), uint8(j.kind)))] = true
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
	for _, at := range []counter{cFlushes, cStages, cEvictions, cDeletions, cMoves} {
		if have[at] != n[at] {
			c.problem("counter %d of live moves is %d and should be %d", at, have[at], n[at])
		}
	}
	if int(n[cMoves]) != len(want) {
		c.problem("%d moves are live, of %d files and kinds", n[cMoves], len(want))
	}
	err = c.each(tabMove, func(key, _ []byte) error {
		if !want[string(key)] {
			c.problem("the index of moves has %x, which no live job stands for", key)
		}
		delete(want, string(key))
		return nil
	})
	if err != nil {
		return err
	}
	if len(want) > 0 {
		c.problem("%d live moves do not stand in the index", len(want))
	}
	return c.each(tabTreeDir, func(key, value []byte) error {
		j, err := c.job(moraine.JobID(beU64(key[3:])))
		if err != nil {
			return err
		}
		if j == nil || !j.live() || j.kind != wire.JobKind_JOB_KIND_MOVE_TREE {
			c.problem("a directory is yet to be listed for job %x, which is over", beU64(key[3:]))
		}
		_, err = decodeTreeDir(value)
		return err
	})
}

func (c *checker) policies() error {
	err := c.each(tabPolicy, func(key, _ []byte) error {
		c.policiesSeen++
		if i := c.inodes[moraine.InodeID(lastU64(key))]; i == nil || !i.policy {
			c.problem("inode %x has a policy and does not know, or does not exist", lastU64(key))
		}
		return nil
	})
	for _, i := range c.sorted() {
		if !i.policy {
			continue
		}
		if _, ok, err := c.r.Get(c.k.policy(i.id)); err != nil {
			return err
		} else if !ok {
			c.problem("inode %s should have a policy", i.id)
		}
	}
	return err
}

func (c *checker) objectCounts() error {
	n, err := c.counters()
	for _, row := range []struct {
		what      string
		have, has uint64
	}{
		{"objects", n[cObjects], c.objectsSeen},
		{"bytes in objects", n[cObjectBytes], c.objectBytes},
		{"intents for keys", n[cObjectIntents], c.intentsSeen},
		{"unsettled keys", n[cUnsettled], c.unsettledKeys},
		{"policies", n[cPolicies], c.policiesSeen},
		{"bad objects", n[cBadObjects], c.badObjectsSeen},
	} {
		if row.have != row.has {
			c.problem("the counter of %s is %d, there are %d", row.what, row.have, row.has)
		}
	}
	return err
}
