package jobs

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
)

// MaxSessionJobs bounds the tree removals, tree clones and concatenations that one session may have
// in progress. Each is created by one small request, has records of its own, and waits for its
// turn.
const MaxSessionJobs = 1024

// JobOwner returns the session that owns the job about to be created; 0 for none. It fails if the
// session has too many.
func JobOwner(t *kvtx.Tx, op string) (moraine.SessionID, error) {
	if t.Session == nil {
		return 0, nil
	}
	n, err := owned(&t.View, t.Session.Id)
	if err == nil && n >= MaxSessionJobs {
		err = kvtx.Fail(moraine.Busy, op, t.Session.Id.String(), "the session has %d unfinished jobs, %d at most: wait until some end (`moraine job ls`)", n, MaxSessionJobs)
	}
	return t.Session.Id, err
}

// owned returns the number of a session's live jobs.
func owned(v *kvtx.View, s moraine.SessionID) (uint64, error) {
	b, ok, err := v.R.Get(v.K.SessionJobs(s))
	if err != nil || !ok {
		return 0, err
	}
	return record.DecodeOwned(b)
}

// countOwned changes the number of the owner's live jobs by by. The count outlives the session
// until its last job ends.
func countOwned(t *kvtx.Tx, j *record.Job, by int) error {
	if j.Owner == 0 {
		return nil
	}
	key := t.K.SessionJobs(j.Owner)
	b, ok, err := t.Get(key)
	if err != nil {
		return err
	}
	n := uint64(0)
	if ok {
		if n, err = record.DecodeOwned(b); err != nil {
			return err
		}
	}
	if by < 0 && n <= 1 {
		t.Del(key)
		return nil
	}
	t.Put(key, record.EncodeOwned(uint64(int64(n)+int64(by))))
	return nil
}
