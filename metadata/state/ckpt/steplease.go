package ckpt

import (
	"encoding/binary"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// A read lease prevents the removal of a committed checkpoint while a client restores it. It
// belongs to a session and ends with it. Each has two rows: one by checkpoint, for removals, with
// the number of times that the session took it; and one by session.

// maxStepLeases is the largest number of checkpoints that one session may lease.
const maxStepLeases = 64

// LeaseStep gives the session a read lease on a committed checkpoint, or counts another one.
func LeaseStep(t *kvtx.Tx, op *wire.LeaseStep) (*wire.MetaResponse, error) {
	id := stepFromWire(op.GetKey())
	if _, _, err := runInScope(&t.View, t.Scope, "lease step", id.Run); err != nil {
		return nil, err
	}
	s, err := tree.StepRecord(&t.View, id)
	switch {
	case err != nil:
		return nil, err
	case s == nil || s.State == record.StepDeleted:
		return nil, kvtx.Fail(moraine.NotFound, "lease step", id.String(), "")
	case s.State != record.StepCommitted:
		return nil, kvtx.Fail(moraine.Incomplete, "lease step", id.String(), "the step is not committed")
	}
	times, err := StepLease(&t.View, id, t.Session.Id)
	if err != nil {
		return nil, err
	}
	if times == 0 {
		have, err := t.KeysUnder(t.K.SessionLeases(t.Session.Id), maxStepLeases)
		if err != nil {
			return nil, err
		}
		if len(have) == maxStepLeases {
			return nil, kvtx.Fail(moraine.TooLarge, "lease step", id.String(), "the session reads %d steps, which is the limit: close one", maxStepLeases)
		}
		t.Put(t.K.SessionLease(t.Session.Id, id), []byte{record.StepLeaseVersion})
	}
	t.Put(t.K.StepLease(id, t.Session.Id), record.EncodeStepLease(times+1))
	return stepReply(s), nil
}

// StepLease returns how many read leases a session has on a checkpoint.
func StepLease(v *kvtx.View, id record.StepID, s moraine.SessionID) (uint64, error) {
	b, ok, err := v.R.Get(v.K.StepLease(id, s))
	if err != nil || !ok {
		return 0, err
	}
	return record.DecodeStepLease(b)
}

// ReleaseStep ends one read lease of the session.
func ReleaseStep(t *kvtx.Tx, op *wire.ReleaseStep) (*wire.MetaResponse, error) {
	id := stepFromWire(op.GetKey())
	times, err := StepLease(&t.View, id, t.Session.Id)
	switch {
	case err != nil:
		return nil, err
	case times > 1:
		t.Put(t.K.StepLease(id, t.Session.Id), record.EncodeStepLease(times-1))
	case times == 1:
		t.Del(t.K.StepLease(id, t.Session.Id))
		t.Del(t.K.SessionLease(t.Session.Id, id))
	}
	return kvtx.Done(), nil
}

// DropStepLeases ends the read leases of an ended session.
func DropStepLeases(t *kvtx.Tx, s moraine.SessionID, budget int) (int, error) {
	keys, err := t.KeysUnder(t.K.SessionLeases(s), (budget+1)/2)
	for _, key := range keys {
		t.Del(key)
		t.Del(t.K.StepLease(StepOfKey(key), s))
	}
	return 2 * len(keys), err
}

// mindReaders fails with Busy while a live session has a lease on a checkpoint.
func mindReaders(v *kvtx.View, id record.StepID) error {
	prefix := v.K.StepLeases(id)
	var readers []moraine.SessionID
	err := v.Scan(prefix, kvtx.PrefixEnd(prefix), func(key, _ []byte) bool {
		readers = append(readers, moraine.SessionID(record.LastU64(key)))
		return true
	})
	if err != nil {
		return err
	}
	for _, reader := range readers {
		s, err := v.Session(reader)
		if kvtx.MoraineKind(err) == moraine.SessionExpired {
			continue // the following ticks remove its rows
		}
		if err != nil {
			return err
		}
		return kvtx.Fail(moraine.Busy, "remove step", id.String(), "session %s of node %q reads the step (readers: %d): wait until all readers close it", reader, s.Node, len(readers))
	}
	return nil
}

// mindReadersBelow is mindReaders for all checkpoints below a directory. Read leases are few.
func mindReadersBelow(t *kvtx.Tx, dir *record.Inode) error {
	var leased []record.StepID
	prefix := t.K.Table(record.TabStepLease)
	err := t.Scan(prefix, kvtx.PrefixEnd(prefix), func(key, _ []byte) bool {
		id := StepOfKey(key[:len(key)-8])
		if n := len(leased); n == 0 || leased[n-1] != id {
			leased = append(leased, id)
		}
		return true
	})
	if err != nil {
		return err
	}
	for _, id := range leased {
		s, err := tree.StepRecord(&t.View, id)
		if err != nil {
			return err
		}
		if s == nil || s.State != record.StepCommitted {
			continue
		}
		below, err := tree.Below(&t.View, dir.Id, s.Dir)
		if kvtx.MoraineKind(err) == moraine.NotFound || err == nil && !below {
			continue
		}
		if err != nil {
			return err
		}
		if err := mindReaders(&t.View, id); err != nil {
			return err
		}
	}
	return nil
}

// SessionOfLease returns the session at the start of a TabSessLease key.
func SessionOfLease(key []byte) moraine.SessionID {
	return moraine.SessionID(binary.BigEndian.Uint64(key[3:]))
}
