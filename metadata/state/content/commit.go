package content

import (
	"slices"
	"sort"

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

// parseCommit checks a Commit against every rule that does not depend on the present content.
func parseCommit(t *kvtx.Tx, op *wire.Commit) (*commitWork, error) {
	i, err := contentFile(t, "commit", op.GetInode())
	if err != nil {
		return nil, err
	}
	ref := i.Id.String()
	switch {
	case op.GetMode() < wire.CommitMode_COMMIT_MODE_OVERLAY || op.GetMode() > wire.CommitMode_COMMIT_MODE_APPEND:
		return nil, kvtx.Fail(moraine.InvalidArgument, "commit", ref, "mode %d is unknown", op.GetMode())
	case len(op.GetStripes()) > moraine.MaxCommitStripes || len(op.GetExtents()) > moraine.MaxCommitExtents:
		return nil, kvtx.Fail(moraine.TooLarge, "commit", ref, "the commit has %d stripes and %d extents; the limits are %d stripes and %d extents",
			len(op.GetStripes()), len(op.GetExtents()), moraine.MaxCommitStripes, moraine.MaxCommitExtents)
	case op.GetSize() > tree.MaxFileSize:
		return nil, kvtx.Fail(moraine.TooLarge, "commit", ref, "the new size of %d bytes is above the limit of %d bytes", op.GetSize(), uint64(tree.MaxFileSize))
	case op.GetMergeTo() != 0 && (len(op.GetStripes()) > 0 || op.GetMode() != wire.CommitMode_COMMIT_MODE_OVERLAY ||
		op.GetMergeTo() > tree.MaxFileSize || op.GetMergeFrom() >= op.GetMergeTo()):
		return nil, kvtx.Fail(moraine.InvalidArgument, "commit", ref, "the merge of tables from byte %d to %d is invalid", op.GetMergeFrom(), op.GetMergeTo())
	}
	w := &commitWork{op: op, i: i, level: moraine.NVMe}
	if l := op.GetLevel(); l != 0 {
		w.level = moraine.Level(min(l, uint32(moraine.NVMe)))
	}
	if err := w.parseStripes(); err != nil {
		return nil, err
	}
	return w, w.parseExtents()
}

// contentFile returns a regular file in the caller's scope that no other session has open without a
// name.
func contentFile(t *kvtx.Tx, op string, id uint64) (*record.Inode, error) {
	i, err := tree.Named(t, moraine.InodeID(id))
	if err != nil {
		return nil, err
	}
	switch {
	case i.Typ == record.TypeDirectory:
		return nil, kvtx.Fail(moraine.IsDirectory, op, i.Id.String(), "")
	case i.Typ != record.TypeFile:
		return nil, kvtx.Fail(moraine.InvalidArgument, op, i.Id.String(), "the inode is not a regular file")
	}
	return i, names.MayChange(t, op, i)
}

func (w *commitWork) parseStripes() error {
	chunks := 0
	for _, ws := range w.op.GetStripes() {
		s, err := fleet.NewStripe(ws, w.i.Tenant)
		if err != nil {
			return err
		}
		s.Origin = w.i.Id
		if chunks += len(s.Chunks); chunks > moraine.MaxCommitChunks {
			return kvtx.Fail(moraine.TooLarge, "commit", w.i.Id.String(), "the commit has more than %d chunks", moraine.MaxCommitChunks)
		}
		for _, c := range s.Chunks {
			w.level = min(w.level, c.Level)
		}
		w.stripes = append(w.stripes, s)
	}
	sort.Slice(w.stripes, func(a, b int) bool { return w.stripes[a].ID < w.stripes[b].ID })
	for n := 1; n < len(w.stripes); n++ {
		if w.stripes[n].ID == w.stripes[n-1].ID {
			return kvtx.Fail(moraine.InvalidArgument, "commit", w.stripes[n].ID.String(), "the commit has the stripe twice")
		}
	}
	return nil
}

// stripe returns the new stripe id; nil if the commit has none of that number.
func (w *commitWork) stripe(id moraine.StripeID) *moraine.Stripe {
	n := sort.Search(len(w.stripes), func(n int) bool { return w.stripes[n].ID >= id })
	if n < len(w.stripes) && w.stripes[n].ID == id {
		return w.stripes[n]
	}
	return nil
}

// parseExtents checks the extents and counts the live bytes of each stripe.
func (w *commitWork) parseExtents() error {
	base := int64(0)
	if w.op.GetMode() == wire.CommitMode_COMMIT_MODE_APPEND {
		base = w.i.Size
	}
	bad := func(n int, why string) error {
		return kvtx.Fail(moraine.InvalidArgument, "commit", w.i.Id.String(), "extent %d %s", n, why)
	}
	end := base
	for n, we := range w.op.GetExtents() {
		const most = tree.MaxFileSize
		if we.GetLength() == 0 || we.GetLength() > most || we.GetOffset() > most || we.GetStripeOffset() > most ||
			uint64(base)+we.GetOffset()+we.GetLength() > most {
			return bad(n, "is empty, or ends beyond the largest size of a file")
		}
		e := moraine.Extent{Offset: base + int64(we.GetOffset()), Length: int64(we.GetLength()),
			Stripe: moraine.StripeID(we.GetStripe()), StripeOffset: int64(we.GetStripeOffset())}
		if e.Offset < end {
			return bad(n, "overlaps the previous one, or is out of order")
		}
		end = e.End()
		s := w.stripe(e.Stripe)
		if s == nil {
			return bad(n, "refers to a stripe that the commit does not include")
		}
		if e.StripeOffset+e.Length > s.Length {
			return bad(n, "ends beyond the end of its stripe")
		}
		s.LiveBytes += e.Length
		w.extents = append(w.extents, e)
	}
	for _, s := range w.stripes {
		if s.LiveBytes == 0 || s.LiveBytes > s.Length {
			return kvtx.Fail(moraine.InvalidArgument, "commit", s.ID.String(), "the extents of the commit use %d bytes of the stripe, which has %d", s.LiveBytes, s.Length)
		}
	}
	return nil
}

// committedBefore reports whether an identical commit was applied, which happens if its answer was
// lost and the client sent it under a new number. It fails with Stale if the stripe numbers are or
// were used otherwise.
func committedBefore(t *kvtx.Tx, w *commitWork) (bool, error) {
	known := 0
	for _, s := range w.stripes {
		there, err := w.mayKnow(t, s.ID)
		if there && err == nil {
			there, err = committed(t, s)
		}
		if err != nil {
			return false, err
		}
		if there {
			known++
		}
	}
	if known == 0 {
		return false, nil
	}
	stale := func(why string) (bool, error) {
		return false, kvtx.Fail(moraine.Stale, "commit", w.stripes[0].ID.String(), "the stripes were committed earlier, but %s", why)
	}
	if known < len(w.stripes) {
		return stale("only some of them")
	}
	for _, e := range w.extents {
		there, err := w.has(t, e)
		if err != nil {
			return false, err
		}
		if !there {
			return stale("the file has other extents now")
		}
	}
	if l := w.op.GetLink(); l != nil {
		e, ok, err := tree.Lookup(&t.View, moraine.InodeID(l.GetParent()), l.GetName())
		if err != nil {
			return false, err
		}
		if !ok || e.Inode != w.i.Id {
			return stale("the file does not have the name of the request")
		}
	}
	return true, measure(t, w)
}

// mayKnow reports whether the commit may be compared with an existing stripe. That requires that
// the session's own grant covers the number, or that the file has the stripe where the commit says.
// Any other number is answered as unused by any stripe, so that a client cannot learn which stripes
// exist.
func (w *commitWork) mayKnow(t *kvtx.Tx, id moraine.StripeID) (bool, error) {
	if g, err := fleet.OwnGrant(t, id); err != nil || g != nil {
		return err == nil, err
	}
	n := slices.IndexFunc(w.extents, func(e moraine.Extent) bool { return e.Stripe == id })
	return w.has(t, w.extents[n]) // every stripe has extents, see parseExtents
}

// has reports whether the file has an extent of the commit, assuming that the commit was applied.
func (w *commitWork) has(t *kvtx.Tx, e moraine.Extent) (bool, error) {
	if w.op.GetMode() == wire.CommitMode_COMMIT_MODE_APPEND {
		e.Offset -= w.extents[len(w.extents)-1].End() - w.i.Size // what the commit added to the file's size
	}
	return hasExtent(&t.View, w.i, e)
}

// committed reports whether an identical stripe was committed. It fails with Stale if another
// stripe has the number.
func committed(t *kvtx.Tx, s *moraine.Stripe) (bool, error) {
	// A stripe record always comes with the mark in its grant. Without the mark there is no record.
	if g, err := fleet.OwnGrant(t, s.ID); err != nil || g != nil && !g.IsUsed(s.ID) {
		return false, err
	}
	have, err := fleet.Stripe(&t.View, s.ID)
	if err != nil || have == nil {
		return false, err
	}
	if !fleet.SameChunks(have, s) {
		return false, kvtx.Fail(moraine.Stale, "commit", s.ID.String(), "the stripe number belongs to another stripe")
	}
	return true, nil
}

// hasExtent reports whether the file maps e's range exactly as e does.
func hasExtent(v *kvtx.View, i *record.Inode, e moraine.Extent) (bool, error) {
	if e.Offset < 0 {
		return false, nil
	}
	var have []moraine.Extent
	err := layout.RefsFrom(v, i.Content, e.Offset, func(r record.Ref) (more bool, err error) {
		have, err = layout.ExtsFrom(v, r, e.Offset, 1)
		return false, err
	})
	return err == nil && len(have) == 1 && have[0] == e, err
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
	i.Mtime, i.Ctime = t.Now, t.Now
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

// linkCommitted names an unlinked file of the session.
func linkCommitted(t *kvtx.Tx, i *record.Inode, l *wire.LinkTarget) error {
	if err := names.CheckName("link", l.GetName()); err != nil {
		return err
	}
	if i.Owner == 0 {
		return kvtx.Fail(moraine.InvalidArgument, "link", l.GetName(), "the file already has a name")
	}
	dir, err := tree.Directory(t, moraine.InodeID(l.GetParent()))
	if err != nil {
		return err
	}
	if dir.Tenant != i.Tenant {
		return kvtx.Fail(moraine.CrossTenant, "link", l.GetName(), "the directory and the file belong to different tenants")
	}
	return nameCommitted(t, dir, i, l)
}

// nameCommitted adds a file without a name to dir, and replaces the present entry if the link
// allows it. The caller writes the file.
func nameCommitted(t *kvtx.Tx, dir, i *record.Inode, l *wire.LinkTarget) error {
	e, ok, err := tree.Lookup(&t.View, dir.Id, l.GetName())
	if err != nil {
		return err
	}
	switch {
	case ok:
		err = displace(t, dir, e, l)
	case l.GetExpect() != nil:
		err = kvtx.Fail(moraine.Conflict, "link", l.GetName(), "no entry has the name, but the request expects one")
	}
	if err != nil {
		return err
	}
	names.Adopt(t, i)
	names.Link(t, dir, l.GetName(), i)
	return nil
}

// displace removes the regular file that has the name, if the link may replace it.
func displace(t *kvtx.Tx, dir *record.Inode, e record.Dentry, l *wire.LinkTarget) error {
	switch {
	case e.Typ == record.TypeDirectory:
		return kvtx.Fail(moraine.IsDirectory, "link", l.GetName(), "")
	case !l.GetReplace() || e.Typ != record.TypeFile:
		return kvtx.Fail(moraine.Exists, "link", l.GetName(), "")
	}
	old, err := tree.Inode(t, e.Inode)
	if err != nil {
		return kvtx.Damaged(err)
	}
	if err := names.Expected("link", l.GetName(), l.GetExpect(), old); err != nil {
		return err
	}
	names.Unlink(t, dir, l.GetName(), old)
	if l.GetKeep() && old.Nlink == 1 {
		names.Hold(t, old)
		return nil
	}
	return names.DropName(t, old, l.GetName())
}
