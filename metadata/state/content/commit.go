package content

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/layout"
	"github.com/morainefs/moraine/metadata/state/names"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// commitWork is a Commit in progress.
type commitWork struct {
	op      *wire.Commit
	i       *record.Inode
	stripes []*moraine.Stripe
	extents []moraine.Extent
	level   moraine.Level
	// Of the new stripes: the least protection, and how many have less than their scheme promises.
	protects int
	degraded int
	mergedTo int64
}

// Commit changes a file's content in one entry: it adds stripes and the extents that refer to them,
// and names the file if requested. It requires a live session, live grants, and unused stripe
// numbers. A retry of an identical commit gets the same answer.
func Commit(t *kvtx.Tx, op *wire.Commit) (*wire.MetaResponse, error) {
	w, err := parseCommit(t, op)
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
	if g := op.GetExpectGeneration(); g != 0 && moraine.Generation(g) != w.i.Generation {
		return nil, kvtx.Fail(moraine.Conflict, "commit", w.i.Id.String(), "the file has generation %d, but the request expects %d", w.i.Generation, g)
	}
	if err := takeStripes(t, w.stripes); err != nil {
		return nil, err
	}
	fleet.AddStripes(t, w.stripes)
	if err := w.takeContent(t); err != nil {
		return nil, err
	}
	if err := layExtents(t, w); err != nil {
		return nil, err
	}
	if err := judgeStripes(t, w); err != nil {
		return nil, err
	}
	if err := stampCommit(t, w); err != nil {
		return nil, err
	}
	watchLevel(t, w.i)
	if err := names.RaiseGeneration(t, w.i); err != nil {
		return nil, err
	}
	if l := op.GetLink(); l != nil {
		if err := linkCommitted(t, w.i, l); err != nil {
			return nil, err
		}
	}
	tree.PutInode(t, w.i)
	if err := names.FlushOnCommit(t, w.i); err != nil {
		return nil, err
	}
	return commitReply(t, w)
}

// commitReply answers a commit.
func commitReply(t *kvtx.Tx, w *commitWork) (*wire.MetaResponse, error) {
	return &wire.MetaResponse{Result: &wire.MetaResponse_Commit{Commit: &wire.CommitReply{
		Attr: w.i.Attr(), Protects: uint32(w.protects), Degraded: uint32(w.degraded), MergedTo: uint64(w.mergedTo),
	}}}, nil
}

// takeStripes marks the numbers as used in the session's grants.
func takeStripes(t *kvtx.Tx, stripes []*moraine.Stripe) error {
	var g *record.Grant
	for _, s := range stripes { // in order of numbers, so that each grant is written once
		if g == nil || !g.Covers(s.ID) {
			if g != nil {
				t.Put(t.K.Grant(g.Last()), g.Encode())
			}
			var err error
			if g, err = fleet.OwnGrant(t, s.ID); err != nil {
				return err
			}
			if g == nil {
				return kvtx.Fail(moraine.Stale, "commit", s.ID.String(), "no live grant of the session covers the stripe")
			}
		}
		if g.IsUsed(s.ID) {
			return kvtx.Fail(moraine.Stale, "commit", s.ID.String(), "the stripe was committed earlier and is dead now: write the bytes under a new stripe number")
		}
		if g.Tenant != s.Tenant {
			return kvtx.Fail(moraine.CrossTenant, "commit", s.ID.String(), "the grant and the file belong to different tenants")
		}
		g.Use(s.ID)
	}
	if g != nil {
		t.Put(t.K.Grant(g.Last()), g.Encode())
	}
	return nil
}

// layExtents changes the content and the size according to the mode.
func layExtents(t *kvtx.Tx, w *commitWork) error {
	i := w.i
	if w.op.GetMode() == wire.CommitMode_COMMIT_MODE_REPLACE {
		old := i.DropContent()
		if err := layout.AppendExtents(t, i, w.extents); err != nil {
			return err
		}
		if err := layout.Discard(t, old); err != nil {
			return err
		}
	} else if err := layout.Overlay(t, i, w.extents); err != nil {
		return err
	}
	if to := w.op.GetPunchTo(); to != 0 {
		if err := layout.Punch(t, i, int64(w.op.GetPunchFrom()), int64(to)); err != nil {
			return err
		}
	}
	if to := w.op.GetMergeTo(); to != 0 {
		var err error
		if w.mergedTo, err = layout.MergeTables(t, i, int64(w.op.GetMergeFrom()), int64(to)); err != nil {
			return err
		}
	}
	if n := len(w.extents); n > 0 {
		i.Size = max(i.Size, w.extents[n-1].End())
	}
	if w.op.GetMode() == wire.CommitMode_COMMIT_MODE_OVERLAY {
		i.Size = max(i.Size, int64(w.op.GetSize()))
	}
	return nil
}

// judgeStripes checks the devices of the new stripes against their records and queues
// under-protected stripes for repair. It refuses a stripe that became unreadable because too many
// of its devices went out after its chunks were written. Such devices may be unplugged by now, and
// the client must learn that its bytes are not safe.
func judgeStripes(t *kvtx.Tx, w *commitWork) error {
	for _, s := range w.stripes {
		here := 0
		for n, c := range s.Chunks {
			d, err := fleet.LookDevice(&t.View, c.Device)
			if err != nil {
				return err
			}
			chunk := moraine.ChunkID{Stripe: s.ID, Index: uint8(n)}
			switch {
			case d == nil || d.State == wire.DeviceState_DEVICE_STATE_RETIRED:
				return kvtx.Fail(moraine.Stale, "commit", chunk.String(), "device %d is retired or unknown: write the bytes to another device", c.Device)
			case c.Level == moraine.Memory && c.Epoch != d.Epoch:
				return kvtx.Fail(moraine.Stale, "commit", chunk.String(), "device %d restarted and lost the chunk from memory: write the bytes again", c.Device)
			case d.Serves(), d.State == wire.DeviceState_DEVICE_STATE_OUT && d.Reason == record.ReasonSilent:
				here++ // it returns with its host, for example when a network partition ends
			}
		}
		if here < int(s.Scheme.K) {
			return kvtx.Fail(moraine.Stale, "commit", s.ID.String(), "the stripe lost its devices: only %d of %d chunks are on devices that serve or may return, and a read needs %d",
				here, len(s.Chunks), s.Scheme.K)
		}
	}
	return measure(t, w)
}

// measure finds the least protection of the commit's stripes and queues repairs of stripes below
// their scheme. A stripe written with a lesser scheme than requested, because too few hosts were
// up, is degraded too. Repair cannot improve it, so none is queued.
func measure(t *kvtx.Tx, w *commitWork) error {
	for n, s := range w.stripes {
		s, err := layout.MustStripe(t, s.ID)
		if err != nil {
			return err
		}
		h, err := fleet.HealthOf(&t.View, s, 0)
		if err != nil {
			return err
		}
		protects := h.Protects
		if alone, err := fleet.InOneMemory(&t.View, s); err != nil {
			return err
		} else if alone {
			protects = 0
		}
		if n == 0 || protects < w.protects {
			w.protects = protects
		}
		if h.Sound(s) && h.Protects >= int(w.op.GetPromised()) {
			continue
		}
		w.degraded++
		if h.Sound(s) {
			continue
		}
		if err := fleet.QueueRepair(t, s, 0); err != nil {
			return err
		}
	}
	return nil
}

// stampCommit sets the file's fields that the commit changes: times, generation, level and
// protection.
func stampCommit(t *kvtx.Tx, w *commitWork) error {
	i := w.i
	i.Changed(t.Now)
	i.Mtime = i.Ctime
	if w.op.GetMtime() != 0 {
		i.Mtime = w.op.GetMtime()
	}
	if i.Stored == layout.SumLengths(w.extents) {
		i.Level, i.Degraded = moraine.NVMe, 0 // nothing of the former content is left
	}
	if len(w.stripes) > 0 {
		level, err := layout.LevelBeside(&t.View, i)
		if err != nil {
			return err
		}
		i.Level = min(level, w.level)
	}
	i.Degraded += uint64(w.degraded)
	return nil
}
