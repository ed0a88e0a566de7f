package layout

import (
	"encoding/binary"
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// DiscardBudget is the number of records that a command may write while it removes content itself;
// a job removes the rest.
const DiscardBudget = 384

func sourceOf(e moraine.Extent) kvtx.Source {
	return kvtx.Source{Stripe: e.Stripe, Object: e.Object, Inline: e.Inline}
}

// use counts table as a user of a source, once per command. The table must not have referred to it
// before the command.
func use(t *kvtx.Tx, s kvtx.Source, table moraine.TableID) error {
	use := kvtx.TableUse{Source: s, Table: table}
	if _, ok := t.Uses[use]; ok {
		return nil
	}
	if t.Uses == nil {
		t.Uses = make(map[kvtx.TableUse]struct{}, 8)
	}
	t.Uses[use] = struct{}{}
	switch {
	case s.Object != 0:
		return useObject(t, s.Object)
	case s.Inline != 0:
		return useInline(t, s.Inline)
	}
	return useStripe(t, s.Stripe)
}

// shrink records that a table refers to left bytes of a source, after was bytes. Only stripes have a
// live-byte count.
func shrink(t *kvtx.Tx, s kvtx.Source, was, left int64) error {
	if s.Stripe == 0 {
		return nil
	}
	return shrinkStripe(t, s.Stripe, was, left)
}

// releaseSource removes one user of a source.
func releaseSource(t *kvtx.Tx, s kvtx.Source) error {
	switch {
	case s.Object != 0:
		return releaseObject(t, s.Object)
	case s.Inline != 0:
		return releaseInline(t, s.Inline)
	}
	return releaseStripe(t, s.Stripe)
}

// useStripe adds one user of a stripe.
func useStripe(t *kvtx.Tx, id moraine.StripeID) error {
	s, err := MustStripe(t, id)
	if err != nil {
		return err
	}
	s.RefCount++
	t.Put(t.K.Stripe(id), record.EncodeStripe(s))
	return nil
}

// MustStripe returns a stripe that an extent refers to. Its absence is damage.
func MustStripe(t *kvtx.Tx, id moraine.StripeID) (*moraine.Stripe, error) {
	s, err := fleet.Stripe(&t.View, id)
	if err == nil && s == nil {
		err = &moraine.Error{Op: "stripe", Ref: id.String(), Kind: moraine.Corrupt, Err: fmt.Errorf("an extent refers to the stripe, which has no record")}
	}
	return s, err
}

// shrinkStripe records that the only table with a stripe refers to left of its bytes, after was
// bytes. With several tables the exact number is unknown, and live bytes stay an upper bound. The
// same holds if a table refers to some bytes twice, as after an overwrite of a file that was cloned
// onto itself.
func shrinkStripe(t *kvtx.Tx, id moraine.StripeID, was, left int64) error {
	s, err := MustStripe(t, id)
	if err != nil || s.RefCount != 1 {
		return err
	}
	if was > s.LiveBytes {
		s.LiveBytes = min(s.LiveBytes, left)
	} else {
		s.LiveBytes -= was - left
	}
	t.Put(t.K.Stripe(id), record.EncodeStripe(s))
	return nil
}

// releaseStripe removes one user. At 0 the stripe dies, and each of its chunks gets a tombstone.
func releaseStripe(t *kvtx.Tx, id moraine.StripeID) error {
	s, err := MustStripe(t, id)
	if err != nil {
		return err
	}
	s.RefCount--
	if s.RefCount > 0 {
		t.Put(t.K.Stripe(id), record.EncodeStripe(s))
		return nil
	}
	if err := fleet.DropRepair(t, s); err != nil {
		return err
	}
	t.Del(t.K.Stripe(id))
	t.Count[record.CStripes]--
	for i, c := range s.Chunks {
		chunk := moraine.ChunkID{Stripe: id, Index: uint8(i)}
		t.Del(t.K.DeviceChunk(c.Device, chunk))
		fleet.LeaveMemory(t, s, uint8(i), &c)
		if err := fleet.AddTombstone(t, c.Device, chunk, s.Version+1, s.Scheme.ChunkLen(s.Length), !fleet.IsVoid(&c)); err != nil {
			return err
		}
	}
	return nil
}

// Discard removes a content: at once if it is small, otherwise by a job.
func Discard(t *kvtx.Tx, content uint64) error {
	if content == 0 {
		return nil
	}
	finished, err := dropContent(t, content, DiscardBudget-len(t.Order)-t.Spent)
	if err != nil || finished {
		return err
	}
	t.Put(t.K.DeadContent(content), []byte{record.RefVersion})
	_, err = jobs.AddJob(t, jobs.JobSpec{Kind: wire.JobKind_JOB_KIND_DROP_TABLES, Subject: fmt.Sprintf("content %d", content), Cursor: record.Be64(nil, content)})
	return err
}

// abandon records that a file no longer refers to a table.
func abandon(t *kvtx.Tx, table moraine.TableID) { t.Dead = append(t.Dead, table) }

// DropAbandoned removes the references that the command abandoned, as a content of their own.
func DropAbandoned(t *kvtx.Tx) error {
	if len(t.Dead) == 0 {
		return nil
	}
	content := t.Next(record.CContent)
	for n, table := range t.Dead {
		r := record.Ref{Table: table, End: int64(n) + 1} // its place in the file no longer matters
		t.Insert(t.K.Ref(content, r.End), r.Encode())
	}
	t.Dead = nil
	return Discard(t, content)
}

// RunDropContent removes about limit records for a job of Discard.
func RunDropContent(t *kvtx.Tx, cursor []byte, limit int) (n int, finished bool, err error) {
	if len(cursor) != 8 {
		return 0, false, &moraine.Error{Op: "drop tables", Kind: moraine.Corrupt, Err: fmt.Errorf("the cursor of the job has %d bytes", len(cursor))}
	}
	before, content := len(t.Order), binary.BigEndian.Uint64(cursor)
	finished, err = dropContent(t, content, limit)
	if finished {
		t.Del(t.K.DeadContent(content))
	}
	return len(t.Order) - before, finished, err
}

// dropContent deletes about budget records of an unreferenced content; true if none is left. It
// consumes what it has done, so that the next call continues from there.
func dropContent(t *kvtx.Tx, content uint64, budget int) (finished bool, err error) {
	if budget <= 0 {
		return false, nil
	}
	stop := len(t.Order) + budget
	var refs []record.Ref
	err = RefsFrom(&t.View, content, -1, func(r record.Ref) (bool, error) {
		refs = append(refs, r)
		return len(refs) <= budget, nil
	})
	if err != nil {
		return false, err
	}
	for _, r := range refs {
		if len(t.Order) >= stop {
			return false, nil
		}
		finished, err := dropTable(t, content, r, stop)
		if err != nil || !finished {
			return false, err
		}
	}
	return len(refs) <= budget, nil
}

// dropTable removes one reference to a table. With the last reference it also removes the table.
// It stops once the command has written stop keys.
func dropTable(t *kvtx.Tx, content uint64, r record.Ref, stop int) (finished bool, err error) {
	h, err := TableHead(&t.View, r.Table)
	if err != nil {
		return false, err
	}
	if h.Refs > 1 {
		h.Refs--
		t.Put(t.K.ExtTable(r.Table), h.Encode())
		t.Del(t.K.Ref(content, r.End))
		return true, nil
	}
	// From here on the table has no owner; its Refs are 0 if this stops midway.
	exts, err := ExtsFrom(&t.View, r, r.Base, NoLimit)
	if err != nil {
		return false, err
	}
	left := make(map[kvtx.Source]int, len(exts))
	for _, e := range exts {
		left[sourceOf(e)]++
	}
	for n, e := range exts {
		if len(t.Order) >= stop {
			h = record.TableHead{Count: uint32(len(exts) - n), Bytes: SumLengths(exts[n:]), Evicted: SumEvicted(exts[n:]), Inline: SumInline(exts[n:]), Sealed: h.Sealed}
			t.Put(t.K.ExtTable(r.Table), h.Encode())
			return false, nil
		}
		t.Del(t.K.Ext(r.Table, e.End()-r.Base))
		s := sourceOf(e)
		if left[s]--; left[s] > 0 {
			continue
		}
		if err := releaseSource(t, s); err != nil {
			return false, err
		}
	}
	t.Del(t.K.ExtTable(r.Table))
	t.Del(t.K.Ref(content, r.End))
	return true, nil
}
