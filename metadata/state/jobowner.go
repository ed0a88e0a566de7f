package state

import "github.com/morainefs/moraine"

// MaxSessionJobs is the most removals of trees, clones of trees and concatenations
// that one session may have under way: each has records of its own from one small
// request, and waits for its turn.
const MaxSessionJobs = 1024

const ownedVersion = 1

// jobOwner returns the session whose job the command is about to make, 0 for nobody's.
// It fails where the session has too many.
func (t *tx) jobOwner(op string) (moraine.SessionID, error) {
	if t.session == nil {
		return 0, nil
	}
	if ok, err := t.speaks(levelJobOwners); err != nil || !ok {
		return 0, err
	}
	n, err := t.owned(t.session.id)
	if err == nil && n >= MaxSessionJobs {
		err = fail(moraine.Busy, op, t.session.id.String(), "the session has %d jobs under way, %d at most: wait until some have ended (`moraine job ls`)", n, MaxSessionJobs)
	}
	return t.session.id, err
}

// owned returns how many live jobs a session has.
func (v *view) owned(s moraine.SessionID) (uint64, error) {
	b, ok, err := v.r.Get(v.k.sessionJobs(s))
	if err != nil || !ok {
		return 0, err
	}
	return decodeOwned(b)
}

func encodeOwned(n uint64) []byte { return putUvarint([]byte{ownedVersion}, n) }

func decodeOwned(b []byte) (uint64, error) {
	d := dec{b: b}
	d.version(ownedVersion)
	n := d.uvarint()
	return n, d.end("jobs of a session")
}

// countOwned counts a job of its owner's live ones in or out. The count outlives the
// session, until its last job has ended.
func (t *tx) countOwned(j *job, by int) error {
	if j.owner == 0 {
		return nil
	}
	key := t.k.sessionJobs(j.owner)
	b, ok, err := t.Get(key)
	if err != nil {
		return err
	}
	n := uint64(0)
	if ok {
		if n, err = decodeOwned(b); err != nil {
			return err
		}
	}
	if by < 0 && n <= 1 {
		t.del(key)
		return nil
	}
	t.put(key, encodeOwned(uint64(int64(n)+int64(by))))
	return nil
}
