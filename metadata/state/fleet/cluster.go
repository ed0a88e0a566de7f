package fleet

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// maxSealedKey bounds the private half of a signing key, as the service encrypted it, in bytes.
const maxSealedKey = 256

// AddSigningKey stores the key that signs session tokens from now on. Adding the same key again
// changes nothing.
func AddSigningKey(t *kvtx.Tx, op *statepb.AddSigningKey) (*wire.MetaResponse, error) {
	key := op.GetKey()
	if key.GetId() == 0 || len(key.GetPublicKey()) != 32 || len(key.GetSealed()) == 0 || len(key.GetSealed()) > maxSealedKey {
		return nil, kvtx.Fail(moraine.InvalidArgument, "add signing key", "", "the signing key needs an id, a public key of 32 bytes and a sealed private key")
	}
	v := record.EncodeSigningKey(key)
	old, ok, err := t.Get(t.K.SigningKey(key.GetId()))
	if err != nil {
		return nil, err
	}
	if ok && string(old) != string(v) {
		return nil, kvtx.Fail(moraine.Exists, "add signing key", "", "another signing key has id %d", key.GetId())
	}
	t.Put(t.K.SigningKey(key.GetId()), v)
	return kvtx.Done(), nil
}

// signingKeys returns all keys, oldest id first.
func signingKeys(v *kvtx.View) ([]*wire.SigningKey, error) {
	var out []*wire.SigningKey
	err := v.EachIn(v.K.Table(record.TabSigningKey), func(key, value []byte) (bool, error) {
		k, err := record.DecodeSigningKey(record.LastU64(key), value)
		out = append(out, k)
		return true, err
	})
	return out, err
}
