package state

import (
	"encoding/binary"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// A read lease keeps a committed checkpoint from being removed while somebody restores
// it. It belongs to a session and ends with it. Each is in two rows: by checkpoint, for
// removals, with how often the session took it; and by session.

// MaxStepLeases is the most checkpoints that one session may lease.
const MaxStepLeases = 64

// leaseStep gives the session a read lease on a committed checkpoint, or counts one more.
func (m *Machine) leaseStep(t *tx, op *wire.LeaseStep) (*wire.MetaResponse, error) {
	id := stepFromWire(op.GetKey())
	if _, _, err := t.runInScope(t.scope, "lease step", id.Run); err != nil {
		return nil, err
	}
	s, err := t.stepRecord(id)
	switch {
	case err != nil:
		return nil, err
	case s == nil || s.State == record.StepDeleted:
		return nil, fail(moraine.NotFound, "lease step", id.String(), "")
	case s.State != record.StepCommitted:
		return nil, fail(moraine.Incomplete, "lease step", id.String(), "it is not committed")
	}
	times, err := t.stepLease(id, t.session.Id)
	if err != nil {
		return nil, err
	}
	if times == 0 {
		have, err := t.keysUnder(t.k.sessionLeases(t.session.Id), MaxStepLeases)
		if err != nil {
			return nil, err
		}
		if len(have) == MaxStepLeases {
			return nil, fail(moraine.TooLarge, "lease step", id.String(), "the session reads %d checkpoints: close one", MaxStepLeases)
		}
		t.put(t.k.sessionLease(t.session.Id, id), []byte{record.StepLeaseVersion})
	}
	t.put(t.k.stepLease(id, t.session.Id), record.EncodeStepLease(times+1))
	return stepReply(s), nil
}

// stepLease returns how often a session leased a checkpoint.
func (v *view) stepLease(id record.StepID, s moraine.SessionID) (uint64, error) {
	b, ok, err := v.r.Get(v.k.stepLease(id, s))
	if err != nil || !ok {
		return 0, err
	}
	return record.DecodeStepLease(b)
}

// releaseStep ends one lease of the session.
func (m *Machine) releaseStep(t *tx, op *wire.ReleaseStep) (*wire.MetaResponse, error) {
	id := stepFromWire(op.GetKey())
	times, err := t.stepLease(id, t.session.Id)
	switch {
	case err != nil:
		return nil, err
	case times > 1:
		t.put(t.k.stepLease(id, t.session.Id), record.EncodeStepLease(times-1))
	case times == 1:
		t.del(t.k.stepLease(id, t.session.Id))
		t.del(t.k.sessionLease(t.session.Id, id))
	}
	return done(), nil
}

// dropStepLeases ends the leases of an ended session.
func (m *Machine) dropStepLeases(t *tx, s moraine.SessionID, budget int) (int, error) {
	keys, err := t.keysUnder(t.k.sessionLeases(s), (budget+1)/2)
	for _, key := range keys {
		t.del(key)
		t.del(t.k.stepLease(stepOfKey(key), s))
	}
	return 2 * len(keys), err
}

// mindReaders fails with Busy while a live session has a lease on a checkpoint.
func (t *tx) mindReaders(id record.StepID) error {
	prefix := t.k.stepLeases(id)
	var readers []moraine.SessionID
	err := t.Scan(prefix, prefixEnd(prefix), func(key, _ []byte) bool {
		readers = append(readers, moraine.SessionID(record.LastU64(key)))
		return true
	})
	if err != nil {
		return err
	}
	for _, reader := range readers {
		s, err := t.view.session(reader)
		if moraineKind(err) == moraine.SessionExpired {
			continue // its rows go with the next ticks
		}
		if err != nil {
			return err
		}
		return fail(moraine.Busy, "remove step", id.String(), "session %s of %q is reading it (read leases: %d): wait until the readers have closed it", reader, s.Node, len(readers))
	}
	return nil
}

// mindReadersBelow is mindReaders of all checkpoints below a directory. Leases are few.
func (t *tx) mindReadersBelow(dir *record.Inode) error {
	var leased []record.StepID
	prefix := t.k.table(record.TabStepLease)
	err := t.Scan(prefix, prefixEnd(prefix), func(key, _ []byte) bool {
		id := stepOfKey(key[:len(key)-8])
		if n := len(leased); n == 0 || leased[n-1] != id {
			leased = append(leased, id)
		}
		return true
	})
	if err != nil {
		return err
	}
	for _, id := range leased {
		s, err := t.stepRecord(id)
		if err != nil {
			return err
		}
		if s == nil || s.State != record.StepCommitted {
			continue
		}
		below, err := t.below(dir.Id, s.Dir)
		if moraineKind(err) == moraine.NotFound || err == nil && !below {
			continue
		}
		if err != nil {
			return err
		}
		if err := t.mindReaders(id); err != nil {
			return err
		}
	}
	return nil
}

// Keys of leases.

func (k keys) stepLeases(s record.StepID) []byte { return s.Append(k.key(record.TabStepLease, 28)) }

func (k keys) stepLease(s record.StepID, reader moraine.SessionID) []byte {
	return record.Be64(k.stepLeases(s), uint64(reader))
}

func (k keys) sessionLeases(reader moraine.SessionID) []byte {
	return k.u64(record.TabSessLease, uint64(reader))
}

func (k keys) sessionLease(reader moraine.SessionID, s record.StepID) []byte {
	return s.Append(record.Be64(k.key(record.TabSessLease, 28), uint64(reader)))
}

// sessionOfLease returns the session that a key of tabSessLease begins with.
func sessionOfLease(key []byte) moraine.SessionID {
	return moraine.SessionID(binary.BigEndian.Uint64(key[3:]))
}
