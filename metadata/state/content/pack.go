package content

import (
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/layout"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// A small file has a stripe of its own with whole copies, which take two or three times its size, or
// the metadata has its content.
// The leader finds small files that nobody has changed for long and names them in a REWRITE job.
// The job's mover writes their bytes side by side into one stripe, and one CommitRewrite swaps that
// in for all of them. It must be one command, because a committed stripe gains references only by
// clones.

// MaxPackFiles is the largest number of files of one REWRITE job, and of one CommitRewrite.
const MaxPackFiles = 128

// createPack creates a job that packs small files together; none if all are gone.
func createPack(t *kvtx.Tx, w *wire.Job) (*wire.Job, error) {
	const op = "create jobs"
	task := w.GetRewrite()
	switch {
	case len(task.GetFiles()) > MaxPackFiles:
		return nil, kvtx.Fail(moraine.InvalidArgument, op, "", "the job would pack %d files, %d at most", len(task.GetFiles()), MaxPackFiles)
	case w.GetInode() != 0 || len(task.GetStripes()) > 0 || task.GetOffset() != 0 || task.GetEnd() != 0 || task.GetFewer() != 0:
		return nil, kvtx.Fail(moraine.InvalidArgument, op, "", "a job cannot both pack files and rewrite stripes")
	}
	spec, name, before := jobs.JobSpec{Kind: w.GetKind(), Cursor: record.Be64(nil, task.GetSettled())}, "", uint64(0)
	files := 0
	for _, id := range task.GetFiles() {
		if id <= before {
			return nil, kvtx.Fail(moraine.InvalidArgument, op, moraine.InodeID(id).String(), "the files of the job are not in ascending order")
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
			name = i.Name
		}
		files, spec.Cursor = files+1, record.Be64(spec.Cursor, id)
	}
	if files == 0 {
		return nil, nil
	}
	spec.Subject = fmt.Sprintf("%d small files, %s the first", files, name)
	return jobs.AddedJob(t, spec)
}

// Packable is what the leader needs to know of a file to pack it.
type Packable struct {
	Tenant moraine.Tenant
	Parent moraine.InodeID
	Bytes  int64 // its bytes in stripes
	Inline int64 // its bytes in the metadata
	// Unchanged is the time in nanoseconds since the file, its names or its attributes last
	// changed.
	Unchanged int64
	// Pressed says that the metadata keeps more than half of the content that it may.
	Pressed bool
}

// FindPackable returns the packing data of a file. ok is false if the file may not be rewritten, or
// if some of its content is neither in stripes on devices nor in the metadata.
func FindPackable(v *kvtx.View, file moraine.InodeID) (p Packable, ok bool, err error) {
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
	beside, err := layout.LevelBeside(v, i) // an object may also have the whole file, before and after
	if err != nil {
		return p, false, err
	}
	p = Packable{Tenant: i.Tenant, Parent: i.Parent, Bytes: i.Stored - i.Inline, Inline: i.Inline, Unchanged: int64(c[record.CWall]) - i.Ctime,
		Pressed: c[record.CInlineBytes] > kvtx.MaxInlineBytes/2}
	return p, rewritable(i) && i.Evicted == 0 && beside == moraine.NVMe, nil
}
