package state

import (
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// maxPiece is the most records that one piece of a job is asked to touch.
const maxPiece = 1000

// runJob does one bounded piece of a job that the leader runs, and ends it when
// nothing is left. What a piece has done it consumes, or passes with the job's
// cursor, so that a repeated command goes on from there.
func (m *Machine) runJob(t *tx, op *statepb.RunJob) (*wire.MetaResponse, error) {
	j, err := t.job(moraine.JobID(op.GetId()))
	if err != nil {
		return nil, err
	}
	if j == nil || !j.Live() || (j.Kind == wire.JobKind_JOB_KIND_MOVE_TREE && j.State == wire.JobState_JOB_STATE_RUNNING) {
		return done(), nil
	}
	t.ignoresQuota = true
	limit := int(op.GetLimit())
	if limit == 0 || limit > maxPiece {
		limit = maxPiece
	}
	var n int
	var finished bool
	switch j.Kind {
	case wire.JobKind_JOB_KIND_REMOVE_TREE:
		t.openAll = true // whether the tree may be removed was judged when it was
		if j.Step != (record.StepID{}) {
			n, finished, err = m.runDropStep(t, j, limit)
		} else {
			n, finished, err = m.runRemoveTree(t, j.Id, limit)
		}
	case wire.JobKind_JOB_KIND_DROP_TABLES:
		n, finished, err = m.runDropContent(t, j.Cursor, limit)
	case wire.JobKind_JOB_KIND_RECOUNT:
		n, finished, err = m.runRecount(t, j, limit)
	case wire.JobKind_JOB_KIND_SCAN_DEVICE:
		n, finished, err = m.runScan(t, j, limit)
	case wire.JobKind_JOB_KIND_CLONE_TREE:
		over, err := m.runCloneTree(t, j, limit)
		return m.ran(t, j, over, err)
	case wire.JobKind_JOB_KIND_CONCAT:
		over, err := m.runConcat(t, j, limit)
		return m.ran(t, j, over, err)
	case wire.JobKind_JOB_KIND_MOVE_TREE:
		over, err := m.runMoveTree(t, j, limit)
		return m.ran(t, j, over, err)
	default:
		return nil, fail(moraine.InvalidArgument, "run job", j.Id.String(), "workers lease jobs of kind %s", j.Kind)
	}
	if err != nil {
		return nil, err
	}
	j.Done += uint64(n)
	if finished {
		j.Total = j.Done
		said := "" // what a job that is done has to say
		if j.Kind == wire.JobKind_JOB_KIND_RECOUNT {
			said = j.Err
		}
		return done(), m.endJob(t, j, wire.JobState_JOB_STATE_DONE, said)
	}
	t.putJob(j)
	t.events.JobsReady = true
	return done(), nil
}

// ran answers a piece of a job that ends itself, and has the rest of it run.
func (m *Machine) ran(t *tx, j *record.Job, over bool, err error) (*wire.MetaResponse, error) {
	if err == nil && !over {
		t.putJob(j)
		t.events.JobsReady = true
	}
	return done(), err
}

// runScan judges the next stripes with a chunk on a device, from the state that
// the device has now. Of a retired device it then forgets the tombstones: there
// is nobody to carry them out.
func (m *Machine) runScan(t *tx, j *record.Job, limit int) (n int, finished bool, err error) {
	d, err := t.device(moraine.DeviceID(j.Target))
	if err != nil {
		return 0, false, err
	}
	if d == nil {
		return 0, false, &moraine.Error{Op: "scan device", Ref: record.Utoa(j.Target), Kind: moraine.Corrupt, Err: fmt.Errorf("no such device")}
	}
	prefix := t.k.deviceChunks(d.Id)
	lo := prefix
	if len(j.Cursor) > 0 {
		lo = append(t.k.deviceChunks(d.Id), j.Cursor...)
	}
	perStripe := 4 // item, its place before and after, and change
	var chunks []moraine.ChunkID
	err = t.Scan(lo, prefixEnd(prefix), func(key, _ []byte) bool {
		chunks = append(chunks, chunkOfKey(key))
		return len(chunks) < max(limit/perStripe, 1)
	})
	if err != nil {
		return 0, false, err
	}
	for _, c := range chunks {
		s, err := t.mustStripe(c.Stripe)
		if err != nil {
			return 0, false, err
		}
		if err := m.queueRepair(t, s, 0); err != nil {
			return 0, false, err
		}
	}
	if len(chunks) == max(limit/perStripe, 1) {
		last := chunks[len(chunks)-1]
		j.Cursor = record.ChunkKey(nil, moraine.ChunkID{Stripe: last.Stripe, Index: last.Index + 1})
		return len(chunks), false, nil
	}
	j.Cursor = record.ChunkKey(nil, moraine.ChunkID{Stripe: ^moraine.StripeID(0), Index: 0xff})
	if d.State != record.DeviceRetired {
		return len(chunks), true, nil
	}
	more, err := m.forgetTombstones(t, d.Id, limit/3)
	return len(chunks), !more, err
}

// forgetTombstones takes at most limit tombstones of a device away, and returns
// whether there may be more.
func (m *Machine) forgetTombstones(t *tx, id moraine.DeviceID, limit int) (bool, error) {
	type grave struct {
		chunk moraine.ChunkID
		since uint64
		record.Tombstone
	}
	var graves []grave
	limit = max(limit, 1)
	for _, kept := range []bool{false, true} {
		if len(graves) == limit {
			break
		}
		err := t.deviceTombstones(id, kept, func(chunk moraine.ChunkID, since uint64, s record.Tombstone) bool {
			graves = append(graves, grave{chunk, since, s})
			return len(graves) < limit
		})
		if err != nil {
			return false, err
		}
	}
	for _, g := range graves {
		if err := t.dropTombstone(id, g.chunk, g.Tombstone, g.since); err != nil {
			return false, err
		}
	}
	if len(graves) < limit {
		t.del(t.k.keptOn(id))
	}
	return len(graves) == limit, nil
}
