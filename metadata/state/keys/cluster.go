package keys

import (
	"errors"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// clusterKeys are the keys of the cluster, its tenants, members and certificates.
type clusterKeys struct{ partition }

func (k clusterKeys) Meta(name byte) []byte { return append(k.Key(record.TabMeta, 1), name) }

func (k clusterKeys) SigningKey(id uint64) []byte { return k.U64(record.TabSigningKey, id) }

func (k clusterKeys) Tenant(t moraine.Tenant) []byte {
	return record.Be32(k.Key(record.TabTenant, 4), uint32(t))
}

func (k clusterKeys) TenantName(name string) []byte {
	return append(k.Key(record.TabTenantName, len(name)), name...)
}

func (k clusterKeys) Member(id string) []byte { return append(k.Key(record.TabMember, len(id)), id...) }

// Revocation returns the key of a revocation. It fails with InvalidArgument unless w names exactly
// one thing.
func (k clusterKeys) Revocation(w *wire.Revocation) ([]byte, error) {
	bad := func(text string) ([]byte, error) {
		return nil, &moraine.Error{Op: "revoke certificate", Ref: w.GetNode(), Kind: moraine.InvalidArgument, Err: errors.New(text)}
	}
	switch {
	case len(w.GetKey()) > 0 && w.GetSerial() != "":
		return bad("the request names both a key and a serial number: name one of them")
	case len(w.GetNode()) > 128 || len(w.GetRole()) > 32 || len(w.GetSerial()) > 64:
		return bad("the node, the role or the serial number is too long")
	case len(w.GetKey()) > 0:
		if len(w.GetKey()) != 32 {
			return bad("the fingerprint of the key must have 32 bytes")
		}
		return append(append(k.Key(record.TabRevoked, 33), record.RevokedKey), w.GetKey()...), nil
	case w.GetSerial() != "":
		return append(append(k.Key(record.TabRevoked, 65), record.RevokedSerial), w.GetSerial()...), nil
	case w.GetNode() != "":
		b := append(append(k.Key(record.TabRevoked, 162), record.RevokedNode), w.GetNode()...)
		return append(append(b, 0), w.GetRole()...), nil
	}
	return bad("the request names no certificate: name a key, a serial number or a node")
}
