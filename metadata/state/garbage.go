package state

import (
	"encoding/binary"
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// discardBudget is how many records a command may have written up to which it
// lets a content die itself; a job takes the rest.
const discardBudget = 384

// source is where the bytes of an extent are: a stripe, or an object.
type source struct {
	stripe moraine.StripeID
	object moraine.ObjectID
}

func sourceOf(e moraine.Extent) source { return source{e.Stripe, e.Object} }

// tableUse is a table that refers to a stripe or an object.
type tableUse struct {
	source
	table moraine.TableID
}

// use counts table as a user of a source, once a command. The table must not
// have referred to it before the command.
func (t *tx) use(s source, table moraine.TableID) error {
	use := tableUse{s, table}
	if _, ok := t.uses[use]; ok {
		return nil
	}
	if t.uses == nil {
		t.uses = make(map[tableUse]struct{}, 8)
	}
	t.uses[use] = struct{}{}
	if s.object != 0 {
		return t.useObject(s.object)
	}
	return t.useStripe(s.stripe)
}

// shrink notes that a table names left of the bytes of a source, and no longer
// was of them. Objects are whole or dead.
func (t *tx) shrink(s source, was, left int64) error {
	if s.object != 0 {
		return nil
	}
	return t.shrinkStripe(s.stripe, was, left)
}

// releaseSource counts one user less.
func (m *Machine) releaseSource(t *tx, s source) error {
	if s.object != 0 {
		return m.releaseObject(t, s.object)
	}
	return m.releaseStripe(t, s.stripe)
}

func (t *tx) useStripe(id moraine.StripeID) error {
	s, err := t.mustStripe(id)
	if err != nil {
		return err
	}
	s.RefCount++
	t.put(t.k.stripe(id), record.EncodeStripe(s))
	return nil
}

// mustStripe returns a stripe that an extent refers to: its absence is damage.
func (t *tx) mustStripe(id moraine.StripeID) (*moraine.Stripe, error) {
	s, err := t.stripe(id)
	if err == nil && s == nil {
		err = &moraine.Error{Op: "stripe", Ref: id.String(), Kind: moraine.Corrupt, Err: fmt.Errorf("an extent refers to it and it has no record")}
	}
	return s, err
}

// shrinkStripe notes that the sole table that refers to a stripe names left of
// its bytes, and no longer was of them. With several tables nothing is known:
// live bytes stay an upper bound. So they do where a table names some bytes
// twice, as after an overwrite of a file that was cloned onto itself.
func (t *tx) shrinkStripe(id moraine.StripeID, was, left int64) error {
	s, err := t.mustStripe(id)
	if err != nil || s.RefCount != 1 {
		return err
	}
	if was > s.LiveBytes {
		s.LiveBytes = min(s.LiveBytes, left)
	} else {
		s.LiveBytes -= was - left
	}
	t.put(t.k.stripe(id), record.EncodeStripe(s))
	return nil
}

// releaseStripe counts one user less; at 0 the stripe dies, and each of its
// chunks leaves a tombstone.
func (m *Machine) releaseStripe(t *tx, id moraine.StripeID) error {
	s, err := t.mustStripe(id)
	if err != nil {
		return err
	}
	s.RefCount--
	if s.RefCount > 0 {
		t.put(t.k.stripe(id), record.EncodeStripe(s))
		return nil
	}
	if err := m.dropRepair(t, s); err != nil {
		return err
	}
	t.del(t.k.stripe(id))
	t.count[record.CStripes]--
	for i, c := range s.Chunks {
		chunk := moraine.ChunkID{Stripe: id, Index: uint8(i)}
		t.del(t.k.deviceChunk(c.Device, chunk))
		t.leaveMemory(chunk, &c)
		if err := m.addTombstone(t, c.Device, chunk, s.Version+1, s.Scheme.ChunkLen(s.Length), !void(&c)); err != nil {
			return err
		}
	}
	return nil
}

// discard lets a content die: at once where it is small, else by a job.
func (m *Machine) discard(t *tx, content uint64) error {
	if content == 0 {
		return nil
	}
	finished, err := m.dropContent(t, content, discardBudget-len(t.order))
	if err != nil || finished {
		return err
	}
	t.put(t.k.deadContent(content), []byte{record.RefVersion})
	_, err = m.addJob(t, jobSpec{kind: wire.JobKind_JOB_KIND_DROP_TABLES, subject: fmt.Sprintf("content %d", content), cursor: record.Be64(nil, content)})
	return err
}

// abandon notes that a file no longer refers to a table.
func (t *tx) abandon(table moraine.TableID) { t.dead = append(t.dead, table) }

// dropAbandoned lets the references that the command gave up die, as a content
// of their own.
func (m *Machine) dropAbandoned(t *tx) error {
	if len(t.dead) == 0 {
		return nil
	}
	content := t.next(record.CContent)
	for n, table := range t.dead {
		r := record.Ref{Table: table, End: int64(n) + 1} // where it was in the file matters no more
		t.insert(t.k.ref(content, r.End), r.Encode())
	}
	t.dead = nil
	return m.discard(t, content)
}

// runDropContent does about limit records of a job made by discard.
func (m *Machine) runDropContent(t *tx, cursor []byte, limit int) (n int, finished bool, err error) {
	if len(cursor) != 8 {
		return 0, false, &moraine.Error{Op: "drop tables", Kind: moraine.Corrupt, Err: fmt.Errorf("cursor of %d bytes", len(cursor))}
	}
	before, content := len(t.order), binary.BigEndian.Uint64(cursor)
	finished, err = m.dropContent(t, content, limit)
	if finished {
		t.del(t.k.deadContent(content))
	}
	return len(t.order) - before, finished, err
}

// dropContent takes away about budget records of a content that nothing refers
// to any more, and returns whether none is left. It consumes what it has done,
// so that it goes on from there.
func (m *Machine) dropContent(t *tx, content uint64, budget int) (finished bool, err error) {
	if budget <= 0 {
		return false, nil
	}
	stop := len(t.order) + budget
	var refs []record.Ref
	err = t.refsFrom(content, -1, func(r record.Ref) (bool, error) {
		refs = append(refs, r)
		return len(refs) <= budget, nil
	})
	if err != nil {
		return false, err
	}
	for _, r := range refs {
		if len(t.order) >= stop {
			return false, nil
		}
		finished, err := m.dropTable(t, content, r, stop)
		if err != nil || !finished {
			return false, err
		}
	}
	return len(refs) <= budget, nil
}

// dropTable takes one reference away, and its table with it if it was the last
// one, until the command has written stop keys.
func (m *Machine) dropTable(t *tx, content uint64, r record.Ref, stop int) (finished bool, err error) {
	h, err := t.tableHead(r.Table)
	if err != nil {
		return false, err
	}
	if h.Refs > 1 {
		h.Refs--
		t.put(t.k.extTable(r.Table), h.Encode())
		t.del(t.k.ref(content, r.End))
		return true, nil
	}
	// From here on the table has no owner (refs 0 if we stop in between).
	exts, err := t.extsFrom(r, r.Base, noLimit)
	if err != nil {
		return false, err
	}
	left := make(map[source]int, len(exts))
	for _, e := range exts {
		left[sourceOf(e)]++
	}
	for n, e := range exts {
		if len(t.order) >= stop {
			h = record.TableHead{Count: uint32(len(exts) - n), Bytes: sumLengths(exts[n:]), Evicted: sumEvicted(exts[n:]), Sealed: h.Sealed}
			t.put(t.k.extTable(r.Table), h.Encode())
			return false, nil
		}
		t.del(t.k.ext(r.Table, e.End()-r.Base))
		s := sourceOf(e)
		if left[s]--; left[s] > 0 {
			continue
		}
		if err := m.releaseSource(t, s); err != nil {
			return false, err
		}
	}
	t.del(t.k.extTable(r.Table))
	t.del(t.k.ref(content, r.End))
	return true, nil
}

// dropSessionInodes takes away files without a name of a session that ended.
func (m *Machine) dropSessionInodes(t *tx, id moraine.SessionID, budget int) (int, error) {
	keys, err := t.keysUnder(t.k.sessionInodes(id), (budget+7)/8)
	if err != nil {
		return 0, err
	}
	before := len(t.order)
	for n, key := range keys {
		if len(t.order)-before >= budget {
			return budget, nil
		}
		i, err := t.inode(moraine.InodeID(record.LastU64(key)))
		if err != nil {
			return n, damaged(err)
		}
		if err := m.dropFile(t, i); err != nil {
			return n, err
		}
	}
	if len(keys) == (budget+7)/8 {
		return budget, nil // there may be more
	}
	return len(t.order) - before, nil
}

// damaged turns a NotFound of what must be there into damage.
func damaged(err error) error {
	if moraineKind(err) != moraine.NotFound {
		return err
	}
	return &moraine.Error{Op: "apply", Kind: moraine.Corrupt, Err: fmt.Errorf("%w: a record refers to it", err)}
}
