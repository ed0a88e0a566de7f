package ckpt

import (
	"math"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/adopted"
	"github.com/morainefs/moraine/metadata/state/content"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/names"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// cloneFile makes the clone of a file in the step's directory, and shares its first tables.
func (w *adopting) cloneFile(s *record.Step, dir *record.Inode, f found) (*refusal, error) {
	name, err := adopted.Name(f.path)
	if err != nil {
		return refuse(moraine.NameTooLong, "file %s cannot be adopted: %v", f.path, err), nil
	}
	if f.inode.Lost() {
		return refuse(moraine.Lost, "bytes of file %s are lost", f.path), nil
	}
	i, err := content.NewClone(w.Tx, f.inode, dir.Tenant)
	if err != nil {
		return nil, err
	}
	names.Link(w.Tx, dir, name, i)
	i.Ctime, i.Sealed = w.Now, true
	tree.PutInode(w.Tx, i)
	w.Last = f.path
	w.Clone = record.FileClone{From: f.inode.Id, Into: i.Id, Generation: f.inode.Generation}
	from := record.From{Inode: f.inode.Id, Generation: f.inode.Generation}
	w.Part = append(w.Part, record.PartFile{Inode: i.Id, Name: name, From: from})
	if err := content.CloneMore(w.Tx, &w.Clone, w.stop); err != nil {
		return nil, err
	}
	s.AddFile(i.Safety())
	return nil, w.cloned(s, i)
}

// cloneMore shares the next tables of the file in progress.
func (w *adopting) cloneMore(s *record.Step) (*refusal, error) {
	src, err := tree.ReadInode(&w.View, w.Clone.From)
	if kvtx.MoraineKind(err) == moraine.NotFound || err == nil && (src.Nlink == 0 || src.Generation != w.Clone.Generation) {
		return changed(w.Last), nil
	}
	if err != nil {
		return nil, err
	}
	i, err := tree.Inode(w.Tx, w.Clone.Into)
	if err != nil {
		return nil, kvtx.Damaged(err)
	}
	names.Open(w.Tx, i)
	if err := content.CloneMore(w.Tx, &w.Clone, w.stop); err != nil {
		return nil, err
	}
	return nil, w.cloned(s, i)
}

// cloned counts a clone that is whole, and seals its part if that is not the last.
func (w *adopting) cloned(s *record.Step, i *record.Inode) error {
	if w.Clone.From != 0 {
		return nil
	}
	w.N++
	w.job.Done++
	s.Bytes += uint64(i.Size)
	s.Degraded += i.Degraded
	w.Part[len(w.Part)-1].Size = uint64(i.Size)
	if len(w.Part) < partFiles || w.N == w.Files {
		return nil
	}
	return w.sealPart(s, uint32(w.N/partFiles)-1)
}

// sealPart writes a part of the step. The caller writes the step.
func (w *adopting) sealPart(s *record.Step, rank uint32) error {
	files := make([]adopted.File, len(w.Part))
	for n, f := range w.Part {
		files[n] = adopted.File{Name: f.Name, Size: f.Size}
	}
	p := &record.Part{Sealed: true, SealedAt: w.Now, Digest: adopted.Digest(files), Files: w.Part}
	w.Put(w.K.Part(s.Id, rank), p.Encode())
	w.Part = nil
	s.Sealed++
	stepChanged(w.Tx, s.Id)
	return countSeal(w.Tx, s, rank)
}

// checked ends the last phase: nothing changed. The step is sealed, and the job waits until the step
// was checked.
func (w *adopting) checked(s *record.Step) (*refusal, error) {
	t, j := w.Tx, w.job
	if s.State == record.StepCommitted {
		return w.adoptedBefore(s)
	}
	if w.N != w.Files {
		return changed(w.src.Name), nil
	}
	if err := w.sealPart(s, s.World-1); err != nil {
		return nil, err
	}
	if err := sealStep(t, s); err != nil {
		return nil, err
	}
	if err := queueCheck(t, s); err != nil {
		return nil, err
	}
	s.LastSeal = w.ClusterTime()
	putStep(t, s)
	w.Begin(record.AdoptJudge)
	w.job = nil
	jobs.UnindexJob(t, j)
	j.Cursor = w.Encode()
	j.State, j.Until = wire.JobState_JOB_STATE_RUNNING, math.MaxUint64 // the end of the step ends it
	t.Put(t.K.JobLease(j.Until, j.Id), []byte{record.JobVersion})
	jobs.PutJob(t, j)
	return nil, nil
}

// adoptedBefore ends the job of a directory that a committed step has: all files that are there now
// are in the step.
func (w *adopting) adoptedBefore(s *record.Step) (*refusal, error) {
	files := uint64(0)
	for rank := range s.World {
		p, err := PartRecord(&w.View, s.Id, rank)
		if err != nil {
			return nil, err
		}
		if p != nil {
			files += uint64(len(p.Files))
		}
	}
	switch {
	case files != w.N:
		return w.differs(s, "the directory has fewer files", ""), nil
	case w.Quiet:
		j := w.job
		w.job = nil
		return nil, jobs.EndJob(w.Tx, j, wire.JobState_JOB_STATE_DONE, "")
	}
	return refuse(moraine.Exists, "the directory was adopted before as %s", s.Id), nil
}

// wait makes the job pending for a time, in milliseconds of cluster time.
func (w *adopting) wait(millis uint64) {
	t, j := w.Tx, w.job
	jobs.UnindexJob(t, j)
	j.Cursor = w.Encode()
	j.State, j.Until, j.After = wire.JobState_JOB_STATE_PENDING, 0, w.ClusterTime()+millis
	t.Put(t.K.JobReady(uint8(j.Kind), j.After, j.Id), []byte{record.JobVersion})
	jobs.PutJob(t, j)
	w.job = nil
}
