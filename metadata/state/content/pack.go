package content

import (
	"fmt"
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

// A small file is kept as copies, which take two and three times its room, and a stripe of
// its own. The leader finds those that nobody has changed for long, a REWRITE job names them,
// its holder puts what they have side by side into one stripe, and commitPack swaps that in
// for all of them in one command: a stripe that was committed takes no more references but by
// clones, so that it must come with all that it will have.

const (
	// MaxPackFiles is the most files of one REWRITE job, and of one CommitPack.
	MaxPackFiles = 128
)

// CreatePack makes a job that packs small files with each other; none where all are gone.
func CreatePack(t *kvtx.Tx, w *wire.Job) (*wire.Job, error) {
	const op = "create jobs"
	task := w.GetRewrite()
	switch {
	case len(task.GetFiles()) > MaxPackFiles:
		return nil, kvtx.Fail(moraine.InvalidArgument, op, "", "%d files to be packed: %d at most", len(task.GetFiles()), MaxPackFiles)
	case w.GetInode() != 0 || len(task.GetStripes()) > 0 || task.GetOffset() != 0 || task.GetEnd() != 0 || task.GetFewer() != 0:
		return nil, kvtx.Fail(moraine.InvalidArgument, op, "", "files to be packed, and stripes")
	}
	spec, name, before := jobs.JobSpec{Kind: w.GetKind(), Cursor: record.Be64(nil, task.GetSettled())}, "", uint64(0)
	files := 0
	for _, id := range task.GetFiles() {
		if id <= before {
			return nil, kvtx.Fail(moraine.InvalidArgument, op, moraine.InodeID(id).String(), "files to be packed are out of order")
		}
		before = id
		i, err := tree.Inode(t, moraine.InodeID(id))
		if kvtx.MoraineKind(err) == moraine.NotFound || err == nil && !rewritable(i) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if files == 0 {
			if _, name, err = tree.NameOf(&t.View, i); err != nil {
				return nil, err
			}
		}
		files, spec.Cursor = files+1, record.Be64(spec.Cursor, id)
	}
	if files == 0 {
		return nil, nil
	}
	spec.Subject = fmt.Sprintf("%d small files, %s the first", files, name)
	return jobs.AddedJob(t, spec)
}

// packWork is a CommitPack being applied.
type packWork struct {
	stripe *moraine.Stripe
	files  []*packedFile // that are to have it
	// out is why the first of those files that were left out was.
	out error
}

// packedFile is one of its files, as a commit of its own.
type packedFile struct {
	commitWork
	was []moraine.Extent
}

// CommitPack swaps extents of a new stripe, which the mover's session put under a grant, in
// for others of the same bytes, in all files of several that still have just those. For each
// file the rules are those of commitRewrite, and a file that breaks one is left as it is.
func CommitPack(t *kvtx.Tx, op *wire.CommitPack) (*wire.MetaResponse, error) {
	const name = "commit pack"
	if err := t.MustSpeak(name, kvtx.LevelRewrite); err != nil {
		return nil, err
	}
	j, err := tier.HeldMove(t, name, op.GetJob(), op.GetLeaseEpoch(), wire.JobKind_JOB_KIND_REWRITE)
	if err != nil {
		return nil, err
	}
	if err := MayPackFiles(j, op); err != nil {
		return nil, err
	}
	w, err := ParsePack(t, op)
	if err != nil {
		return nil, err
	}
	all := &commitWork{op: &wire.Commit{Promised: op.GetPromised()}, stripes: []*moraine.Stripe{w.stripe}}
	again, err := Committed(t, w.stripe)
	switch {
	case err != nil:
		return nil, err
	case again:
		err = w.keep(func(f *packedFile) error { return HasPacked(t, f) })
	default:
		err = w.keep(func(f *packedFile) error { return MayPack(t, f) })
	}
	if err != nil {
		return nil, err
	}
	if again {
		if err := Measure(t, all); err != nil {
			return nil, err
		}
		return w.reply(all), nil
	}
	if err := SwapPack(t, w, all); err != nil {
		return nil, err
	}
	return w.reply(all), nil
}

// MayPackFiles holds the files of a CommitPack against those of the job.
func MayPackFiles(j *record.Job, op *wire.CommitPack) error {
	const name = "commit pack"
	may, extents, was := j.PackTask().GetFiles(), 0, 0
	if len(op.GetFiles()) == 0 {
		return kvtx.Fail(moraine.InvalidArgument, name, j.Id.String(), "no files")
	}
	for n, f := range op.GetFiles() {
		if _, ok := slices.BinarySearch(may, f.GetInode()); !ok || n > 0 && f.GetInode() <= op.GetFiles()[n-1].GetInode() {
			return kvtx.Fail(moraine.InvalidArgument, name, j.Id.String(), "the job is for other files than inode %d, or it is out of order", f.GetInode())
		}
		extents, was = extents+len(f.GetExtents()), was+len(f.GetWas())
	}
	if extents > moraine.MaxCommitExtents || was > maxRewritten {
		return kvtx.Fail(moraine.TooLarge, name, j.Id.String(), "%d extents for %d, %d and %d at most", extents, was, moraine.MaxCommitExtents, maxRewritten)
	}
	return nil
}

// leavesOut reports whether what a file was refused for concerns that file alone.
func leavesOut(err error) bool {
	switch kvtx.MoraineKind(err) {
	case moraine.NotFound, moraine.PermissionDenied, moraine.Stale, moraine.Conflict:
		return true
	}
	return false
}

// ParsePack holds a CommitPack against every rule that what the files have now does not
// matter for. Files that are gone are left out.
func ParsePack(t *kvtx.Tx, op *wire.CommitPack) (*packWork, error) {
	const name = "commit pack"
	w := &packWork{}
	for _, wf := range op.GetFiles() {
		i, err := ContentFile(t, name, wf.GetInode())
		if leavesOut(err) {
			w.leave(err)
			continue
		}
		if err != nil {
			return nil, err
		}
		if w.stripe == nil {
			if w.stripe, err = fleet.NewStripe(op.GetStripe(), i.Tenant); err != nil {
				return nil, err
			}
		}
		if i.Tenant != w.stripe.Tenant {
			return nil, kvtx.Fail(moraine.CrossTenant, name, i.Id.String(), "files of two tenants")
		}
		f := &packedFile{commitWork: commitWork{i: i, stripes: []*moraine.Stripe{w.stripe}, level: moraine.NVMe,
			op: &wire.Commit{Extents: wf.GetExtents(), Mode: wire.CommitMode_COMMIT_MODE_OVERLAY, Promised: op.GetPromised()}}}
		for _, c := range w.stripe.Chunks {
			f.level = min(f.level, c.Level)
		}
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

// leave notes why a file is left out.
func (w *packWork) leave(err error) {
	if w.out == nil {
		w.out = err
	}
}

// keep leaves those files out that a rule refuses. It fails where that is all of them.
func (w *packWork) keep(rule func(*packedFile) error) error {
	var kept []*packedFile
	for _, f := range w.files {
		err := rule(f)
		if err != nil && !leavesOut(err) {
			return err
		}
		if err != nil {
			w.leave(err)
			w.stripe.LiveBytes -= layout.SumLengths(f.extents)
			continue
		}
		kept = append(kept, f)
	}
	if w.files = kept; len(kept) == 0 {
		return w.out
	}
	return nil
}

// MayPack fails unless the file may have the stripe in the place of what it has.
func MayPack(t *kvtx.Tx, f *packedFile) error { return MayRewrite(t, &f.commitWork, f.was) }

// HasPacked fails with Stale unless the file has what it was to get.
func HasPacked(t *kvtx.Tx, f *packedFile) error {
	for _, e := range f.extents {
		there, err := HasExtent(&t.View, f.i, e)
		if err != nil {
			return err
		}
		if !there {
			return kvtx.Fail(moraine.Stale, "commit pack", f.i.Id.String(), "the stripe is committed, but the file does not have it there")
		}
	}
	return nil
}

// SwapPack puts the stripe in the place of what the files have.
func SwapPack(t *kvtx.Tx, w *packWork, all *commitWork) error {
	if err := BoundPack(t, w); err != nil {
		return err
	}
	if err := TakeStripes(t, all.stripes); err != nil {
		return err
	}
	if err := SetPackOrigin(t, w); err != nil {
		return err
	}
	if err := fleet.AddStripes(t, all.stripes); err != nil {
		return err
	}
	for _, f := range w.files {
		if err := layout.Overlay(t, f.i, f.extents); err != nil {
			return err
		}
	}
	if err := JudgeStripes(t, all); err != nil {
		return err
	}
	for _, f := range w.files {
		f.i.Degraded += uint64(all.degraded)
		tree.PutInode(t, f.i)
	}
	return nil
}

// BoundPack fails where more would die by the command than one may bury.
func BoundPack(t *kvtx.Tx, w *packWork) error {
	seen, chunks := map[moraine.StripeID]bool{}, 0
	for _, f := range w.files {
		for _, e := range f.was {
			if seen[e.Stripe] {
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
		return kvtx.Fail(moraine.TooLarge, "commit pack", w.stripe.ID.String(), "stripes of %d chunks are to be taken away, %d at most", chunks, wire.MaxPackChunks)
	}
	return nil
}

func (w *packWork) reply(all *commitWork) *wire.MetaResponse {
	r := &wire.PackReply{Protects: uint32(all.protects), Degraded: uint32(all.degraded)}
	for _, f := range w.files {
		r.Packed = append(r.Packed, uint64(f.i.Id))
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Pack{Pack: r}}
}

// Packable is what the leader has to know of a file to have it packed.
type Packable struct {
	Tenant moraine.Tenant
	Parent moraine.InodeID
	Bytes  int64 // that it has, in stripes
	// Unchanged is for how many nanoseconds nobody has changed the file, its names or its
	// attributes.
	Unchanged int64
}

// FindPackable returns what is to be known of a file; ok is false where it may not be rewritten,
// or some of what it has is not in stripes, on devices.
func FindPackable(r *kvtx.View, file moraine.InodeID) (p Packable, ok bool, err error) {
	v := r
	i, err := tree.ReadInode(v, file)
	if kvtx.MoraineKind(err) == moraine.NotFound {
		return p, false, nil
	}
	if err != nil {
		return p, false, err
	}
	c, err := v.Counters()
	if err != nil {
		return p, false, err
	}
	beside, err := layout.LevelBeside(v, i) // the bucket may have all of it too, which stays true
	if err != nil {
		return p, false, err
	}
	p = Packable{Tenant: i.Tenant, Parent: i.Parent, Bytes: i.Stored, Unchanged: int64(c[record.CWall]) - i.Ctime}
	return p, rewritable(i) && i.Evicted == 0 && beside == moraine.NVMe, nil
}
