package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// MaxRevocations is the most certificates that may be revoked at once.
	MaxRevocations = 4096
	// MaxRevoke is the most that one command revokes.
	MaxRevoke = 64
)

// revocationKey returns the key of a revocation; InvalidArgument where it does not name
// one thing.
func (k keys) revocation(w *wire.Revocation) ([]byte, error) {
	bad := func(text string) ([]byte, error) {
		return nil, fail(moraine.InvalidArgument, "revoke certificate", w.GetNode(), "%s", text)
	}
	switch {
	case len(w.GetKey()) > 0 && w.GetSerial() != "":
		return bad("name the key or the serial number, not both")
	case len(w.GetNode()) > 128 || len(w.GetRole()) > 32 || len(w.GetSerial()) > 64:
		return bad("a name that is too long")
	case len(w.GetKey()) > 0:
		if len(w.GetKey()) != 32 {
			return bad("a key is named by 32 bytes")
		}
		return append(append(k.key(record.TabRevoked, 33), record.RevokedKey), w.GetKey()...), nil
	case w.GetSerial() != "":
		return append(append(k.key(record.TabRevoked, 65), record.RevokedSerial), w.GetSerial()...), nil
	case w.GetNode() != "":
		b := append(append(k.key(record.TabRevoked, 162), record.RevokedNode), w.GetNode()...)
		return append(append(b, 0), w.GetRole()...), nil
	}
	return bad("name a key, a serial number or a node")
}

// revokeCert puts certificates on the list of those that are not taken any more, or
// takes them off it. Nothing leaves the list by itself: another certificate may have the
// key of an expired one, and the clock that says what has expired may be wrong.
func (m *Machine) revokeCert(t *tx, op *wire.RevokeCert) (*wire.MetaResponse, error) {
	if n := len(op.GetRevocations()); n == 0 || n > MaxRevoke {
		return nil, fail(moraine.InvalidArgument, "revoke certificate", "", "%d certificates; 1 to %d are taken at once", n, MaxRevoke)
	}
	all, err := m.Revocations(t.r)
	if err != nil {
		return nil, err
	}
	have := len(all)
	for _, w := range op.GetRevocations() {
		key, err := t.k.revocation(w)
		if err != nil {
			return nil, err
		}
		_, known, err := t.Get(key)
		switch {
		case err != nil:
			return nil, err
		case op.GetUndo() && !known:
			return nil, fail(moraine.NotFound, "revoke certificate", w.GetNode(), "it is not on the list of revoked certificates")
		case op.GetUndo():
			t.del(key)
			continue
		case !known:
			have++
		}
		if have > MaxRevocations {
			return nil, fail(moraine.TooLarge, "revoke certificate", w.GetNode(), "%d certificates are revoked: take off the list what is no longer needed (`moraine cert revoke --undo`)", MaxRevocations)
		}
		t.put(key, record.EncodeRevocation(w))
	}
	return done(), nil
}

// Revocations returns the certificates that are not taken any more, in the order of
// their keys: keys, serial numbers, nodes.
func (m *Machine) Revocations(r Reader) (all []*wire.Revocation, err error) {
	v := m.view(r)
	prefix := v.k.table(record.TabRevoked)
	var bad error
	err = v.r.Scan(prefix, prefixEnd(prefix), func(key, value []byte) bool {
		var w *wire.Revocation
		if w, bad = record.DecodeRevocation(len(prefix), key, value); bad != nil {
			return false
		}
		all = append(all, w)
		return true
	})
	if err == nil {
		err = bad
	}
	return all, err
}
