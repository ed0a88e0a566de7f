package jobs

import (
	"encoding/binary"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// Leased reports whether movers lease jobs of a kind. The leader runs the other kinds.
func Leased(kind wire.JobKind) bool {
	return record.OfStripes(kind) || kind == wire.JobKind_JOB_KIND_COMMIT_STEP || kind == wire.JobKind_JOB_KIND_REWRITE ||
		kind == wire.JobKind_JOB_KIND_READ_TRACKER || record.OfTier(kind)
}

// ReadyJobs returns at most limit jobs of the kinds that may be leased or run now. For leased
// kinds, those with an expired lease come first. Then come the pending ones whose time has come, by
// kind, the oldest first.
func ReadyJobs(v *kvtx.View, kinds []wire.JobKind, now uint64, limit int) ([]*record.Job, error) {
	var out []*record.Job
	var err error
	if slices.ContainsFunc(kinds, Leased) {
		if out, err = LapsedJobs(v, kinds, now, limit); err != nil {
			return nil, err
		}
	}
	for _, kind := range kinds {
		keys, err := v.KeysUnder(v.K.JobsReady(uint8(kind)), limit-len(out))
		if err != nil {
			return nil, err
		}
		for _, key := range Due(keys, now) {
			if out, err = AppendJob(v, out, key); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// PendingJobs is ReadyJobs at the present cluster time, in wire form.
func PendingJobs(v *kvtx.View, kinds []wire.JobKind, limit int) ([]*wire.Job, error) {
	c, err := v.Counters()
	if err != nil {
		return nil, err
	}
	ready, err := ReadyJobs(v, kinds, c[record.CClusterTime], limit)
	if err != nil {
		return nil, err
	}
	out := make([]*wire.Job, len(ready))
	for i, j := range ready {
		out[i] = j.ToWire()
	}
	return out, nil
}

// LiveJobs returns at most limit of the jobs of a kind that wait for a mover or are leased.
func LiveJobs(v *kvtx.View, kind wire.JobKind, limit int) (list []*record.Job, err error) {
	keys, err := v.KeysUnder(v.K.JobsReady(uint8(kind)), limit)
	if err != nil {
		return nil, err
	}
	leased, err := v.KeysUnder(v.K.Table(record.TabJobLease), MaxRunningJobs) // leases of any kind
	if err != nil {
		return nil, err
	}
	for _, key := range append(keys, leased...) {
		j, err := Job(v, moraine.JobID(record.LastU64(key)))
		if err != nil {
			return nil, err
		}
		if j != nil && j.Kind == kind && len(list) < limit {
			list = append(list, j)
		}
	}
	return list, nil
}

// Due cuts the keys of pending jobs at the first one whose time has not come.
func Due(keys [][]byte, now uint64) [][]byte {
	n := slices.IndexFunc(keys, func(key []byte) bool { return binary.BigEndian.Uint64(key[len(key)-16:]) > now })
	if n < 0 {
		return keys
	}
	return keys[:n]
}

// LapsedJobs returns jobs of the kinds whose lease has expired.
func LapsedJobs(v *kvtx.View, kinds []wire.JobKind, now uint64, limit int) ([]*record.Job, error) {
	keys, err := v.KeysUnder(v.K.Table(record.TabJobLease), MaxRunningJobs)
	if err != nil {
		return nil, err
	}
	var out []*record.Job
	for _, key := range keys {
		if len(out) == limit || binary.BigEndian.Uint64(key[len(key)-16:]) > now {
			break
		}
		if out, err = AppendJob(v, out, key); err != nil {
			return nil, err
		}
		if !slices.Contains(kinds, out[len(out)-1].Kind) {
			out = out[:len(out)-1]
		}
	}
	return out, nil
}

// MaxRunningJobs bounds how many leases one search for expired ones inspects.
const MaxRunningJobs = 1024

// AppendJob appends the job that an index key ends with. A missing job is Corrupt.
func AppendJob(v *kvtx.View, jobs []*record.Job, key []byte) ([]*record.Job, error) {
	j, err := Job(v, moraine.JobID(record.LastU64(key)))
	if err != nil {
		return nil, err
	}
	if j == nil {
		return nil, kvtx.Corrupt("job index", moraine.JobID(record.LastU64(key)).String(), "an index has the job, which has no record")
	}
	return append(jobs, j), nil
}

// HeldJob returns a live job that the caller leased under the given epoch. It
// fails with Fenced if the job was leased again since. It fails with
// PermissionDenied if another node has that epoch: the number can be guessed
// and is no proof. Administrators may act for a holder.
func HeldJob(t *kvtx.Tx, op string, id, epoch uint64) (*record.Job, error) {
	j, err := Job(&t.View, moraine.JobID(id))
	if err != nil {
		return nil, err
	}
	ref := moraine.JobID(id).String()
	switch {
	case j == nil:
		return nil, kvtx.Fail(moraine.NotFound, op, ref, "no job has this number, or it ended long ago")
	case j.Epoch != epoch || epoch == 0:
		return nil, kvtx.Fail(moraine.Fenced, op, ref, "the job has lease %d now, but the request has lease %d", j.Epoch, epoch)
	case j.State != wire.JobState_JOB_STATE_RUNNING:
		return nil, kvtx.Fail(moraine.Fenced, op, ref, "the job is no longer running")
	}
	return j, MustHold(t, op, j)
}

// MustHold fails if the caller is a node other than the one that leased j.
func MustHold(t *kvtx.Tx, op string, j *record.Job) error {
	if t.Caller.GetRole() == kvtx.RoleChunkserver && t.Caller.GetNode() != j.Holder {
		return kvtx.Fail(moraine.PermissionDenied, op, j.Id.String(), "host %q has the lease of the job", j.Holder)
	}
	return nil
}
