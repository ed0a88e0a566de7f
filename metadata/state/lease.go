package state

import (
	"encoding/binary"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// leased reports whether workers lease jobs of a kind; the others the leader
// runs by itself.
func leased(kind wire.JobKind) bool {
	return record.OfStripes(kind) || kind == wire.JobKind_JOB_KIND_COMMIT_STEP || kind == wire.JobKind_JOB_KIND_REWRITE || record.OfTier(kind)
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
		kinds = slices.DeleteFunc(slices.Clone(kinds), record.OfTier)
	}
	look := t.readyJobs
	if shares, err := t.speaks(levelJobLeases); err != nil {
		return nil, err
	} else if shares {
		look, kinds = t.sharedJobs, shuffled(kinds, t.count[record.CCommands])
	}
	ready, err := look(kinds, t.clusterTime(), int(min(max(op.GetMax(), 1), record.MaxLeaseJobs)))
	if err != nil {
		return nil, err
	}
	reply := &wire.JobsReply{LeaseMillis: record.JobLeaseMillis}
	for _, j := range ready {
		var move *wire.MoveTask
		if record.OfTier(j.Kind) {
			if move, err = m.prepareMove(t, j, op.GetBucket(), op.GetPrefix()); err != nil {
				return nil, err
			}
			if move == nil {
				continue
			}
		}
		t.unindexJob(j)
		j.State, j.Holder = wire.JobState_JOB_STATE_RUNNING, op.GetHost()
		j.Epoch++
		j.Leases++
		j.Until = t.clusterTime() + record.JobLeaseMillis
		t.put(t.k.jobLease(j.Until, j.Id), []byte{record.JobVersion})
		t.putJob(j)
		w := j.ToWire()
		w.Move = move
		if record.OfStripes(j.Kind) {
			if w.Repairs, err = t.repairTasks(j); err != nil {
				return nil, err
			}
		}
		reply.Jobs = append(reply.Jobs, w)
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Jobs{Jobs: reply}}, nil
}

// shuffled returns the kinds in an order drawn by seed. Movers mostly ask for one
// job at a time: in a fixed order a backlog of one kind would keep those behind
// it waiting until it is done; drawn, each kind that has work gets its share of
// the leases. A draw needs no record of whose turn it is, and the number of the
// command is the same on every replica.
func shuffled(kinds []wire.JobKind, seed uint64) []wire.JobKind {
	out := slices.Clone(kinds)
	for n := len(out); n > 1; n-- {
		seed = mix(seed)
		i := seed % uint64(n)
		out[i], out[n-1] = out[n-1], out[i]
	}
	return out
}

// mix is the finaliser of splitmix64: neighbouring numbers come out unrelated.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// readyJobs returns at most limit jobs of the kinds that may be leased or run
// now: those pending whose time has come, the oldest of the first kind first, and
// before them, for kinds that are leased, those whose lease has ended.
func (v *view) readyJobs(kinds []wire.JobKind, now uint64, limit int) ([]*record.Job, error) {
	var out []*record.Job
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
		for _, key := range due(keys, now) {
			if out, err = v.appendJob(out, key); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// sharedJobs is readyJobs with one pending job of each kind in turn.
func (v *view) sharedJobs(kinds []wire.JobKind, now uint64, limit int) ([]*record.Job, error) {
	out, err := v.lapsedJobs(kinds, now, limit)
	if err != nil {
		return nil, err
	}
	var queues [][][]byte // of each kind
	for _, kind := range kinds {
		keys, err := v.keysUnder(v.k.jobsReady(uint8(kind)), limit-len(out))
		if err != nil {
			return nil, err
		}
		queues = append(queues, due(keys, now))
	}
	for turn := 0; len(out) < limit; turn++ {
		took := false
		for _, keys := range queues {
			if turn >= len(keys) || len(out) == limit {
				continue
			}
			if out, err = v.appendJob(out, keys[turn]); err != nil {
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

// due cuts the keys of pending jobs off at the first whose time has not come.
func due(keys [][]byte, now uint64) [][]byte {
	n := slices.IndexFunc(keys, func(key []byte) bool { return binary.BigEndian.Uint64(key[len(key)-16:]) > now })
	if n < 0 {
		return keys
	}
	return keys[:n]
}

// lapsedJobs returns jobs of the kinds whose lease has ended.
func (v *view) lapsedJobs(kinds []wire.JobKind, now uint64, limit int) ([]*record.Job, error) {
	keys, err := v.keysUnder(v.k.table(record.TabJobLease), maxRunningJobs)
	if err != nil {
		return nil, err
	}
	var out []*record.Job
	for _, key := range keys {
		if len(out) == limit || binary.BigEndian.Uint64(key[len(key)-16:]) > now {
			break
		}
		if out, err = v.appendJob(out, key); err != nil {
			return nil, err
		}
		if !slices.Contains(kinds, out[len(out)-1].Kind) {
			out = out[:len(out)-1]
		}
	}
	return out, nil
}

// maxRunningJobs bounds how many leases one look for lapsed ones goes over.
const maxRunningJobs = 1024

func (v *view) appendJob(jobs []*record.Job, key []byte) ([]*record.Job, error) {
	j, err := v.job(moraine.JobID(record.LastU64(key)))
	if err != nil {
		return nil, err
	}
	if j == nil {
		return nil, &moraine.Error{Op: "job index", Ref: moraine.JobID(record.LastU64(key)).String(), Kind: moraine.Corrupt}
	}
	return append(jobs, j), nil
}

// heldJob returns a live job under the lease epoch that the caller holds it by;
// Fenced where it was leased anew since, PermissionDenied where that epoch is
// another node's: a number that can be guessed is no proof. Admins may speak for
// a holder.
func (t *tx) heldJob(op string, id, epoch uint64) (*record.Job, error) {
	j, err := t.job(moraine.JobID(id))
	if err != nil {
		return nil, err
	}
	ref := moraine.JobID(id).String()
	switch {
	case j == nil:
		return nil, fail(moraine.NotFound, op, ref, "the job ended long ago")
	case j.Epoch != epoch || epoch == 0:
		return nil, fail(moraine.Fenced, op, ref, "the lease is %d by now, not %d", j.Epoch, epoch)
	case j.State != wire.JobState_JOB_STATE_RUNNING:
		return nil, fail(moraine.Fenced, op, ref, "the job is not running any more")
	}
	return j, t.mustHold(op, j)
}

// mustHold fails where the caller is a node, and not the one that leased j.
func (t *tx) mustHold(op string, j *record.Job) error {
	checked, err := t.speaks(levelJobLeases)
	if err == nil && checked && !t.holds(j) {
		err = fail(moraine.PermissionDenied, op, j.Id.String(), "the lease is %q's", j.Holder)
	}
	return err
}

// holds reports whether the caller is the one that leased a job last, or may
// speak for it.
func (t *tx) holds(j *record.Job) bool {
	return t.caller.GetRole() != roleChunkserver || t.caller.GetNode() == j.Holder
}

// renewJob keeps a lease, and notes progress.
func (m *Machine) renewJob(t *tx, op *wire.RenewJob) (*wire.MetaResponse, error) {
	j, err := t.heldJob("renew job", op.GetId(), op.GetLeaseEpoch())
	if err != nil {
		return nil, err
	}
	t.del(t.k.jobLease(j.Until, j.Id))
	j.Until = t.clusterTime() + record.JobLeaseMillis
	j.Done, j.Total = op.GetDone(), max(op.GetTotal(), op.GetDone())
	t.put(t.k.jobLease(j.Until, j.Id), []byte{record.JobVersion})
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
	if j != nil && j.Epoch == op.GetLeaseEpoch() && j.State != wire.JobState_JOB_STATE_RUNNING {
		return done(), nil // the answer was lost
	}
	if j, err = t.heldJob("finish job", op.GetId(), op.GetLeaseEpoch()); err != nil {
		return nil, err
	}
	if record.OfTier(j.Kind) {
		return done(), m.finishMove(t, j, op)
	}
	if op.GetError() == "" {
		return done(), m.endJob(t, j, wire.JobState_JOB_STATE_DONE, "")
	}
	reason := record.Clip(op.GetError(), moraine.MaxNameLen)
	j.Tries++
	// A repair that failed is planned anew, against what is alive then; so is what
	// rewrites stripes.
	if op.GetFinal() || j.Tries >= record.MaxJobTries || record.OfStripes(j.Kind) || j.Kind == wire.JobKind_JOB_KIND_REWRITE {
		return done(), m.endJob(t, j, wire.JobState_JOB_STATE_FAILED, reason)
	}
	j.Err = reason
	m.retryJob(t, j)
	return done(), nil
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
	case !j.Live():
		return done(), nil
	case record.OfFile(j.Kind):
		return done(), m.cancelMove(t, j, "canceled by "+record.Clip(t.caller.GetNode(), 100))
	case j.Kind == wire.JobKind_JOB_KIND_CLONE_TREE, j.Kind == wire.JobKind_JOB_KIND_CONCAT:
		if j.Ending == 0 {
			j.Ending, j.Err = wire.JobState_JOB_STATE_CANCELED, "canceled by "+record.Clip(t.caller.GetNode(), 100)
			t.putJob(j) // ends once what was built has been let go
		}
		return done(), nil
	case j.Kind == wire.JobKind_JOB_KIND_MOVE_TREE:
		return done(), m.cancelTree(t, j, "canceled by "+record.Clip(t.caller.GetNode(), 100))
	case !leased(j.Kind) || j.Kind == wire.JobKind_JOB_KIND_DELETE_OBJECT: // nobody would ask for it again
		return nil, fail(moraine.InvalidArgument, "cancel job", j.Id.String(), "a %s job finishes what is half done, and cannot be stopped", j.Kind)
	}
	return done(), m.endJob(t, j, wire.JobState_JOB_STATE_CANCELED, "canceled by "+record.Clip(t.caller.GetNode(), 100))
}

// seesJob reports whether a job is one of a scope: a session of it asked for the job,
// or the job is about a file that it may name.
func (v *view) seesJob(sc scope, j *record.Job) (bool, error) {
	if sc.root == v.k.top() {
		return true, nil
	}
	about := j.Scope
	if about == 0 && (record.OfFile(j.Kind) || j.Kind == wire.JobKind_JOB_KIND_MOVE_TREE || j.Kind == wire.JobKind_JOB_KIND_CONCAT) {
		about = moraine.InodeID(j.Target)
	}
	if about == 0 {
		return false, nil
	}
	i, err := v.inode(about)
	if moraineKind(err) == moraine.NotFound {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return v.inScope(sc, i)
}

// inJobScope reports whether an inode is where the session could name it that asked for a job:
// what was moved away from there since is not the job's any more.
func (v *view) inJobScope(j *record.Job, i *record.Inode) (bool, error) {
	if j.Scope == 0 {
		return true, nil
	}
	return v.inScope(scope{root: j.Scope}, i)
}

// readJobs lists jobs by number, oldest first. A session that is confined to a directory
// asks by number, and sees the jobs of its scope.
func (v *view) readJobs(sc scope, op *wire.ListJobs) (*wire.MetaResponse, error) {
	reply := &wire.JobsReply{LeaseMillis: record.JobLeaseMillis}
	if op.GetId() != 0 {
		j, err := v.job(moraine.JobID(op.GetId()))
		if err != nil {
			return nil, err
		}
		sees := false
		if j != nil {
			if sees, err = v.seesJob(sc, j); err != nil {
				return nil, err
			}
		}
		if !sees {
			return nil, fail(moraine.NotFound, "list jobs", moraine.JobID(op.GetId()).String(), "")
		}
		reply.Jobs = append(reply.Jobs, j.ToWire())
		return &wire.MetaResponse{Result: &wire.MetaResponse_Jobs{Jobs: reply}}, nil
	}
	if sc.root != v.k.top() {
		return nil, fail(moraine.PermissionDenied, "list jobs", "", "a session that is confined to a directory may ask only for a job by its number")
	}
	limit := pageLimit(op.GetLimit())
	var bad error
	err := v.r.Scan(v.k.job(moraine.JobID(op.GetAfter()+1)), prefixEnd(v.k.table(record.TabJob)), func(key, value []byte) bool {
		j := &record.Job{Id: moraine.JobID(record.LastU64(key))}
		if bad = j.Decode(value); bad != nil {
			return false
		}
		if !op.GetEnded() && !j.Live() {
			return true
		}
		if reply.More = len(reply.Jobs) == limit; reply.More {
			return false
		}
		reply.Jobs = append(reply.Jobs, j.ToWire())
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
