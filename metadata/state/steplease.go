package state

import (
	"encoding/binary"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// A read lease keeps a committed checkpoint from being removed while somebody restores
// it. It belongs to a session and ends with it. Each is in two rows: by checkpoint, for
// removals, with how often the session took it; and by session.

// MaxStepLeases is the most checkpoints that one session may lease.
const MaxStepLeases = 64

const stepLeaseVersion = 1

// leaseStep gives the session a read lease on a committed checkpoint, or counts one more.
func (m *Machine) leaseStep(t *tx, op *wire.LeaseStep) (*wire.MetaResponse, error) {
	id := stepFromWire(op.GetKey())
	if _, _, err := t.runInScope(t.scope, "lease step", id.run); err != nil {
		return nil, err
	}
	s, err := t.stepRecord(id)
	switch {
	case err != nil:
		return nil, err
	case s == nil || s.state == stepDeleted:
		return nil, fail(moraine.NotFound, "lease step", id.String(), "")
	case s.state != stepCommitted:
		return nil, fail(moraine.Incomplete, "lease step", id.String(), "it is not committed")
	}
	times, err := t.stepLease(id, t.session.id)
	if err != nil {
		return nil, err
	}
	if times == 0 {
		have, err := t.keysUnder(t.k.sessionLeases(t.session.id), MaxStepLeases)
		if err != nil {
			return nil, err
		}
		if len(have) == MaxStepLeases {
			return nil, fail(moraine.TooLarge, "lease step", id.String(), "the session reads %d checkpoints: close one", MaxStepLeases)
		}
		t.put(t.k.sessionLease(t.session.id, id), []byte{stepLeaseVersion})
	}
	t.put(t.k.stepLease(id, t.session.id), encodeStepLease(times+1))
	return stepReply(s), nil
}

// stepLease returns how often a session leased a checkpoint.
func (v *view) stepLease(id stepID, s moraine.SessionID) (uint64, error) {
	b, ok, err := v.r.Get(v.k.stepLease(id, s))
	if err != nil || !ok {
		return 0, err
	}
	return decodeStepLease(b)
}

func encodeStepLease(times uint64) []byte { return putUvarint([]byte{stepLeaseVersion}, times) }

func decodeStepLease(b []byte) (times uint64, err error) {
	d := dec{b: b}
	d.version(stepLeaseVersion)
	times = d.uvarint()
	return times, d.end("lease of a step")
}

// releaseStep ends one lease of the session.
func (m *Machine) releaseStep(t *tx, op *wire.ReleaseStep) (*wire.MetaResponse, error) {
	id := stepFromWire(op.GetKey())
	times, err := t.stepLease(id, t.session.id)
	switch {
	case err != nil:
		return nil, err
	case times > 1:
		t.put(t.k.stepLease(id, t.session.id), encodeStepLease(times-1))
	case times == 1:
		t.del(t.k.stepLease(id, t.session.id))
		t.del(t.k.sessionLease(t.session.id, id))
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
func (t *tx) mindReaders(id stepID) error {
	prefix := t.k.stepLeases(id)
	var readers []moraine.SessionID
	err := t.Scan(prefix, prefixEnd(prefix), func(key, _ []byte) bool {
		readers = append(readers, moraine.SessionID(lastU64(key)))
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
		return fail(moraine.Busy, "remove step", id.String(), "session %s of %q is reading it (read leases: %d): wait until the readers have closed it", reader, s.node, len(readers))
	}
	return nil
}

// mindReadersBelow is mindReaders of all checkpoints below a directory. Leases are few.
func (t *tx) mindReadersBelow(dir *inode) error {
	var leased []stepID
	prefix := t.k.table(tabStepLease)
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
		if s == nil || s.state != stepCommitted {
			continue
		}
		below, err := t.below(dir.id, s.dir)
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

func (k keys) stepLeases(s stepID) []byte { return s.append(k.key(tabStepLease, 28)) }
func (k keys) stepLease(s stepID, reader moraine.SessionID) []byte {
	return be64(k.stepLeases(s), uint64(reader))
}
func (k keys) sessionLeases(reader moraine.SessionID) []byte {
	return k.u64(tabSessLease, uint64(reader))
}
func (k keys) sessionLease(reader moraine.SessionID, s stepID) []byte {
	return s.append(be64(k.key(tabSessLease, 28), uint64(reader)))
}

// sessionOfLease returns the session that a key of tabSessLease begins with.
func sessionOfLease(key []byte) moraine.SessionID {
	return moraine.SessionID(binary.BigEndian.Uint64(key[3:]))
}
