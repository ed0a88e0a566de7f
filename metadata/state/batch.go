package state

import (
	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/ckpt"
	"github.com/morainefs/moraine/metadata/state/content"
	"github.com/morainefs/moraine/metadata/state/delegation"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/layout"
	"github.com/morainefs/moraine/metadata/state/names"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/session"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// maxBatchAge is how long before its entry a change of a batch may have been made, in nanoseconds.
	maxBatchAge = int64(3_600_000_000_000)
	// maxBatchText bounds each text of an error in the answer to a batch, in bytes. Errors after the
	// first maxBatchTexts have a kind alone, since the answer is kept.
	maxBatchText, maxBatchTexts = 200, 8
	// batchKeys is how many keys a batch writes before content that its changes remove is left to
	// jobs. A batch of removals of small files needs fewer.
	batchKeys = 32 * wire.MaxBatchOps
)

// batchRun is a batch that is applied.
type batchRun struct {
	Batch
	cmd    *statepb.Command
	s      *record.Session
	res    *Result
	keys   int // that its changes have written
	failed int // changes
}

// changes applies a batch. Each change is a transaction of its own, as if it were a request. The
// answer is kept for the batch as a whole.
func (b Batch) changes(cmd *statepb.Command, req *wire.MetaRequest) (Result, error) {
	t := b.begin(cmd)
	s, kept, err := admit(t, req)
	if err != nil {
		if kvtx.IsAnswer(err) {
			b.Merge(t)
			return Result{Response: kvtx.Refuse(err)}, nil
		}
		return Result{}, err
	}
	res := Result{Response: kept, Repeated: kept != nil}
	if kept != nil {
		err = session.AbandonNumbers(t, s, req)
		b.Merge(t)
		return res, err
	}
	if err := mayBatch(s, req); err != nil {
		res.Response = kvtx.Refuse(err)
	} else {
		reply := &wire.BatchReply{Now: t.Now, Results: make([]*wire.BatchResult, len(req.GetBatch().GetOps()))}
		run := batchRun{Batch: b, cmd: cmd, s: s, res: &res}
		for n, op := range req.GetBatch().GetOps() {
			if reply.Results[n], err = run.change(op); err != nil {
				return Result{}, err
			}
		}
		res.Response = &wire.MetaResponse{Result: &wire.MetaResponse_Batch{Batch: reply}}
	}
	t = b.begin(cmd)
	t.Session = s
	if err := session.Keep(t, s, s.AckedBelow, req, res.Response); err != nil {
		return Result{}, err
	}
	b.Merge(t)
	return res, nil
}

// mayBatch checks a batch as a whole.
func mayBatch(s *record.Session, req *wire.MetaRequest) error {
	batch := req.GetBatch()
	switch n := len(batch.GetOps()); {
	case s.ReadOnly:
		return kvtx.Fail(moraine.ReadOnly, "batch", "", "the session was opened for reading only")
	case n == 0 || n > wire.MaxBatchOps:
		return kvtx.Fail(moraine.InvalidArgument, "batch", "", "the batch has %d changes, but must have 1 to %d", n, wire.MaxBatchOps)
	case proto.Size(batch) > wire.MaxBatchBytes:
		return kvtx.Fail(moraine.TooLarge, "batch", "", "the batch has %d bytes, %d at most", proto.Size(batch), wire.MaxBatchBytes)
	}
	return nil
}

// change applies one change of a batch, and adds to the result what it touched.
func (r *batchRun) change(op *wire.BatchOp) (*wire.BatchResult, error) {
	t := r.begin(r.cmd)
	if at := op.GetAt(); at != 0 {
		t.Now = min(max(at, t.Now-maxBatchAge), t.Now)
	}
	t.Session, t.Scope = r.s, kvtx.GrantedScope(r.s)
	t.Spent, t.Answered = max(0, r.keys-batchKeys), op.GetAnswered()
	t.MayMeet(r.s.Id)
	result := &wire.BatchResult{}
	resp, err := guard(t, func() (*wire.MetaResponse, error) {
		resp, err := changing(t, op, result)
		if err != nil {
			return nil, err
		}
		met, err := delegation.Met(&t.View, t.Scope)
		if err == nil && len(met) > 0 {
			err = kvtx.Fail(moraine.Stale, "batch", met[0].Dir.String(), "the directory is delegated to another session")
		}
		return resp, err
	})
	if err != nil {
		return nil, err
	}
	if e := resp.GetError(); e != nil {
		result = &wire.BatchResult{Error: r.failure(e)}
	} else {
		result.Full = t.Answered && layout.FullInline(t)
	}
	r.keys += len(t.Order)
	r.Merge(t)
	r.res.Touched, r.res.Read = append(r.res.Touched, t.Touched...), append(r.res.Read, t.Read...)
	r.res.Events.Add(t.Events)
	return result, nil
}

// failure shortens the error of a change.
func (r *batchRun) failure(e *wire.Error) *wire.Error {
	if r.failed++; r.failed > maxBatchTexts {
		return &wire.Error{Kind: e.Kind}
	}
	e.Op, e.Ref, e.Text = record.Clip(e.Op, maxBatchText), record.Clip(e.Ref, maxBatchText), record.Clip(e.Text, maxBatchText)
	return e
}

// changing applies a change whose directories are delegated to the session.
func changing(t *kvtx.Tx, change *wire.BatchOp, result *wire.BatchResult) (*wire.MetaResponse, error) {
	switch op := change.GetOp().(type) {
	case *wire.BatchOp_Create:
		return creating(t, change, op.Create, result)
	case *wire.BatchOp_Remove:
		if err := delegation.Owns(t, op.Remove.GetParent()); err != nil {
			return nil, err
		}
		return ckpt.Remove(t, op.Remove)
	case *wire.BatchOp_Rename:
		if op.Rename.GetWhiteout() || op.Rename.GetForce() {
			return nil, kvtx.Fail(moraine.InvalidArgument, "batch", op.Rename.GetName(), "a batch has no rename with whiteout or force")
		}
		if err := delegation.Owns(t, op.Rename.GetParent(), op.Rename.GetNewParent()); err != nil {
			return nil, err
		}
		return names.Rename(t, op.Rename)
	case *wire.BatchOp_SetAttr:
		if op.SetAttr.GetValid()&uint32(wire.SetAttrField_SET_ATTR_SIZE) != 0 {
			return nil, kvtx.Fail(moraine.InvalidArgument, "batch", "", "a batch sets no size")
		}
		if err := delegation.OwnsInode(t, op.SetAttr.GetInode()); err != nil {
			return nil, err
		}
		return names.SetAttr(t, op.SetAttr)
	case *wire.BatchOp_Commit:
		if c := op.Commit; len(c.GetStripes())+len(c.GetExtents()) > 0 || c.GetLink() != nil || c.GetNewFile() != nil || c.GetMode() != wire.CommitMode_COMMIT_MODE_REPLACE {
			return nil, kvtx.Fail(moraine.InvalidArgument, "batch", "", "a batch has only commits of whole content, without stripes")
		}
		if err := delegation.OwnsInode(t, op.Commit.GetInode()); err != nil {
			return nil, err
		}
		return content.Commit(t, op.Commit)
	}
	return nil, kvtx.Fail(moraine.InvalidArgument, "batch", "", "a change of the batch has no known operation")
}

// creating makes an inode with a reserved number.
func creating(t *kvtx.Tx, change *wire.BatchOp, op *wire.Create, result *wire.BatchResult) (*wire.MetaResponse, error) {
	if op.GetUnlinked() || op.GetTenant() != "" {
		return nil, kvtx.Fail(moraine.InvalidArgument, "batch", op.GetName(), "a batch creates no file without a name, and names no tenant")
	}
	if err := delegation.Owns(t, op.GetParent()); err != nil {
		return nil, err
	}
	if n := len(op.GetContent()); n > 0 && !layout.RoomInline(t, n) {
		op, result.Empty = proto.CloneOf(op), true // later changes of the batch are about the file
		op.Content = nil
	}
	id := moraine.InodeID(change.GetInode())
	if err := delegation.TakeNumber(t, id); err != nil {
		return nil, err
	}
	resp, err := names.CreateAs(t, op, id)
	if err == nil && change.GetDelegate() {
		result.Undelegated, err = delegation.AtBirth(t, id)
	}
	return resp, err
}

// wholeOnly stands in the table for a batch, which Batch.changes applies.
func wholeOnly(*kvtx.Tx, *wire.MetaRequest) (*wire.MetaResponse, error) {
	return nil, kvtx.Fail(moraine.InvalidArgument, "batch", "", "a batch is no change of another one")
}
