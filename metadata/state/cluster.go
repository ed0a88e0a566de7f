package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// cluster returns the cluster's record; Unavailable before Init.
// The caller may change it.
func (v *view) cluster() (*record.Cluster, error) {
	b, ok, err := v.r.Get(v.k.meta(record.MetaCluster))
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fail(moraine.Unavailable, "apply", "", "the cluster has not been initialized yet")
	}
	c := &record.Cluster{}
	return c, c.Decode(b)
}

// identity is cluster for those who only look.
func (t *tx) identity() (*record.Cluster, error) {
	c, err := look[record.Cluster](&t.view, t.k.meta(record.MetaCluster))
	if err == nil && c == nil {
		return t.cluster() // which says that there is none
	}
	return c, err
}

// init writes the first records: the identity, and the directory at the top, which
// of partition 0 is the root, moraine.RootInode, and of another has no name in any
// until a directory can be named across partitions. The same Init again changes
// nothing.
func (m *Machine) init(t *tx, op *statepb.Init) (*wire.MetaResponse, error) {
	if len(op.GetCluster()) != len(moraine.UUID{}) || op.GetIncarnation() != 1 {
		return nil, fail(moraine.InvalidArgument, "init", "", "want a UUID of 16 bytes and incarnation 1")
	}
	c := &record.Cluster{Uuid: moraine.UUID(op.GetCluster()), Incarnation: moraine.Incarnation(op.GetIncarnation()), FeatureLevel: 1}
	_, ok, err := t.Get(t.k.meta(record.MetaCluster))
	if err != nil {
		return nil, err
	}
	if ok {
		have, err := t.cluster()
		if err != nil {
			return nil, err
		}
		if have.Uuid != c.Uuid {
			return nil, fail(moraine.WrongCluster, "init", have.Uuid.String(), "already the state of another cluster than %s", c.Uuid)
		}
		return done(), nil
	}
	t.put(t.k.meta(record.MetaCluster), c.Encode())
	if op.GetNames() {
		t.count[record.CNames] = 1
	}
	_, err = m.makeInode(t, record.Inode{Typ: record.TypeDirectory, Mode: 0o755, Nlink: 2})
	return done(), err
}

// tick advances cluster time, and does a bounded piece of cleaning up after
// sessions that ended.
func (m *Machine) tick(t *tx, op *statepb.Tick) (*wire.MetaResponse, error) {
	if op.GetMillis() > maxTickMillis {
		return nil, fail(moraine.InvalidArgument, "tick", "", "%d ms is more than %d", op.GetMillis(), maxTickMillis)
	}
	t.count[record.CClusterTime] += op.GetMillis()
	if err := t.compareSums(op); err != nil {
		return nil, err
	}
	if err := m.settleKeys(t); err != nil {
		return nil, err
	}
	if t.count[record.CEndedSessions] == 0 {
		return done(), nil
	}
	prefix := t.k.table(record.TabEndedSession)
	ended, err := t.keysUnder(prefix, maxTickSessions)
	if err != nil {
		return nil, err
	}
	for _, key := range ended {
		budget := cleanBudget - len(t.order)
		if budget <= 0 {
			break
		}
		if err := m.cleanSession(t, moraine.SessionID(record.LastU64(key)), budget); err != nil {
			return nil, err
		}
	}
	return done(), nil
}

// maxTickSessions bounds how many ended sessions one Tick cleans up after.
const maxTickSessions = 64

// maxTickMillis bounds how far one Tick advances cluster time.
const maxTickMillis = 1000

// maxSealedKey bounds the private half of a signing key as the service sealed it, in
// bytes.
const maxSealedKey = 256

// addSigningKey keeps the key that session tokens are signed with from now on.
// The same key again changes nothing.
func (m *Machine) addSigningKey(t *tx, op *statepb.AddSigningKey) (*wire.MetaResponse, error) {
	key := op.GetKey()
	if key.GetId() == 0 || len(key.GetPublicKey()) != 32 || len(key.GetSealed()) == 0 || len(key.GetSealed()) > maxSealedKey {
		return nil, fail(moraine.InvalidArgument, "add signing key", "", "want an id, an Ed25519 key of 32 bytes, and its sealed half")
	}
	v := record.EncodeSigningKey(key)
	old, ok, err := t.Get(t.k.signingKey(key.GetId()))
	if err != nil {
		return nil, err
	}
	if ok && string(old) != string(v) {
		return nil, fail(moraine.Exists, "add signing key", "", "id %d is another key", key.GetId())
	}
	t.put(t.k.signingKey(key.GetId()), v)
	return done(), nil
}

// signingKeys returns all keys, oldest id first.
func (v *view) signingKeys() ([]*wire.SigningKey, error) {
	var out []*wire.SigningKey
	var bad error
	prefix := v.k.table(record.TabSigningKey)
	err := v.r.Scan(prefix, prefixEnd(prefix), func(key, value []byte) bool {
		var k *wire.SigningKey
		k, bad = record.DecodeSigningKey(record.LastU64(key), value)
		out = append(out, k)
		return bad == nil
	})
	if err == nil {
		err = bad
	}
	return out, err
}
