package content

import (
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/layout"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tier"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// maxRewritten bounds the extents that one CommitRewrite removes, as moraine.MaxCommitExtents
// bounds those that it adds. Each may be in its own table, so that these limits bound the records
// written.
const maxRewritten = 256

// rewriteWork is a CommitRewrite in progress.
type rewriteWork struct {
	all   *commitWork      // the new stripes
	files []*rewrittenFile // files that will refer to them
	out   error            // why the first skipped file was skipped
}

// rewrittenFile is one of the files, with a commit of its own.
type rewrittenFile struct {
	commitWork
	was []moraine.Extent
}

// CommitRewrite replaces extents by those of new stripes with the same bytes, which the mover's
// session wrote under a grant. It does so in all files that still have exactly the extents that the
// mover read, and share none of their tables. A stripe never changes, so that equal extents are
// equal bytes, whatever the file's generation. It leaves the other files as they are. If those are
// all, it fails.
func CommitRewrite(t *kvtx.Tx, op *wire.CommitRewrite) (*wire.MetaResponse, error) {
	const name = "commit rewrite"
	j, err := tier.HeldMove(t, name, op.GetJob(), op.GetLeaseEpoch(), wire.JobKind_JOB_KIND_REWRITE)
	if err != nil {
		return nil, err
	}
	if err := checkRewrite(j, op); err != nil {
		return nil, err
	}
	w, err := parseRewrite(t, op)
	if err != nil {
		return nil, err
	}
	again, err := w.committed(t)
	if err != nil {
		return nil, err
	}
	rule, finish := mayRewrite, w.swapIn
	if again {
		rule, finish = hasRewritten, func(t *kvtx.Tx) error { return measure(t, w.all) }
	}
	if err := w.keep(t, rule); err != nil {
		return nil, err
	}
	if err := finish(t); err != nil {
		return nil, err
	}
	return w.reply(), nil
}

// checkRewrite checks the files of a CommitRewrite against those of the job, and its size.
func checkRewrite(j *record.Job, op *wire.CommitRewrite) error {
	const name = "commit rewrite"
	may, extents, was := j.PackTask().GetFiles(), 0, 0
	if len(may) == 0 {
		may = []uint64{j.Target}
	}
	switch files := len(op.GetFiles()); {
	case files == 0:
		return kvtx.Fail(moraine.InvalidArgument, name, j.Id.String(), "the request names no files")
	case files > 1 && len(op.GetStripes()) > 1: // a file that is skipped could leave one without references
		return kvtx.Fail(moraine.InvalidArgument, name, j.Id.String(), "a rewrite of several files brings one stripe: this one has %d files and %d stripes", files, len(op.GetStripes()))
	}
	for n, f := range op.GetFiles() {
		if _, ok := slices.BinarySearch(may, f.GetInode()); !ok || n > 0 && f.GetInode() <= op.GetFiles()[n-1].GetInode() {
			return kvtx.Fail(moraine.InvalidArgument, name, j.Id.String(), "inode %d is not a file of the job, or the files are out of order", f.GetInode())
		}
		extents, was = extents+len(f.GetExtents()), was+len(f.GetWas())
	}
	if extents > moraine.MaxCommitExtents || was > maxRewritten || len(op.GetStripes()) > moraine.MaxCommitStripes {
		return kvtx.Fail(moraine.TooLarge, name, j.Id.String(), "%d stripes, %d new extents and %d old extents; the limits are %d, %d and %d",
			len(op.GetStripes()), extents, was, moraine.MaxCommitStripes, moraine.MaxCommitExtents, maxRewritten)
	}
	return nil
}

// leavesOut reports whether an error concerns only the one file that it names.
func leavesOut(err error) bool {
	switch kvtx.MoraineKind(err) {
	case moraine.NotFound, moraine.PermissionDenied, moraine.Stale, moraine.Conflict:
		return true
	}
	return false
}

// parseRewrite checks a CommitRewrite against every rule that does not depend on the files' present
// content. It skips files that are gone.
func parseRewrite(t *kvtx.Tx, op *wire.CommitRewrite) (*rewriteWork, error) {
	const name = "commit rewrite"
	w := &rewriteWork{}
	for _, wf := range op.GetFiles() {
		i, err := contentFile(t, name, wf.GetInode())
		if leavesOut(err) {
			w.leave(err)
			continue
		}
		if err != nil {
			return nil, err
		}
		if w.all == nil {
			w.all = &commitWork{op: &wire.Commit{Stripes: op.GetStripes(), Promised: op.GetPromised()}, i: i, level: moraine.NVMe}
			if err := w.all.parseStripes(); err != nil {
				return nil, err
			}
		}
		if i.Tenant != w.all.i.Tenant {
			return nil, kvtx.Fail(moraine.CrossTenant, name, i.Id.String(), "the files belong to different tenants")
		}
		f := &rewrittenFile{commitWork: commitWork{i: i, stripes: w.all.stripes, level: w.all.level,
			op: &wire.Commit{Extents: wf.GetExtents(), Mode: wire.CommitMode_COMMIT_MODE_OVERLAY}}}
		if err := f.parseExtents(); err != nil {
			return nil, err
		}
		if f.was, err = f.parseWas(wf.GetWas()); err != nil {
			return nil, err
		}
		w.files = append(w.files, f)
	}
	if len(w.files) == 0 {
		return nil, w.out
	}
	return w, nil
}

// leave records why a file is skipped.
func (w *rewriteWork) leave(err error) {
	if w.out == nil {
		w.out = err
	}
}

// keep skips the files that a rule refuses. It fails if it refuses them all.
func (w *rewriteWork) keep(t *kvtx.Tx, rule func(*kvtx.Tx, *rewrittenFile) error) error {
	var kept []*rewrittenFile
	for _, f := range w.files {
		err := rule(t, f)
		if err != nil && !leavesOut(err) {
			return err
		}
		if err != nil {
			w.leave(err)
			w.all.stripes[0].LiveBytes -= layout.SumLengths(f.extents) // of one file, all of it is skipped
			continue
		}
		kept = append(kept, f)
	}
	if w.files = kept; len(kept) == 0 {
		return w.out
	}
	return nil
}

// committed reports whether the stripes were committed before. It fails with Stale if only some of
// them were.
func (w *rewriteWork) committed(t *kvtx.Tx) (bool, error) {
	known := 0
	for _, s := range w.all.stripes {
		there, err := committed(t, s)
		if err != nil {
			return false, err
		}
		if there {
			known++
		}
	}
	if known > 0 && known < len(w.all.stripes) {
		return false, kvtx.Fail(moraine.Stale, "commit rewrite", w.all.stripes[0].ID.String(), "the stripes were committed earlier, but only some of them")
	}
	return known > 0, nil
}

// hasRewritten fails with Stale unless the file has the extents that it was to get.
func hasRewritten(t *kvtx.Tx, f *rewrittenFile) error {
	for _, e := range f.extents {
		there, err := hasExtent(&t.View, f.i, e)
		if err != nil {
			return err
		}
		if !there {
			return kvtx.Fail(moraine.Stale, "commit rewrite", f.i.Id.String(), "the stripes were committed earlier, but the file has other extents now")
		}
	}
	return nil
}

// swapIn replaces the files' extents by those of the stripes.
func (w *rewriteWork) swapIn(t *kvtx.Tx) error {
	if err := w.bound(t); err != nil {
		return err
	}
	if err := w.setOrigin(t); err != nil {
		return err
	}
	files := make([]*commitWork, len(w.files))
	for n, f := range w.files {
		files[n] = &f.commitWork
	}
	if err := swapIn(t, w.all, files...); err != nil {
		return err
	}
	for _, f := range files {
		tree.PutInode(t, f.i)
	}
	return nil
}

// swapIn adds a commit's stripes, and lays the extents of files over those with the same bytes.
func swapIn(t *kvtx.Tx, all *commitWork, files ...*commitWork) error {
	if err := takeStripes(t, all.stripes); err != nil {
		return err
	}
	fleet.AddStripes(t, all.stripes)
	for _, w := range files {
		if err := layout.Overlay(t, w.i, w.extents); err != nil {
			return err
		}
	}
	if err := judgeStripes(t, all); err != nil {
		return err
	}
	for _, w := range files {
		w.i.Degraded += uint64(all.degraded)
	}
	return nil
}

// bound fails if a command for several files would remove more stripes than it may.
func (w *rewriteWork) bound(t *kvtx.Tx) error {
	if len(w.files) == 1 { // maxRewritten bounds it
		return nil
	}
	seen, chunks := map[moraine.StripeID]bool{}, 0
	for _, f := range w.files {
		for _, e := range f.was {
			if seen[e.Stripe] || e.Inline != 0 {
				continue
			}
			seen[e.Stripe] = true
			s, err := layout.MustStripe(t, e.Stripe)
			if err != nil {
				return err
			}
			chunks += len(s.Chunks)
		}
	}
	if chunks > wire.MaxPackChunks {
		return kvtx.Fail(moraine.TooLarge, "commit rewrite", w.all.stripes[0].ID.String(), "the rewrite would remove stripes with %d chunks, %d at most", chunks, wire.MaxPackChunks)
	}
	return nil
}

func (w *rewriteWork) reply() *wire.MetaResponse {
	r := &wire.RewriteReply{Protects: uint32(w.all.protects), Degraded: uint32(w.all.degraded)}
	for _, f := range w.files {
		r.Rewritten = append(r.Rewritten, uint64(f.i.Id))
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Rewrite{Rewrite: r}}
}

// parseWas returns the extents to remove, which must cover exactly the ranges of the new ones.
func (w *rewrittenFile) parseWas(given []*wire.Extent) ([]moraine.Extent, error) {
	ref := w.i.Id.String()
	bad := func(format string, args ...any) ([]moraine.Extent, error) {
		return nil, kvtx.Fail(moraine.InvalidArgument, "commit rewrite", ref, format, args...)
	}
	switch {
	case len(w.extents) == 0:
		return bad("the file has no new extents")
	case len(given) > maxRewritten:
		return nil, kvtx.Fail(moraine.TooLarge, "commit rewrite", ref, "the rewrite replaces %d extents, %d at most", len(given), maxRewritten)
	case w.level != moraine.NVMe:
		return bad("the new stripes are at level %s, but a rewrite needs level nvme", w.level)
	}
	var was []moraine.Extent
	end := int64(0)
	for n, e := range given {
		const most = tree.MaxFileSize
		if e.GetLength() == 0 || e.GetLength() > most || e.GetOffset() > most || e.GetStripeOffset() > most ||
			int64(e.GetOffset()) < end || (e.GetStripe() == 0) == (e.GetInline() == 0) {
			return bad("old extent %d is empty, out of order, or neither in a stripe nor in the metadata", n)
		}
		was = append(was, moraine.Extent{Offset: int64(e.GetOffset()), Length: int64(e.GetLength()),
			Stripe: moraine.StripeID(e.GetStripe()), StripeOffset: int64(e.GetStripeOffset()), Inline: moraine.InlineID(e.GetInline())})
		end = was[n].End()
	}
	covered := int64(0)
	for _, e := range w.extents {
		part := layout.SumLengths(layout.Cut(was, e.Offset, e.End()))
		if part != e.Length {
			return bad("the old extents do not cover bytes %d to %d", e.Offset, e.End())
		}
		covered += part
	}
	if covered != layout.SumLengths(was) {
		return bad("the old extents have more bytes than the new ones")
	}
	return was, nil
}

// mayRewrite fails with Stale unless the file has exactly the extents that the mover read, in
// tables that it does not share.
func mayRewrite(t *kvtx.Tx, w *rewrittenFile) error {
	const name = "commit rewrite"
	file := w.i.Id.String()
	for _, e := range w.extents {
		want := layout.Cut(w.was, e.Offset, e.End())
		have, err := layout.ExtentsOf(&t.View, w.i, e.Offset, len(want)+1)
		if err != nil {
			return err
		}
		if !slices.Equal(layout.Cut(have, e.Offset, e.End()), want) {
			return kvtx.Fail(moraine.Stale, name, file, "bytes %d to %d have other extents now", e.Offset, e.End())
		}
		err = layout.RefsFrom(&t.View, w.i.Content, e.Offset, func(r record.Ref) (bool, error) {
			if r.Base >= e.End() {
				return false, nil
			}
			h, err := layout.TableHead(&t.View, r.Table)
			if err == nil && h.Refs > 1 {
				// Swapping them here would keep the old stripe alive for the other file.
				err = kvtx.Fail(moraine.Stale, name, file, "another file shares bytes %d to %d now", e.Offset, e.End())
			}
			return true, err
		})
		if err != nil {
			return err
		}
	}
	return keepsProtection(t, w)
}

// keepsProtection fails with Conflict if a new stripe survives the loss of fewer chunks or hosts
// than a stripe that it replaces. The bytes must stay as safe as they were when they were
// acknowledged.
func keepsProtection(t *kvtx.Tx, w *rewrittenFile) error {
	const name = "commit rewrite"
	m, protects := moraine.MaxChunks, moraine.MaxChunks
	for _, s := range w.stripes {
		h, err := fleet.HealthOf(&t.View, s, 0)
		if err != nil {
			return err
		}
		m, protects = min(m, int(s.Scheme.M)), min(protects, h.Protects)
	}
	seen := make(map[moraine.StripeID]bool)
	for _, e := range w.was {
		if seen[e.Stripe] || e.Inline != 0 {
			continue
		}
		seen[e.Stripe] = true
		s, err := layout.MustStripe(t, e.Stripe)
		if err != nil {
			return err
		}
		h, err := fleet.HealthOf(&t.View, s, 0)
		if err != nil {
			return err
		}
		if int(s.Scheme.M) > m || h.Protects > protects {
			return kvtx.Fail(moraine.Conflict, name, s.ID.String(), "the old stripe has scheme %s and survives %d failures; the new ones may lose %d chunks and survive %d failures",
				s.Scheme, h.Protects, m, protects)
		}
	}
	return nil
}
