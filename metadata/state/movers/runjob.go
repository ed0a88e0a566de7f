package movers

import (
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/ckpt"
	"github.com/morainefs/moraine/metadata/state/content"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/layout"
	"github.com/morainefs/moraine/metadata/state/names"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/metadata/state/tier"
	"github.com/morainefs/moraine/metadata/state/usage"
	"github.com/morainefs/moraine/transport/wire"
)

// maxPiece is the largest number of records requested for one piece of a job.
const maxPiece = 1000

// RunJob does one bounded piece of a leader's job and ends the job when nothing is left. A piece
// consumes what it has done, or advances the job's cursor, so that a repeated command continues
// from there.
func RunJob(t *kvtx.Tx, op *statepb.RunJob) (*wire.MetaResponse, error) {
	j, err := jobs.Job(&t.View, moraine.JobID(op.GetId()))
	if err != nil {
		return nil, err
	}
	// A job of the leader that is running waits for other jobs.
	if j == nil || !j.Live() || (!jobs.Leased(j.Kind) && j.State == wire.JobState_JOB_STATE_RUNNING) {
		return kvtx.Done(), nil
	}
	t.IgnoresQuota = true
	limit := int(op.GetLimit())
	if limit == 0 || limit > maxPiece {
		limit = maxPiece
	}
	var n int
	var finished bool
	switch j.Kind {
	case wire.JobKind_JOB_KIND_REMOVE_TREE:
		t.OpenAll = true // the removal was authorized when the tree was unlinked
		if j.Step != (record.StepID{}) {
			n, finished, err = ckpt.RunDropStep(t, j, limit)
		} else {
			n, finished, err = names.RunRemoveTree(t, j.Id, limit)
		}
	case wire.JobKind_JOB_KIND_DROP_TABLES:
		n, finished, err = layout.RunDropContent(t, j.Cursor, limit)
	case wire.JobKind_JOB_KIND_RECOUNT:
		n, finished, err = usage.RunRecount(t, j, limit)
	case wire.JobKind_JOB_KIND_SCAN_DEVICE:
		n, finished, err = runScan(t, j, limit)
	case wire.JobKind_JOB_KIND_CLONE_TREE:
		over, err := content.RunCloneTree(t, j, limit)
		return ran(t, j, over, err)
	case wire.JobKind_JOB_KIND_CONCAT:
		over, err := content.RunConcat(t, j, limit)
		return ran(t, j, over, err)
	case wire.JobKind_JOB_KIND_MOVE_TREE:
		over, err := tier.RunMoveTree(t, j, limit)
		return ran(t, j, over, err)
	case wire.JobKind_JOB_KIND_EMPTY_TRASH:
		return ran(t, j, true, names.RunEmptyTrash(t, j))
	case wire.JobKind_JOB_KIND_ADOPT:
		over, err := ckpt.RunAdopt(t, j, limit)
		return ran(t, j, over, err)
	default:
		return nil, kvtx.Fail(moraine.InvalidArgument, "run job", j.Id.String(), "movers lease jobs of kind %s: the leader does not run them", j.Kind)
	}
	if err != nil {
		return nil, err
	}
	j.Done += uint64(n)
	if finished {
		j.Total = j.Done
		said := "" // the result text of a completed job
		if j.Kind == wire.JobKind_JOB_KIND_RECOUNT {
			said = j.Err
		}
		return kvtx.Done(), jobs.EndJob(t, j, wire.JobState_JOB_STATE_DONE, said)
	}
	jobs.PutJob(t, j)
	t.Events.JobsReady = true
	return kvtx.Done(), nil
}

// ran answers a piece of a job that ends itself, and wakes the leader for the rest.
func ran(t *kvtx.Tx, j *record.Job, over bool, err error) (*wire.MetaResponse, error) {
	if err == nil && !over {
		jobs.PutJob(t, j)
		t.Events.JobsReady = true
	}
	return kvtx.Done(), err
}

// runScan checks the next stripes with a chunk on a device against the device's present state. For
// a retired device it then deletes the tombstones, because nothing would carry them out.
func runScan(t *kvtx.Tx, j *record.Job, limit int) (n int, finished bool, err error) {
	d, err := fleet.Device(&t.View, moraine.DeviceID(j.Target))
	if err != nil {
		return 0, false, err
	}
	if d == nil {
		return 0, false, &moraine.Error{Op: "scan device", Ref: record.Utoa(j.Target), Kind: moraine.Corrupt, Err: fmt.Errorf("the job scans a device that has no record")}
	}
	prefix := t.K.DeviceChunks(d.Id)
	lo := prefix
	if len(j.Cursor) > 0 {
		lo = append(t.K.DeviceChunks(d.Id), j.Cursor...)
	}
	perStripe := 4 // item, its place before and after, and change
	var chunks []moraine.ChunkID
	err = t.Scan(lo, kvtx.PrefixEnd(prefix), func(key, _ []byte) bool {
		chunks = append(chunks, fleet.ChunkOfKey(key))
		return len(chunks) < max(limit/perStripe, 1)
	})
	if err != nil {
		return 0, false, err
	}
	for _, c := range chunks {
		s, err := layout.MustStripe(t, c.Stripe)
		if err != nil {
			return 0, false, err
		}
		if err := fleet.QueueRepair(t, s, 0); err != nil {
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
	more, err := forgetTombstones(t, d.Id, limit/3)
	return len(chunks), !more, err
}

// forgetTombstones deletes at most limit tombstones of a device; true if there may be more.
func forgetTombstones(t *kvtx.Tx, id moraine.DeviceID, limit int) (bool, error) {
	type row struct {
		Chunk moraine.ChunkID
		Since uint64
		record.Tombstone
	}
	var rows []row
	limit = max(limit, 1)
	for _, kept := range []bool{false, true} {
		if len(rows) == limit {
			break
		}
		err := fleet.DeviceTombstones(&t.View, id, kept, func(chunk moraine.ChunkID, since uint64, s record.Tombstone) bool {
			rows = append(rows, row{chunk, since, s})
			return len(rows) < limit
		})
		if err != nil {
			return false, err
		}
	}
	for _, g := range rows {
		if err := fleet.DropTombstone(t, id, g.Chunk, g.Tombstone, g.Since); err != nil {
			return false, err
		}
	}
	if len(rows) < limit {
		t.Del(t.K.KeptOn(id))
	}
	return len(rows) == limit, nil
}
