package state

import (
	"encoding/binary"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// leased reports whether workers lease jobs of a kind; the others the leader
// runs by itself.
func leased(kind wire.JobKind) bool {
	return kind == wire.JobKind_JOB_KIND_REPAIR || kind == wire.JobKind_JOB_KIND_COMMIT_STEP || ofTier(kind)
}

// leaseJobs gives ready jobs to a worker, and those whose holder let the lease
// end. Each lease raises the job's epoch, which fences the holder before.
func (m *Machine) leaseJobs(t *tx, op *wire.LeaseJobs) (*wire.MetaResponse, error) {
	if op.GetHost() == "" || len(op.GetHost()) > moraine.MaxNameLen {
		return nil, fail(moraine.InvalidArgument, "lease jobs", op.GetHost(), "a holder needs a name")
	}
	if t.caller.GetRole() == roleChunkserver && t.caller.GetNode() != op.GetHost() {
		return nil, fail(moraine.PermissionDenied, "lease jobs", op.GetHost(), "the caller is %q", t.caller.GetNode())
	}
	for _, k := range op.GetKinds() {
		if !leased(k) {
			return nil, fail(moraine.InvalidArgument, "lease jobs", k.String(), "jobs of this kind are not leased")
		}
	}
	kinds := op.GetKinds()
	if op.GetBucket() == "" {
		kinds = slices.DeleteFunc(slices.Clone(kinds), ofTier)
	}
	ready, err := t.readyJobs(kinds, t.clusterTime(), int(min(max(op.GetMax(), 1), MaxLeaseJobs)))
	if err != nil {
		return nil, err
	}
	reply := &wire.JobsReply{LeaseMillis: JobLeaseMillis}
	for _, j := range ready {
		var move *wire.MoveTask
		if ofTier(j.kind) {
			if move, err = m.prepareMove(t, j, op.GetBucket(), op.GetPrefix()); err != nil {
				return nil, err
			}
			if move == nil {
				continue
			}
		}
		t.unindexJob(j)
		j.state, j.holder = wire.JobState_JOB_STATE_RUNNING, op.GetHost()
		j.epoch++
		j.leases++
		j.until = t.clusterTime() + JobLeaseMillis
		t.put(t.k.jobLease(j.until, j.id), []byte{jobVersion1})
		t.putJob(j)
		w := j.toWire()
		w.Move = move
		if w.Repairs, err = t.repairTasks(j); err != nil {
			return nil, err
		}
		reply.Jobs = append(reply.Jobs, w)
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Jobs{Jobs: reply}}, nil
}

// readyJobs returns at most limit jobs of the kinds that may be leased or run
// now: those pending whose time has come, oldest first, and for kinds that are
// leased those whose lease has ended.
func (v *view) readyJobs(kinds []wire.JobKind, now uint64, limit int) ([]*job, error) {
	var out []*job
	var err error
	if slices.ContainsFunc(kinds, leased) {
		if out, err = v.lapsedJobs(kinds, now, limit); err != nil {
			return nil, err
		}
	}
	for _, kind := range kinds {
		keys, err := v.keysUnder(v.k.jobsReady(uint8(kind)), limit-len(out))
		if err != nil {
			return nil, err
		}
		for _, key := range keys {
			if binary.BigEndian.Uint64(key[len(key)-16:]) > now {
				break
			}
			if out, err = v.appendJob(out, key); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// lapsedJobs returns jobs of the kinds whose lease has ended.
func (v *view) lapsedJobs(kinds []wire.JobKind, now uint64, limit int) ([]*job, error) {
	keys, err := v.keysUnder(v.k.table(tabJobLease), maxRunningJobs)
	if err != nil {
		return nil, err
	}
	var out []*job
	for _, key := range keys {
		if len(out) == limit || binary.BigEndian.Uint64(key[len(key)-16:]) > now {
			break
		}
		if out, err = v.appendJob(out, key); err != nil {
			return nil, err
		}
		if !slices.Contains(kinds, out[len(out)-1].kind) {
			out = out[:len(out)-1]
		}
	}
	return out, nil
}

// maxRunningJobs bounds how many leases one look for lapsed ones goes over.
const maxRunningJobs = 1024

func (v *view) appendJob(jobs []*job, key []byte) ([]*job, error) {
	j, err := v.job(moraine.JobID(lastU64(key)))
	if err != nil {
		return nil, err
	}
	if j == nil {
		return nil, &moraine.Error{Op: "job index", Ref: moraine.JobID(lastU64(key)).String(), Kind: moraine.Corrupt}
	}
	return append(jobs, j), nil
}

// heldJob returns a live job under the lease epoch that the caller holds it by;
// Fenced where another has it by now.
func (t *tx) heldJob(op string, id, epoch uint64) (*job, error) {
	j, err := t.job(moraine.JobID(id))
	if err != nil {
		return nil, err
	}
	ref := moraine.JobID(id).String()
	switch {
	case j == nil:
		return nil, fail(moraine.NotFound, op, ref, "the job ended long ago")
	case j.epoch != epoch || epoch == 0:
		return nil, fail(moraine.Fenced, op, ref, "the lease is %d by now, not %d", j.epoch, epoch)
	case j.state != wire.JobState_JOB_STATE_RUNNING:
		return nil, fail(moraine.Fenced, op, ref, "the job is not running any more")
	}
	return j, nil
}

// renewJob keeps a lease, and notes progress.
func (m *Machine) renewJob(t *tx, op *wire.RenewJob) (*wire.MetaResponse, error) {
	j, err := t.heldJob("renew job", op.GetId(), op.GetLeaseEpoch())
	if err != nil {
		return nil, err
	}
	t.del(t.k.jobLease(j.until, j.id))
	j.until = t.clusterTime() + JobLeaseMillis
	j.done, j.total = op.GetDone(), max(op.GetTotal(), op.GetDone())
	t.put(t.k.jobLease(j.until, j.id), []byte{jobVersion1})
	t.putJob(j)
	return done(), nil
}

// finishJob ends a job, or has it tried again. Finishing again under the same
// lease is fine.
func (m *Machine) finishJob(t *tx, op *wire.FinishJob) (*wire.MetaResponse, error) {
	j, err := t.job(moraine.JobID(op.GetId()))
	if err != nil {
		return nil, err
	}
	if j != nil && j.epoch == op.GetLeaseEpoch() && j.state != wire.JobState_JOB_STATE_RUNNING {
		return done(), nil // the answer was lost
	}
	if j, err = t.heldJob("finish job", op.GetId(), op.GetLeaseEpoch()); err != nil {
		return nil, err
	}
	if ofTier(j.kind) {
		return done(), m.finishMove(t, j, op)
	}
	if op.GetError() == "" {
		return done(), m.endJob(t, j, wire.JobState_JOB_STATE_DONE, "")
	}
	reason := clip(op.GetError(), moraine.MaxNameLen)
	j.tries++
	// A repair that failed is planned anew, against what is alive then.
	if op.GetFinal() || j.tries >= MaxJobTries || j.kind == wire.JobKind_JOB_KIND_REPAIR {
		return done(), m.endJob(t, j, wire.JobState_JOB_STATE_FAILED, reason)
	}
	j.err = reason
	m.retryJob(t, j)
	return done(), nil
}

// clip cuts a text for people to at most n bytes, between characters.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xc0 == 0x80 {
		n--
	}
	return s[:n]
}

// cancelJob ends a job that workers lease. The leader's own jobs finish what
// is half done: they cannot be stopped.
func (m *Machine) cancelJob(t *tx, op *wire.CancelJob) (*wire.MetaResponse, error) {
	j, err := t.job(moraine.JobID(op.GetId()))
	if err != nil {
		return nil, err
	}
	switch {
	case j == nil:
		return nil, fail(moraine.NotFound, "cancel job", moraine.JobID(op.GetId()).String(), "")
	case !j.live():
		return done(), nil
	case ofTier(j.kind):
		return done(), m.cancelMove(t, j, "canceled by "+clip(t.caller.GetNode(), 100))
	case j.kind == wire.JobKind_JOB_KIND_MOVE_TREE:
		return done(), m.cancelTree(t, j, "canceled by "+clip(t.caller.GetNode(), 100))
	case !leased(j.kind):
		return nil, fail(moraine.InvalidArgument, "cancel job", j.id.String(), "a %s job finishes what is half done, and cannot be stopped", j.kind)
	}
	return done(), m.endJob(t, j, wire.JobState_JOB_STATE_CANCELED, "canceled by "+clip(t.caller.GetNode(), 100))
}

// readJobs lists jobs by number, oldest first.
func (v *view) readJobs(op *wire.ListJobs) (*wire.MetaResponse, error) {
	reply := &wire.JobsReply{LeaseMillis: JobLeaseMillis}
	if op.GetId() != 0 {
		j, err := v.job(moraine.JobID(op.GetId()))
		if err != nil {
			return nil, err
		}
		if j == nil {
			return nil, fail(moraine.NotFound, "list jobs", moraine.JobID(op.GetId()).String(), "")
		}
		reply.Jobs = append(reply.Jobs, j.toWire())
		return &wire.MetaResponse{Result: &wire.MetaResponse_Jobs{Jobs: reply}}, nil
	}
	limit := pageLimit(op.GetLimit())
	var bad error
	err := v.r.Scan(v.k.job(moraine.JobID(op.GetAfter()+1)), prefixEnd(v.k.table(tabJob)), func(key, value []byte) bool {
		j := &job{id: moraine.JobID(lastU64(key))}
		if bad = j.decode(value); bad != nil {
			return false
		}
		if !op.GetEnded() && !j.live() {
			return true
		}
		if reply.More = len(reply.Jobs) == limit; reply.More {
			return false
		}
		reply.Jobs = append(reply.Jobs, j.toWire())
		return true
	})
	if err == nil {
		err = bad
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Jobs{Jobs: reply}}, err
}

// maxPage is the most records that one answer of a list holds.
const maxPage = 1000

// pageLimit turns a limit asked for into one that is given.
func pageLimit(asked uint32) int {
	if asked == 0 || asked > maxPage {
		return maxPage
	}
	return int(asked)
}
