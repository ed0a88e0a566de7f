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

// A small file has a stripe of its own with whole copies, which take two or three times its size.
// The leader finds small files that nobody has changed for long and names them in a REWRITE job.
// The job's mover writes their bytes side by side into one stripe, and CommitPack swaps that in for
// all of them in one command. It must be one command, because a committed stripe gains references
// only by clones.

const (
	// MaxPackFiles is the largest number of files of one REWRITE job, and of one CommitPack.
	MaxPackFiles = 128
)

// createPack creates a job that packs small files together; none if all are gone.
func createPack(t *kvtx.Tx, w *wire.Job) (*wire.Job, error) {
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

// packWork is a CommitPack in progress.
type packWork struct {
	stripe *moraine.Stripe
	files  []*packedFile // files that will refer to the stripe
	// out is the reason why the first skipped file was skipped.
	out error
}

// packedFile is one of the files, with a commit of its own.
type packedFile struct {
	commitWork
	was []moraine.Extent
}

// CommitPack replaces extents by those of a new stripe with the same bytes, which the mover's
// session wrote under a grant. It does so in all files that still have exactly the old extents. The
// rules of CommitRewrite apply to each file, and a file that breaks one is left as it is.
func CommitPack(t *kvtx.Tx, op *wire.CommitPack) (*wire.MetaResponse, error) {
	const name = "commit pack"
	if err := t.MustSpeak(name, kvtx.LevelRewrite); err != nil {
		return nil, err
	}
	j, err := tier.HeldMove(t, name, op.GetJob(), op.GetLeaseEpoch(), wire.JobKind_JOB_KIND_REWRITE)
	if err != nil {
		return nil, err
	}
	if err := mayPackFiles(j, op); err != nil {
		return nil, err
	}
	w, err := parsePack(t, op)
	if err != nil {
		return nil, err
	}
	all := &commitWork{op: &wire.Commit{Promised: op.GetPromised()}, stripes: []*moraine.Stripe{w.stripe}}
	again, err := committed(t, w.stripe)
	switch {
	case err != nil:
		return nil, err
	case again:
		err = w.keep(func(f *packedFile) error { return hasPacked(t, f) })
	default:
		err = w.keep(func(f *packedFile) error { return mayPack(t, f) })
	}
	if err != nil {
		return nil, err
	}
	if again {
		if err := measure(t, all); err != nil {
			return nil, err
		}
		return w.reply(all), nil
	}
	if err := swapPack(t, w, all); err != nil {
		return nil, err
	}
	return w.reply(all), nil
}

// mayPackFiles checks the files of a CommitPack against those of the job.
func mayPackFiles(j *record.Job, op *wire.CommitPack) error {
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

// leavesOut reports whether an error concerns only the one file that it names.
func leavesOut(err error) bool {
	switch kvtx.MoraineKind(err) {
	case moraine.NotFound, moraine.PermissionDenied, moraine.Stale, moraine.Conflict:
		return true
	}
	return false
}

// parsePack checks a CommitPack against every rule that does not depend on the files' present
// content. It skips files that are gone.
func parsePack(t *kvtx.Tx, op *wire.CommitPack) (*packWork, error) {
	const name = "commit pack"
	w := &packWork{}
	for _, wf := range op.GetFiles() {
		i, err := contentFile(t, name, wf.GetInode())
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

// leave records why a file is skipped.
func (w *packWork) leave(err error) {
	if w.out == nil {
		w.out = err
	}
}

// keep skips the files that a rule refuses. It fails if it refuses them all.
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

// mayPack fails unless the stripe may replace the file's extents.
func mayPack(t *kvtx.Tx, f *packedFile) error { return mayRewrite(t, &f.commitWork, f.was) }

// hasPacked fails with Stale unless the file has the extents that it was to get.
func hasPacked(t *kvtx.Tx, f *packedFile) error {
	for _, e := range f.extents {
		there, err := hasExtent(&t.View, f.i, e)
		if err != nil {
			return err
		}
		if !there {
			return kvtx.Fail(moraine.Stale, "commit pack", f.i.Id.String(), "the stripe is committed, but the file does not have it there")
		}
	}
	return nil
}

// swapPack replaces the files' extents by those of the stripe.
func swapPack(t *kvtx.Tx, w *packWork, all *commitWork) error {
	if err := boundPack(t, w); err != nil {
		return err
	}
	if err := takeStripes(t, all.stripes); err != nil {
		return err
	}
	if err := setPackOrigin(t, w); err != nil {
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
	if err := judgeStripes(t, all); err != nil {
		return err
	}
	for _, f := range w.files {
		f.i.Degraded += uint64(all.degraded)
		tree.PutInode(t, f.i)
	}
	return nil
}

// boundPack fails if the command would remove more stripes than one command may.
func boundPack(t *kvtx.Tx, w *packWork) error {
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

// Packable is what the leader needs to know of a file to pack it.
type Packable struct {
	Tenant moraine.Tenant
	Parent moraine.InodeID
	Bytes  int64 // its bytes in stripes
	// Unchanged is the time in nanoseconds since the file, its names or its attributes last
	// changed.
	Unchanged int64
}

// FindPackable returns the packing data of a file. ok is false if the file may not be rewritten, or
// if some of its content is not in stripes on devices.
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
	beside, err := layout.LevelBeside(v, i) // an object may also have all of it, and continues to
	if err != nil {
		return p, false, err
	}
	p = Packable{Tenant: i.Tenant, Parent: i.Parent, Bytes: i.Stored, Unchanged: int64(c[record.CWall]) - i.Ctime}
	return p, rewritable(i) && i.Evicted == 0 && beside == moraine.NVMe, nil
}
