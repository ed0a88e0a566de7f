package content

import (
	"sort"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/names"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// parseCommit checks a Commit against every rule that does not depend on the present content.
func parseCommit(t *kvtx.Tx, op *wire.Commit) (*commitWork, error) {
	i, err := commitFile(t, op)
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
	case op.GetPunchTo() != 0 && (len(op.GetStripes()) > 0 || op.GetMode() != wire.CommitMode_COMMIT_MODE_OVERLAY || op.GetMergeTo() != 0 ||
		op.GetPunchTo() > tree.MaxFileSize || op.GetPunchFrom() >= op.GetPunchTo()):
		return nil, kvtx.Fail(moraine.InvalidArgument, "commit", ref, "the hole from byte %d to %d is invalid", op.GetPunchFrom(), op.GetPunchTo())
	}
	if err := checkInline(op, ref); err != nil {
		return nil, err
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

// commitFile returns the file of a commit, which may be a new one.
func commitFile(t *kvtx.Tx, op *wire.Commit) (*record.Inode, error) {
	n := op.GetNewFile()
	if n == nil {
		return contentFile(t, "commit", op.GetInode())
	}
	l := op.GetLink()
	if l == nil || op.GetInode() != 0 || op.GetExpectGeneration() != 0 || op.GetMode() != wire.CommitMode_COMMIT_MODE_REPLACE || len(op.GetStripes()) > 0 {
		return nil, kvtx.Fail(moraine.InvalidArgument, "commit", l.GetName(), "a commit that makes its file replaces the content, names the file, and has no inode and no stripes")
	}
	made, err := names.Create(t, &wire.Create{Parent: l.GetParent(), Type: wire.FileType_FILE_TYPE_REGULAR,
		Mode: n.GetMode(), Uid: n.GetUid(), Gid: n.GetGid(), Xattrs: n.GetXattrs(), Unlinked: true})
	if err != nil {
		return nil, err
	}
	return tree.Inode(t, moraine.InodeID(made.GetEntry().GetAttr().GetInode()))
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
