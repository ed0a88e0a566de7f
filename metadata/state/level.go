package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

func setFeatureLevel(t *kvtx.Tx, op *statepb.SetFeatureLevel) (*wire.MetaResponse, error) {
	c, err := t.Cluster()
	if err != nil {
		return nil, err
	}
	if op.GetLevel() < c.FeatureLevel {
		return nil, kvtx.Fail(moraine.InvalidArgument, "set feature level", "", "level %d is below the present level %d", op.GetLevel(), c.FeatureLevel)
	}
	if op.GetLevel() > t.B.Space.Level {
		// This build does not implement the new level. Applying later entries would make the
		// replicas differ, so the node stops here.
		return nil, kvtx.Fail(moraine.NewerFormat, "set feature level", "", "this build does not support level %d, only up to %d: start a newer build", op.GetLevel(), t.B.Space.Level)
	}
	c.FeatureLevel = op.GetLevel()
	t.Put(t.K.Meta(record.MetaCluster), c.Encode())
	return kvtx.Done(), nil
}
