package session

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// MaxRevocations is the largest number of revoked certificates.
	MaxRevocations = 4096
	// MaxRevoke is the largest number of certificates in one command.
	MaxRevoke = 64
)

// RevokeCert adds certificates to the list of revoked ones, or removes them.
// Nothing expires from the list. Another certificate may have the key of an
// expired one, and the clock that decides what has expired may be wrong.
func RevokeCert(t *kvtx.Tx, op *wire.RevokeCert) (*wire.MetaResponse, error) {
	if n := len(op.GetRevocations()); n == 0 || n > MaxRevoke {
		return nil, kvtx.Fail(moraine.InvalidArgument, "revoke certificate", "", "the request has %d certificates, but must have 1 to %d", n, MaxRevoke)
	}
	all, err := Revocations(&t.View)
	if err != nil {
		return nil, err
	}
	have := len(all)
	for _, w := range op.GetRevocations() {
		key, err := t.K.Revocation(w)
		if err != nil {
			return nil, err
		}
		_, known, err := t.Get(key)
		switch {
		case err != nil:
			return nil, err
		case op.GetUndo() && !known:
			return nil, kvtx.Fail(moraine.NotFound, "revoke certificate", w.GetNode(), "the certificate is not revoked")
		case op.GetUndo():
			t.Del(key)
			continue
		case !known:
			have++
		}
		if have > MaxRevocations {
			return nil, kvtx.Fail(moraine.TooLarge, "revoke certificate", w.GetNode(), "%d certificates are revoked, which is the limit: undo revocations that nobody needs (`moraine cert revoke --undo`)", MaxRevocations)
		}
		t.Put(key, record.EncodeRevocation(w))
	}
	return kvtx.Done(), nil
}

// Revocations returns the revoked certificates in key order: keys, serial numbers, nodes.
func Revocations(v *kvtx.View) (all []*wire.Revocation, err error) {
	prefix := v.K.Table(record.TabRevoked)
	err = v.EachIn(prefix, func(key, value []byte) (bool, error) {
		w, err := record.DecodeRevocation(len(prefix), key, value)
		if err != nil {
			return false, err
		}
		all = append(all, w)
		return true, nil
	})
	return all, err
}
