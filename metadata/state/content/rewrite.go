package content

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/layout"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// A stripe becomes sparse when files refer to little of it any more.
// Overwritten or truncated bytes are not freed as long as any byte of the
// stripe is in use. The leader finds such stripes (NameStripes) and names them
// in a REWRITE job for one file. The job's mover writes the live bytes into new
// stripes, and CommitRewrite swaps these in. The old stripes die like any
// others without references.

// MaxRewriteStripes is the largest number of stripes of one REWRITE job.
const MaxRewriteStripes = 64

// CreateRewrite creates a job that rewrites stripes of a file; none if the file is gone.
func CreateRewrite(t *kvtx.Tx, w *wire.Job) (*wire.Job, error) {
	const op = "create jobs"
	task := w.GetRewrite()
	if len(task.GetFiles()) > 0 {
		return createPack(t, w)
	}
	ref := moraine.InodeID(w.GetInode()).String()
	switch {
	case len(task.GetStripes()) == 0 || len(task.GetStripes()) > MaxRewriteStripes:
		return nil, kvtx.Fail(moraine.InvalidArgument, op, ref, "the job would rewrite %d stripes, but must have 1 to %d", len(task.GetStripes()), MaxRewriteStripes)
	case task.GetFewer() > MaxRewriteStripes:
		return nil, kvtx.Fail(moraine.InvalidArgument, op, ref, "the job would reduce the stripes by a factor of %d, which is at most %d", task.GetFewer(), MaxRewriteStripes)
	case task.GetOffset() >= task.GetEnd() || task.GetEnd() > tree.MaxFileSize:
		return nil, kvtx.Fail(moraine.InvalidArgument, op, ref, "the range from byte %d to %d is invalid", task.GetOffset(), task.GetEnd())
	}
	i, err := tree.Inode(t, moraine.InodeID(w.GetInode()))
	if kvtx.MoraineKind(err) == moraine.NotFound || err == nil && !rewritable(i) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	name := i.Name
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

// Rewritables returns the files after one whose stripes may be rewritten. It inspects at most limit
// inodes. last is where to continue; 0 if there are no more.
func Rewritables(v *kvtx.View, after moraine.InodeID, limit int) (files []moraine.InodeID, last moraine.InodeID, err error) {
	looked := 0
	err = v.Each(v.K.Inode(after+1), kvtx.PrefixEnd(v.K.Table(record.TabInode)), func(key, value []byte) (bool, error) {
		i := &record.Inode{Id: moraine.InodeID(record.LastU64(key))}
		if err := i.Decode(value); err != nil {
			return false, err
		}
		if rewritable(i) {
			files = append(files, i.Id)
		}
		looked, last = looked+1, i.Id
		return looked < limit, nil
	})
	if looked < limit {
		last = 0
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
func NameStripes(v *kvtx.View, file moraine.InodeID, from int64, limit int, named map[moraine.StripeID]Named) (looked int, next int64, err error) {
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
func LastStripe(v *kvtx.View) (moraine.StripeID, error) {
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
