package jobs

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
)

// MaxSessionJobs is the most removals of trees, clones of trees and concatenations
// that one session may have under way: each has records of its own from one small
// request, and waits for its turn.
const MaxSessionJobs = 1024

// JobOwner returns the session whose job the command is about to make, 0 for nobody's.
// It fails where the session has too many.
func JobOwner(t *kvtx.Tx, op string) (moraine.SessionID, error) {
	if t.Session == nil {
		return 0, nil
	}
	if ok, err := t.Speaks(kvtx.LevelJobOwners); err != nil || !ok {
		return 0, err
	}
	n, err := Owned(&t.View, t.Session.Id)
	if err == nil && n >= MaxSessionJobs {
		err = kvtx.Fail(moraine.Busy, op, t.Session.Id.String(), "the session has %d jobs under way, %d at most: wait until some have ended (`moraine job ls`)", n, MaxSessionJobs)
	}
	return t.Session.Id, err
}

// Owned returns how many live jobs a session has.
func Owned(v *kvtx.View, s moraine.SessionID) (uint64, error) {
	b, ok, err := v.R.Get(v.K.SessionJobs(s))
	if err != nil || !ok {
		return 0, err
	}
	return record.DecodeOwned(b)
}

// CountOwned counts a job of its owner's live ones in or out. The count outlives the
// session, until its last job has ended.
func CountOwned(t *kvtx.Tx, j *record.Job, by int) error {
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
