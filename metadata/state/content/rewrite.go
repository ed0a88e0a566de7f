package content

import (
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/layout"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tier"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// A stripe becomes sparse when files refer to little of it any more: overwritten or truncated bytes
// are not freed as long as any byte of the stripe is in use. The leader finds such stripes
// (NameStripes) and names them in a REWRITE job for one file. The job's mover writes the live bytes
// into new stripes, and CommitRewrite swaps these in. The old stripes die like any others without
// references.

const (
	// MaxRewriteStripes is the largest number of stripes of one REWRITE job.
	MaxRewriteStripes = 64
	// maxRewritten bounds the extents that one CommitRewrite removes, as moraine.MaxCommitExtents
	// bounds those that it adds. Each may be in its own table, so that these limits bound the
	// records written.
	maxRewritten = 256
)

// CreateRewrite creates a job that rewrites stripes of a file; none if the file is gone.
func CreateRewrite(t *kvtx.Tx, w *wire.Job) (*wire.Job, error) {
	const op = "create jobs"
	if err := t.MustSpeak(op, kvtx.LevelRewrite); err != nil {
		return nil, err
	}
	task := w.GetRewrite()
	if len(task.GetFiles()) > 0 {
		return createPack(t, w)
	}
	ref := moraine.InodeID(w.GetInode()).String()
	switch {
	case len(task.GetStripes()) == 0 || len(task.GetStripes()) > MaxRewriteStripes:
		return nil, kvtx.Fail(moraine.InvalidArgument, op, ref, "%d stripes to rewrite: 1 to %d", len(task.GetStripes()), MaxRewriteStripes)
	case task.GetFewer() > MaxRewriteStripes:
		return nil, kvtx.Fail(moraine.InvalidArgument, op, ref, "%d times fewer stripes: %d at most", task.GetFewer(), MaxRewriteStripes)
	case task.GetOffset() >= task.GetEnd() || task.GetEnd() > tree.MaxFileSize:
		return nil, kvtx.Fail(moraine.InvalidArgument, op, ref, "stripes to rewrite between %d and %d", task.GetOffset(), task.GetEnd())
	}
	i, err := tree.Inode(t, moraine.InodeID(w.GetInode()))
	if kvtx.MoraineKind(err) == moraine.NotFound || err == nil && !rewritable(i) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	_, name, err := tree.NameOf(&t.View, i)
	if err != nil {
		return nil, err
	}
	if name == "" {
		name = ref
	}
	spec := jobs.JobSpec{Kind: w.GetKind(), Subject: name, Target: uint64(i.Id), Cursor: rewriteCursor(task)}
	for _, s := range task.GetStripes() {
		spec.Stripes = append(spec.Stripes, moraine.StripeID(s))
	}
	return jobs.AddedJob(t, spec)
}

// rewriteCursor is the part of the task that the job's record keeps besides the stripes.
func rewriteCursor(task *wire.RewriteTask) []byte {
	b := record.Be64(record.Be64(nil, task.GetOffset()), task.GetEnd())
	if f := task.GetFewer(); f != 0 {
		b = append(b, byte(f))
	}
	return b
}

// rewritable reports whether stripes of a file may be rewritten. It needs a name, so that a mover's
// session may change it, and bytes in stripes.
func rewritable(i *record.Inode) bool {
	return i.Typ == record.TypeFile && i.Nlink > 0 && i.Owner == 0 && i.Stored > i.Evicted
}

// CommitRewrite replaces extents by those of new stripes with the same bytes, which the mover's
// session wrote under a grant. It applies only if the file still has exactly the extents that the
// mover read, and shares none of their tables. A stripe never changes, so that equal extents are
// equal bytes, whatever the file's generation.
func CommitRewrite(t *kvtx.Tx, op *wire.CommitRewrite) (*wire.MetaResponse, error) {
	const name = "commit rewrite"
	if err := t.MustSpeak(name, kvtx.LevelRewrite); err != nil {
		return nil, err
	}
	j, err := tier.HeldMove(t, name, op.GetJob(), op.GetLeaseEpoch(), wire.JobKind_JOB_KIND_REWRITE)
	if err != nil {
		return nil, err
	}
	if j.Target != op.GetInode() {
		return nil, kvtx.Fail(moraine.InvalidArgument, name, j.Id.String(), "the job is for another file")
	}
	w, err := parseCommit(t, &wire.Commit{Inode: op.GetInode(), Stripes: op.GetStripes(), Extents: op.GetExtents(),
		Mode: wire.CommitMode_COMMIT_MODE_OVERLAY, Promised: op.GetPromised()})
	if err != nil {
		return nil, err
	}
	was, err := w.parseWas(op.GetWas())
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
	if err := mayRewrite(t, w, was); err != nil {
		return nil, err
	}
	if err := swapIn(t, w); err != nil {
		return nil, err
	}
	tree.PutInode(t, w.i)
	return commitReply(t, w)
}

// swapIn lays a commit's stripes and extents over those with the same bytes.
func swapIn(t *kvtx.Tx, w *commitWork) error {
	if err := takeStripes(t, w.stripes); err != nil {
		return err
	}
	if err := fleet.AddStripes(t, w.stripes); err != nil {
		return err
	}
	if err := layout.Overlay(t, w.i, w.extents); err != nil {
		return err
	}
	if err := judgeStripes(t, w); err != nil {
		return err
	}
	w.i.Degraded += uint64(w.degraded)
	return nil
}

// parseWas returns the extents to remove, which must cover exactly the ranges of the new ones.
func (w *commitWork) parseWas(given []*wire.Extent) ([]moraine.Extent, error) {
	ref := w.i.Id.String()
	bad := func(format string, args ...any) ([]moraine.Extent, error) {
		return nil, kvtx.Fail(moraine.InvalidArgument, "commit rewrite", ref, format, args...)
	}
	switch {
	case len(w.extents) == 0:
		return bad("no extents")
	case len(given) > maxRewritten:
		return nil, kvtx.Fail(moraine.TooLarge, "commit rewrite", ref, "%d extents to be taken away, %d at most", len(given), maxRewritten)
	case w.level != moraine.NVMe:
		return bad("its stripes are at level %s: nvme is needed", w.level)
	}
	var was []moraine.Extent
	end := int64(0)
	for n, e := range given {
		const most = tree.MaxFileSize
		if e.GetLength() == 0 || e.GetLength() > most || e.GetOffset() > most || e.GetStripeOffset() > most ||
			int64(e.GetOffset()) < end || e.GetStripe() == 0 {
			return bad("extent %d to be taken away is empty, out of order, or of no stripe", n)
		}
		was = append(was, moraine.Extent{Offset: int64(e.GetOffset()), Length: int64(e.GetLength()),
			Stripe: moraine.StripeID(e.GetStripe()), StripeOffset: int64(e.GetStripeOffset())})
		end = was[n].End()
	}
	covered := int64(0)
	for _, e := range w.extents {
		part := layout.SumLengths(layout.Cut(was, e.Offset, e.End()))
		if part != e.Length {
			return bad("bytes %d to %d are not all of what is to be taken away", e.Offset, e.End())
		}
		covered += part
	}
	if covered != layout.SumLengths(was) {
		return bad("more is to be taken away than is brought")
	}
	return was, nil
}

// mayRewrite fails with Stale unless the file has exactly the extents that the mover read, in
// tables that it does not share.
func mayRewrite(t *kvtx.Tx, w *commitWork, was []moraine.Extent) error {
	const name = "commit rewrite"
	file := w.i.Id.String()
	for _, e := range w.extents {
		want := layout.Cut(was, e.Offset, e.End())
		have, err := layout.ExtentsOf(&t.View, w.i, e.Offset, len(want)+1)
		if err != nil {
			return err
		}
		if !slices.Equal(layout.Cut(have, e.Offset, e.End()), want) {
			return kvtx.Fail(moraine.Stale, name, file, "bytes %d to %d are of other extents by now", e.Offset, e.End())
		}
		err = layout.RefsFrom(&t.View, w.i.Content, e.Offset, func(r record.Ref) (bool, error) {
			if r.Base >= e.End() {
				return false, nil
			}
			h, err := layout.TableHead(&t.View, r.Table)
			if err == nil && h.Refs > 1 {
				// Swapping them here would keep the old stripe alive for the other file.
				err = kvtx.Fail(moraine.Stale, name, file, "bytes %d to %d are shared with another file by now", e.Offset, e.End())
			}
			return true, err
		})
		if err != nil {
			return err
		}
	}
	return keepsProtection(t, w, was)
}

// keepsProtection fails with Conflict if a new stripe survives the loss of fewer chunks or hosts
// than a stripe that it replaces. The bytes must stay as safe as they were when they were
// acknowledged.
func keepsProtection(t *kvtx.Tx, w *commitWork, was []moraine.Extent) error {
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
	for _, e := range was {
		if seen[e.Stripe] {
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
			return kvtx.Fail(moraine.Conflict, name, s.ID.String(), "it is %s and survives %d, what is to take its place may lose %d chunks and survives %d",
				s.Scheme, h.Protects, m, protects)
		}
	}
	return nil
}

// Rewritables returns the files after one whose stripes may be rewritten. It inspects at most limit
// inodes. last is where to continue; 0 if there are no more.
func Rewritables(r *kvtx.View, after moraine.InodeID, limit int) (files []moraine.InodeID, last moraine.InodeID, err error) {
	v := r
	looked := 0
	var bad error
	err = v.R.Scan(v.K.Inode(after+1), kvtx.PrefixEnd(v.K.Table(record.TabInode)), func(key, value []byte) bool {
		i := &record.Inode{Id: moraine.InodeID(record.LastU64(key))}
		if bad = i.Decode(value); bad != nil {
			return false
		}
		if rewritable(i) {
			files = append(files, i.Id)
		}
		looked, last = looked+1, i.Id
		return looked < limit
	})
	if looked < limit {
		last = 0
	}
	if err == nil {
		err = bad
	}
	return files, last, err
}

// Named counts what a file refers to in a stripe.
type Named struct {
	Bytes   int64
	Extents int
	Tables  uint32 // tables of the file that refer to it; no other file shares them
	// From and To are a range of the file that includes all references to the stripe.
	From, To int64
}

// add adds the count of one table of the file.
func (n *Named) add(o Named) {
	if n.Tables == 0 {
		n.From = o.From
	}
	n.Bytes, n.Extents, n.Tables = n.Bytes+o.Bytes, n.Extents+o.Extents, n.Tables+o.Tables
	n.From, n.To = min(n.From, o.From), max(n.To, o.To)
}

// NameStripes adds to named what a file refers to in stripes, from the table at an offset on, until
// it inspected about limit extents. next is where to continue; -1 if the file ends or is gone.
// looked is the number of extents inspected. It ignores tables that a clone shares: if named has
// all references of a stripe, their number equals the count in the stripe's record.
func NameStripes(r *kvtx.View, file moraine.InodeID, from int64, limit int, named map[moraine.StripeID]Named) (looked int, next int64, err error) {
	v := r
	i, err := tree.ReadInode(v, file)
	if kvtx.MoraineKind(err) == moraine.NotFound || err == nil && !rewritable(i) {
		return 0, -1, nil
	}
	if err != nil {
		return 0, 0, err
	}
	next = -1
	err = layout.RefsFrom(v, i.Content, from, func(f record.Ref) (bool, error) {
		if looked >= limit {
			return false, nil
		}
		h, err := layout.TableHead(v, f.Table)
		if err != nil {
			return false, err
		}
		looked++
		next = f.End
		if h.Refs != 1 {
			return true, nil
		}
		exts, err := layout.ExtsFrom(v, f, f.Base, layout.NoLimit)
		if err != nil {
			return false, err
		}
		looked += len(exts)
		of := make(map[moraine.StripeID]Named)
		for _, e := range exts {
			if e.Stripe == 0 {
				continue
			}
			n := of[e.Stripe]
			n.add(Named{Bytes: e.Length, Extents: 1, Tables: 1, From: e.Offset, To: e.End()})
			n.Tables = 1
			of[e.Stripe] = n
		}
		for id, n := range of {
			all := named[id]
			all.add(n)
			named[id] = all
		}
		return true, nil
	})
	if err != nil || looked < limit {
		return looked, -1, err
	}
	return looked, next, nil
}

// LastStripe returns the last issued stripe number.
func LastStripe(r *kvtx.View) (moraine.StripeID, error) {
	v := r
	cl, err := v.Cluster()
	if err != nil {
		return 0, err
	}
	c, err := v.Counters()
	if err != nil {
		return 0, err
	}
	return moraine.StripeID(moraine.MakeID(v.K.P, cl.Incarnation, c[record.CStripe])), nil
}
