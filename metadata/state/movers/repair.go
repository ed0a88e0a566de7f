package movers

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/content"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// CreateJobs creates the leader's jobs: repairs, moves that balance devices, and rewrites of sparse
// stripes. A repair takes those of its stripes that wait on the queue, with the intents that it
// names. A job that would have no stripes is not created.
func CreateJobs(t *kvtx.Tx, op *statepb.CreateJobs) (*wire.MetaResponse, error) {
	reply := &wire.JobsReply{LeaseMillis: record.JobLeaseMillis}
	for _, w := range op.GetJobs() {
		if w.GetKind() == wire.JobKind_JOB_KIND_REWRITE {
			j, err := content.CreateRewrite(t, w)
			if err != nil {
				return nil, err
			}
			if j != nil {
				reply.Jobs = append(reply.Jobs, j)
			}
			continue
		}
		if !record.OfStripes(w.GetKind()) {
			return nil, kvtx.Fail(moraine.InvalidArgument, "create jobs", w.GetKind().String(), "this request cannot create jobs of this kind")
		}
		if len(w.GetRepairs()) > fleet.MaxRepairStripes {
			return nil, kvtx.Fail(moraine.TooLarge, "create jobs", "", "the request has %d stripes, %d at most", len(w.GetRepairs()), fleet.MaxRepairStripes)
		}
		create := fleet.CreateRepair
		if w.GetKind() == wire.JobKind_JOB_KIND_REBALANCE {
			create = fleet.CreateRebalance
		}
		j, err := create(t, w)
		if err != nil {
			return nil, err
		}
		if j != nil {
			reply.Jobs = append(reply.Jobs, j)
		}
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Jobs{Jobs: reply}}, nil
}
