package content

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/layout"
	"github.com/morainefs/moraine/metadata/state/tier"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// CommitStage replaces object extents by stripes that the mover's session wrote under a grant.
// Bytes and generation stay the same.
func CommitStage(t *kvtx.Tx, op *wire.CommitStage) (*wire.MetaResponse, error) {
	const name = "commit stage"
	j, err := tier.HeldMove(t, name, op.GetJob(), op.GetLeaseEpoch(), wire.JobKind_JOB_KIND_STAGE)
	if err != nil {
		return nil, err
	}
	if j.Target != op.GetInode() {
		return nil, kvtx.Fail(moraine.InvalidArgument, name, j.Id.String(), "the job is not for inode %s", moraine.InodeID(op.GetInode()))
	}
	w, err := parseCommit(t, &wire.Commit{Inode: op.GetInode(), Stripes: op.GetStripes(), Extents: op.GetExtents(),
		Mode: wire.CommitMode_COMMIT_MODE_OVERLAY, Promised: op.GetPromised()})
	if err != nil {
		return nil, err
	}
	again, err := committedBefore(t, w)
	if err != nil {
		return nil, err
	}
	if again {
		return commitReply(t, w)
	}
	if err := mayStage(t, w, op); err != nil {
		return nil, err
	}
	if err := swapIn(t, w, w); err != nil {
		return nil, err
	}
	if !w.i.Clean() && len(w.stripes) > 0 {
		w.i.Level = min(w.i.Level, w.level)
	}
	watchStaged(t, w)
	tree.PutInode(t, w.i)
	return commitReply(t, w)
}

// watchStaged adds a row for a file with staged chunks in memory. A file that is whole in an object
// gets one too, for the time when that object is outdated.
func watchStaged(t *kvtx.Tx, w *commitWork) {
	if w.level < moraine.NVMe {
		watch(t, w.i)
		return
	}
	watchLevel(t, w.i)
}

// mayStage fails with Stale unless the ranges belong to the object, and the file has the
// generation, that the mover read.
func mayStage(t *kvtx.Tx, w *commitWork, op *wire.CommitStage) error {
	const name = "commit stage"
	ref := w.i.Id.String()
	if moraine.Generation(op.GetGeneration()) != w.i.Generation {
		return kvtx.Fail(moraine.Stale, name, ref, "the file has generation %d, but the mover read %d", w.i.Generation, op.GetGeneration())
	}
	for _, e := range w.extents {
		have, err := layout.ExtentsOf(&t.View, w.i, e.Offset, maxStaged+1)
		if err != nil {
			return err
		}
		at := e.Offset
		for _, h := range layout.Cut(have, e.Offset, e.End()) {
			if h.Offset != at || h.Object == 0 || h.Object != moraine.ObjectID(op.GetObject()) {
				break
			}
			at = h.End()
		}
		if at != e.End() {
			return kvtx.Fail(moraine.Stale, name, ref, "bytes %d to %d are not in object %s, or have more than %d extents", at, e.End(), moraine.ObjectID(op.GetObject()), maxStaged)
		}
	}
	return nil
}

// maxStaged bounds the object extents that one staged extent replaces.
const maxStaged = 64
