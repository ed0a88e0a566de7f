package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/names"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/session"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/metadata/state/tier"
	"github.com/morainefs/moraine/metadata/state/usage"
	"github.com/morainefs/moraine/transport/wire"
)

// initialize writes the first records: the identity and the top directory. In partition 0 that is
// moraine.RootInode. In another partition the top has no name until a directory can be named across
// partitions. Repeating the same Init changes nothing.
func initialize(t *kvtx.Tx, op *statepb.Init) (*wire.MetaResponse, error) {
	if len(op.GetCluster()) != len(moraine.UUID{}) || op.GetIncarnation() != 1 {
		return nil, kvtx.Fail(moraine.InvalidArgument, "init", "", "the request needs a cluster UUID of 16 bytes and incarnation 1")
	}
	c := &record.Cluster{Uuid: moraine.UUID(op.GetCluster()), Incarnation: moraine.Incarnation(op.GetIncarnation()), FeatureLevel: 1}
	_, ok, err := t.Get(t.K.Meta(record.MetaCluster))
	if err != nil {
		return nil, err
	}
	if ok {
		have, err := t.Cluster()
		if err != nil {
			return nil, err
		}
		if have.Uuid != c.Uuid {
			return nil, kvtx.Fail(moraine.WrongCluster, "init", have.Uuid.String(), "the state belongs to this cluster, not to %s", c.Uuid)
		}
		return kvtx.Done(), nil
	}
	t.Put(t.K.Meta(record.MetaCluster), c.Encode())
	usage.StartCounting(t)
	_, err = names.MakeInode(t, record.Inode{Typ: record.TypeDirectory, Mode: 0o755, Nlink: 2})
	return kvtx.Done(), err
}

// tick advances cluster time and removes a bounded number of belongings of ended sessions.
func tick(t *kvtx.Tx, op *statepb.Tick) (*wire.MetaResponse, error) {
	if op.GetMillis() > maxTickMillis {
		return nil, kvtx.Fail(moraine.InvalidArgument, "tick", "", "a tick advances cluster time by at most %[2]d ms, not by %[1]d ms", op.GetMillis(), maxTickMillis)
	}
	t.Count[record.CClusterTime] += op.GetMillis()
	if err := fleet.CompareSums(t, op); err != nil {
		return nil, err
	}
	if err := tier.SettleKeys(t); err != nil {
		return nil, err
	}
	if t.Count[record.CEndedSessions] == 0 {
		return kvtx.Done(), nil
	}
	prefix := t.K.Table(record.TabEndedSession)
	ended, err := t.KeysUnder(prefix, maxTickSessions)
	if err != nil {
		return nil, err
	}
	for _, key := range ended {
		budget := session.CleanBudget - len(t.Order)
		if budget <= 0 {
			break
		}
		if err := session.CleanSession(t, moraine.SessionID(record.LastU64(key)), budget); err != nil {
			return nil, err
		}
	}
	return kvtx.Done(), nil
}

// maxTickSessions bounds how many ended sessions one Tick cleans up.
const maxTickSessions = 64

// maxTickMillis bounds how far one Tick advances cluster time.
const maxTickMillis = 1000
