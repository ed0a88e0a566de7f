package movers

import (
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/ckpt"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tier"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// maxCheckLeases is how many leases the check of one step gets. A check that ends the process of each mover
// must not do so for ever. Failures that movers report end it before: record.MaxJobTries.
const maxCheckLeases = 32

// LeaseJobs leases ready jobs to a mover, also those whose former lease expired. Each lease
// increments the job's epoch, which fences the former holder.
func LeaseJobs(t *kvtx.Tx, op *wire.LeaseJobs) (*wire.MetaResponse, error) {
	if op.GetHost() == "" || len(op.GetHost()) > moraine.MaxNameLen {
		return nil, kvtx.Fail(moraine.InvalidArgument, "lease jobs", op.GetHost(), "the request names no host")
	}
	if t.Caller.GetRole() == kvtx.RoleChunkserver && t.Caller.GetNode() != op.GetHost() {
		return nil, kvtx.Fail(moraine.PermissionDenied, "lease jobs", op.GetHost(), "the certificate is of node %q", t.Caller.GetNode())
	}
	for _, k := range op.GetKinds() {
		if !jobs.Leased(k) {
			return nil, kvtx.Fail(moraine.InvalidArgument, "lease jobs", k.String(), "movers do not lease jobs of this kind")
		}
	}
	kinds := op.GetKinds()
	if op.GetBucket() == "" {
		kinds = slices.DeleteFunc(slices.Clone(kinds), record.OfTier)
	}
	kinds = shuffled(kinds, t.Count[record.CCommands])
	ready, err := sharedJobs(&t.View, kinds, t.ClusterTime(), int(min(max(op.GetMax(), 1), record.MaxLeaseJobs)))
	if err != nil {
		return nil, err
	}
	reply := &wire.JobsReply{LeaseMillis: record.JobLeaseMillis}
	for _, j := range ready {
		var move *wire.MoveTask
		if record.OfTier(j.Kind) {
			if move, err = tier.PrepareMove(t, j, op.GetBucket(), op.GetPrefix()); err != nil {
				return nil, err
			}
			if move == nil {
				continue
			}
		}
		if j.Leases >= maxCheckLeases && j.Kind == wire.JobKind_JOB_KIND_COMMIT_STEP {
			if err := ckpt.EndCheck(t, j); err != nil {
				return nil, err
			}
			continue
		}
		jobs.UnindexJob(t, j)
		j.State, j.Holder = wire.JobState_JOB_STATE_RUNNING, op.GetHost()
		j.Epoch++
		j.Leases++
		j.Until = t.ClusterTime() + record.JobLeaseMillis
		t.Put(t.K.JobLease(j.Until, j.Id), []byte{record.JobVersion})
		jobs.PutJob(t, j)
		w := j.ToWire()
		w.Move = move
		if record.OfStripes(j.Kind) {
			if w.Repairs, err = fleet.RepairTasks(&t.View, j); err != nil {
				return nil, err
			}
		}
		reply.Jobs = append(reply.Jobs, w)
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Jobs{Jobs: reply}}, nil
}

// shuffled returns the kinds in an order drawn by seed. Movers mostly request one job at a time. In
// a fixed order, a backlog of one kind would block the kinds after it until it is done. With a
// random order each kind with work gets its share of leases. It needs no record of whose turn it
// is, and the seed, the command's number, is the same on every replica.
func shuffled(kinds []wire.JobKind, seed uint64) []wire.JobKind {
	out := slices.Clone(kinds)
	for n := len(out); n > 1; n-- {
		seed = mix(seed)
		i := seed % uint64(n)
		out[i], out[n-1] = out[n-1], out[i]
	}
	return out
}

// mix is the finalizer of splitmix64: it makes the results of adjacent numbers unrelated.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// sharedJobs is ReadyJobs, but takes one pending job of each kind in turn.
func sharedJobs(v *kvtx.View, kinds []wire.JobKind, now uint64, limit int) ([]*record.Job, error) {
	out, err := jobs.LapsedJobs(v, kinds, now, limit)
	if err != nil {
		return nil, err
	}
	var queues [][][]byte // one per kind
	for _, kind := range kinds {
		keys, err := v.KeysUnder(v.K.JobsReady(uint8(kind)), limit-len(out))
		if err != nil {
			return nil, err
		}
		queues = append(queues, jobs.Due(keys, now))
	}
	for turn := 0; len(out) < limit; turn++ {
		took := false
		for _, keys := range queues {
			if turn >= len(keys) || len(out) == limit {
				continue
			}
			if out, err = jobs.AppendJob(v, out, keys[turn]); err != nil {
				return nil, err
			}
			took = true
		}
		if !took {
			break
		}
	}
	return out, nil
}

// RenewJob renews a job lease and records progress.
func RenewJob(t *kvtx.Tx, op *wire.RenewJob) (*wire.MetaResponse, error) {
	j, err := jobs.HeldJob(t, "renew job", op.GetId(), op.GetLeaseEpoch())
	if err != nil {
		return nil, err
	}
	t.Del(t.K.JobLease(j.Until, j.Id))
	j.Until = t.ClusterTime() + record.JobLeaseMillis
	j.Done, j.Total = op.GetDone(), max(op.GetTotal(), op.GetDone())
	t.Put(t.K.JobLease(j.Until, j.Id), []byte{record.JobVersion})
	jobs.PutJob(t, j)
	return kvtx.Done(), nil
}

// FinishJob ends a job or queues a retry. Repeating it under the same lease is allowed.
func FinishJob(t *kvtx.Tx, op *wire.FinishJob) (*wire.MetaResponse, error) {
	j, err := jobs.Job(&t.View, moraine.JobID(op.GetId()))
	if err != nil {
		return nil, err
	}
	if j != nil && j.Epoch == op.GetLeaseEpoch() && j.State != wire.JobState_JOB_STATE_RUNNING {
		return kvtx.Done(), nil // the answer was lost
	}
	if j, err = jobs.HeldJob(t, "finish job", op.GetId(), op.GetLeaseEpoch()); err != nil {
		return nil, err
	}
	if record.OfTier(j.Kind) {
		return kvtx.Done(), tier.FinishMove(t, j, op)
	}
	if op.GetError() == "" && j.Kind == wire.JobKind_JOB_KIND_READ_TRACKER {
		return kvtx.Done(), ckpt.TrackerRead(t, j, op.GetText())
	}
	if op.GetError() == "" {
		return kvtx.Done(), jobs.EndJob(t, j, wire.JobState_JOB_STATE_DONE, "")
	}
	reason := record.Clip(op.GetError(), moraine.MaxNameLen)
	j.Tries++
	// The leader plans a failed repair again with the devices then alive, and also a failed
	// rewrite.
	if op.GetFinal() || j.Tries >= record.MaxJobTries || record.OfStripes(j.Kind) || j.Kind == wire.JobKind_JOB_KIND_REWRITE {
		return kvtx.Done(), jobs.EndJob(t, j, wire.JobState_JOB_STATE_FAILED, reason)
	}
	j.Err = reason
	jobs.RetryJob(t, j)
	return kvtx.Done(), nil
}

// CancelJob ends a job that movers lease. The leader's own jobs cannot be canceled, because they
// must complete what they began.
func CancelJob(t *kvtx.Tx, op *wire.CancelJob) (*wire.MetaResponse, error) {
	j, err := jobs.Job(&t.View, moraine.JobID(op.GetId()))
	if err != nil {
		return nil, err
	}
	switch {
	case j == nil:
		return nil, kvtx.Fail(moraine.NotFound, "cancel job", moraine.JobID(op.GetId()).String(), "")
	case !j.Live():
		return kvtx.Done(), nil
	case record.OfFile(j.Kind):
		return kvtx.Done(), tier.CancelMove(t, j, "canceled by "+record.Clip(t.Caller.GetNode(), 100))
	case j.Kind == wire.JobKind_JOB_KIND_CLONE_TREE, j.Kind == wire.JobKind_JOB_KIND_CONCAT:
		if j.Ending == 0 {
			j.Ending, j.Err = wire.JobState_JOB_STATE_CANCELED, "canceled by "+record.Clip(t.Caller.GetNode(), 100)
			jobs.PutJob(t, j) // it ends after what it built is removed
		}
		return kvtx.Done(), nil
	case j.Kind == wire.JobKind_JOB_KIND_MOVE_TREE:
		return kvtx.Done(), tier.CancelTree(t, j, "canceled by "+record.Clip(t.Caller.GetNode(), 100))
	case j.Kind == wire.JobKind_JOB_KIND_ADOPT:
		return kvtx.Done(), ckpt.CancelAdoption(t, j, "canceled by "+record.Clip(t.Caller.GetNode(), 100))
	case !jobs.Leased(j.Kind) || j.Kind == wire.JobKind_JOB_KIND_DELETE_OBJECT: // nobody would request it again
		return nil, kvtx.Fail(moraine.InvalidArgument, "cancel job", j.Id.String(), "a %s job must complete what it began: it cannot be canceled", j.Kind)
	}
	return kvtx.Done(), jobs.EndJob(t, j, wire.JobState_JOB_STATE_CANCELED, "canceled by "+record.Clip(t.Caller.GetNode(), 100))
}

// seesJob reports whether a job belongs to a scope. Either one of its sessions
// requested the job, or the job concerns a file that the scope may name.
func seesJob(v *kvtx.View, sc kvtx.Scope, j *record.Job) (bool, error) {
	if sc.Root == v.K.Top() {
		return true, nil
	}
	about := j.Scope
	if about == 0 && (record.OfFile(j.Kind) || j.Kind == wire.JobKind_JOB_KIND_MOVE_TREE || j.Kind == wire.JobKind_JOB_KIND_CONCAT) {
		about = moraine.InodeID(j.Target)
	}
	if about == 0 {
		return false, nil
	}
	i, err := tree.ReadInode(v, about)
	if kvtx.MoraineKind(err) == moraine.NotFound {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return tree.InScope(v, sc, i)
}

// ReadJobs lists jobs by number, oldest first. A confined session must ask by number, and sees the
// jobs of its scope.
func ReadJobs(v *kvtx.View, sc kvtx.Scope, op *wire.ListJobs) (*wire.MetaResponse, error) {
	reply := &wire.JobsReply{LeaseMillis: record.JobLeaseMillis}
	if op.GetId() != 0 {
		j, err := jobs.Job(v, moraine.JobID(op.GetId()))
		if err != nil {
			return nil, err
		}
		sees := false
		if j != nil {
			if sees, err = seesJob(v, sc, j); err != nil {
				return nil, err
			}
		}
		if !sees {
			return nil, kvtx.Fail(moraine.NotFound, "list jobs", moraine.JobID(op.GetId()).String(), "")
		}
		reply.Jobs = append(reply.Jobs, j.ToWire())
		return &wire.MetaResponse{Result: &wire.MetaResponse_Jobs{Jobs: reply}}, nil
	}
	if sc.Root != v.K.Top() {
		return nil, kvtx.Fail(moraine.PermissionDenied, "list jobs", "", "a session that is confined to a directory can only request a job by its number")
	}
	limit := tree.PageLimit(op.GetLimit())
	err := v.Each(v.K.Job(moraine.JobID(op.GetAfter()+1)), kvtx.PrefixEnd(v.K.Table(record.TabJob)), func(key, value []byte) (bool, error) {
		j := &record.Job{Id: moraine.JobID(record.LastU64(key))}
		if err := j.Decode(value); err != nil {
			return false, err
		}
		if !op.GetEnded() && !j.Live() {
			return true, nil
		}
		if reply.More = len(reply.Jobs) == limit; reply.More {
			return false, nil
		}
		reply.Jobs = append(reply.Jobs, j.ToWire())
		return true, nil
	})
	return &wire.MetaResponse{Result: &wire.MetaResponse_Jobs{Jobs: reply}}, err
}
