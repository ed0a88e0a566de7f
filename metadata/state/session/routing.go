package session

import (
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/morainefs/moraine/transport/wire/ops"
)

// firstRouting is the epoch of a state in which no later one began.
const firstRouting = 1

// routingEpoch returns the present epoch.
func routingEpoch(v *kvtx.View) (uint64, error) {
	b, ok, err := v.R.Get(v.K.Meta(record.MetaRouting))
	if err != nil || !ok {
		return firstRouting, err
	}
	return record.DecodeRouting(b)
}

// RoutingEpoch returns the present routing epoch.
func RoutingEpoch(r *kvtx.View) (uint64, error) { return routingEpoch(r) }

// Routed fails with Misrouted if a mutation is for another partition, or was routed by another
// epoch than the present one. Epoch 0 comes from a caller that knows no routing; the service
// decides who may send it. A request that any epoch may send, such as the end of a session, passes.
func Routed(t *kvtx.Tx, req *wire.MetaRequest) error {
	partition := req.GetPartition() != uint32(t.K.P)
	if o := ops.Of(req); !partition && (req.GetRoutingEpoch() == 0 || o != nil && o.Routing == wire.Operation_ANY_EPOCH) {
		return nil
	}
	if partition {
		return kvtx.Fail(moraine.Misrouted, "apply", "", "this server does not serve partition %d", req.GetPartition())
	}
	epoch, err := routingEpoch(&t.View)
	if err == nil && req.GetRoutingEpoch() != epoch {
		err = kvtx.Fail(moraine.Misrouted, "apply", "", "the routing epoch is %d, but the request has %d: renew the session", epoch, req.GetRoutingEpoch())
	}
	return err
}

// Crosses fails with CrossPartition if a request would link an inode of another partition with one
// here. No request supports that yet.
func Crosses(t *kvtx.Tx, req *wire.MetaRequest) error {
	named := tied(req)
	if !slices.ContainsFunc(named, func(id uint64) bool { return id != 0 && moraine.ID(id).Partition() != t.K.P }) {
		return nil
	}
	return kvtx.Fail(moraine.CrossPartition, "apply", "", "the request names inodes of two partitions: copy the file instead")
}

// tied returns the inodes that a request would link to each other.
func tied(req *wire.MetaRequest) (named []uint64) {
	ranges := func(list []*wire.CloneRange) {
		for _, r := range list {
			named = append(named, r.GetInode())
		}
	}
	switch op := req.GetOp().(type) {
	case *wire.MetaRequest_Rename:
		named = append(named, op.Rename.GetParent(), op.Rename.GetNewParent())
	case *wire.MetaRequest_Link:
		named = append(named, op.Link.GetInode(), op.Link.GetParent())
	case *wire.MetaRequest_Commit:
		named = append(named, op.Commit.GetInode(), op.Commit.GetLink().GetParent())
	case *wire.MetaRequest_Clone:
		named = append(named, op.Clone.GetInode(), op.Clone.GetLink().GetParent())
		ranges(op.Clone.GetRanges())
	case *wire.MetaRequest_CloneTree:
		named = append(named, op.CloneTree.GetInode(), op.CloneTree.GetParent())
	case *wire.MetaRequest_Concat:
		named = append(named, op.Concat.GetInode(), op.Concat.GetLink().GetParent(), op.Concat.GetConsume())
		ranges(op.Concat.GetRanges())
	}
	return named
}

// RaiseRouting begins the next epoch. Retrying the request changes nothing.
func RaiseRouting(t *kvtx.Tx, op *wire.RaiseRouting) (*wire.MetaResponse, error) {
	epoch, err := routingEpoch(&t.View)
	switch {
	case err != nil:
		return nil, err
	case op.GetFrom() > epoch || op.GetFrom() == 0:
		return nil, kvtx.Fail(moraine.InvalidArgument, "raise routing", "", "the routing epoch is %d, but the request expects %d", epoch, op.GetFrom())
	case op.GetFrom() < epoch:
		return kvtx.Done(), nil
	}
	t.Put(t.K.Meta(record.MetaRouting), record.EncodeRouting(epoch+1))
	t.Events.Routing = epoch + 1
	return kvtx.Done(), nil
}
