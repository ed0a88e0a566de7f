package ckpt

import (
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/adopted"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/names"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	partFiles = adopted.PartFiles
	// maxAdopted bounds the files of an adopted step.
	maxAdopted = 1 << 14
)

// adopting is one piece of an ADOPT job.
type adopting struct {
	*kvtx.Tx
	*record.Adoption
	job  *record.Job
	src  *record.Inode // the directory
	stop int           // of Order: the piece ends there
}

// refusal says why a directory does not become a step.
type refusal struct {
	kind  moraine.Kind
	text  string
	final bool // another try does not help
}

func refuse(kind moraine.Kind, format string, args ...any) *refusal {
	return &refusal{kind, fmt.Sprintf(format, args...), true}
}

// changed is the refusal of a directory in which a file changed.
func changed(path string) *refusal {
	return &refusal{kind: moraine.Conflict, text: fmt.Sprintf("file %s changed meanwhile: adopt the directory when nothing writes to it", path)}
}

// RunAdopt does about limit records of an adoption. It returns true if the job ended or waits; the job
// is then already written.
func RunAdopt(t *kvtx.Tx, j *record.Job, limit int) (over bool, err error) {
	w := &adopting{Tx: t, Adoption: &record.Adoption{}, job: j, stop: len(t.Order) + limit}
	if err := w.Decode(j.Cursor); err != nil {
		return false, err
	}
	why, err := w.piece(limit)
	switch {
	case err != nil:
		return false, err
	case why != nil:
		return true, w.refused(why)
	case w.job == nil:
		return true, nil
	}
	j.Cursor = w.Encode()
	return false, nil
}

// piece runs a part of the present phase. It sets job to nil if it wrote the job.
func (w *adopting) piece(limit int) (why *refusal, err error) {
	w.src, err = tree.ReadInode(&w.View, moraine.InodeID(w.job.Target))
	if kvtx.MoraineKind(err) == moraine.NotFound || err == nil && w.src.Nlink == 0 {
		return refuse(moraine.NotFound, "the directory was removed"), nil
	}
	if err != nil {
		return nil, err
	}
	if in, err := tree.InJobScope(&w.View, w.job, w.src); err != nil || !in {
		return refuse(moraine.NotFound, "the directory was moved out of the session's scope"), err
	}
	run, err := tree.ReadInode(&w.View, moraine.InodeID(w.job.Step.Run))
	if kvtx.MoraineKind(err) == moraine.NotFound || err == nil && run.Nlink == 0 {
		return refuse(moraine.NotFound, "the directory of the run was removed"), nil
	}
	if err != nil {
		return nil, err
	}
	switch w.Phase {
	case record.AdoptLook:
		return w.look(limit)
	case record.AdoptCopy:
		return w.copyFiles()
	case record.AdoptCheck:
		return w.checkFiles(limit)
	}
	return nil, kvtx.Corrupt("adoption", w.job.Id.String(), "the job is in phase %d", w.Phase)
}

// look counts the files, and decides at the end whether to go on.
func (w *adopting) look(limit int) (*refusal, error) {
	for range max(limit/4, 1) {
		f, why, err := nextFile(&w.View, w.src.Id, w.Last)
		if why != nil || err != nil {
			return why, err
		}
		if f.inode == nil {
			return w.looked()
		}
		w.Last = f.path
		w.Add(f.path, f.inode)
		if w.N++; w.N > maxAdopted {
			return refuse(moraine.TooLarge, "the directory has more than %d files", maxAdopted), nil
		}
	}
	return nil, nil
}

// looked ends the first phase.
func (w *adopting) looked() (*refusal, error) {
	sum, before := w.Sum, w.Seen
	w.Files, w.Seen = w.N, sum
	w.job.Done, w.job.Total = 0, w.Files
	switch {
	case w.Files == 0:
		why := refuse(moraine.Incomplete, "the directory has no file")
		why.final = false
		return why, nil
	case w.Quiet && sum != before:
		quiet, err := names.AdoptQuiet(&w.View, w.src.Id, w.Format)
		if err != nil {
			return nil, err
		}
		w.Begin(record.AdoptLook)
		w.wait(quiet)
		return nil, nil
	case w.Quiet && sum == w.Refused:
		return &refusal{kind: w.job.Why, text: w.job.Err}, nil
	}
	if why, err := w.unfinishedTrainer(); why != nil || err != nil {
		return why, err
	}
	return w.beginAdoption()
}

// unfinishedTrainer is the refusal of a directory into which the Trainer of transformers still writes: the index of
// the model is there long before the optimizer.
func (w *adopting) unfinishedTrainer() (*refusal, error) {
	if !w.Quiet || w.Format != wire.CheckpointFormat_CHECKPOINT_FORMAT_HF {
		return nil, nil
	}
	has := func(name string) (bool, error) { return names.HasFile(&w.View, w.src.Id, name) }
	ok, err := adopted.IsTrainers(w.src.Name, has)
	if !ok || err != nil {
		return nil, err
	}
	if done, err := has(adopted.TrainerState); done || err != nil {
		return nil, err
	}
	why := refuse(moraine.Incomplete, "%s is missing, which the Trainer writes last; if something else has written the directory, adopt it by `moraine ckpt adopt`", adopted.TrainerState)
	why.final = false
	return why, nil
}

// copyFiles clones files into the step's directory.
func (w *adopting) copyFiles() (*refusal, error) {
	s, err := tree.MustStep(&w.View, w.job.Step)
	if err != nil {
		return nil, err
	}
	dir, err := tree.Inode(w.Tx, s.Dir)
	if err != nil {
		return nil, kvtx.Damaged(err)
	}
	names.Open(w.Tx, dir)
	for len(w.Order) < w.stop && w.Phase == record.AdoptCopy {
		if w.Clone.From != 0 {
			if why, err := w.cloneMore(s); why != nil || err != nil {
				return why, err
			}
			continue
		}
		f, why, err := nextFile(&w.View, w.src.Id, w.Last)
		switch {
		case why != nil || err != nil:
			return why, err
		case f.inode == nil && w.N != w.Files:
			return changed(w.src.Name), nil
		case f.inode == nil:
			w.Begin(record.AdoptCheck)
		case w.N == w.Files:
			return changed(f.path), nil
		default:
			if why, err := w.cloneFile(s, dir, f); why != nil || err != nil {
				return why, err
			}
		}
	}
	s.LastSeal = w.ClusterTime()
	putStep(w.Tx, s)
	return nil, nil
}

// checkFiles compares the files that are there now with those of the step.
func (w *adopting) checkFiles(limit int) (*refusal, error) {
	s, err := tree.MustStep(&w.View, w.job.Step)
	if err != nil {
		return nil, err
	}
	var part *record.Part
	for range max(limit/4, 1) {
		f, why, err := nextFile(&w.View, w.src.Id, w.Last)
		if why != nil || err != nil {
			return why, err
		}
		if f.inode == nil {
			return w.checked(s)
		}
		if part == nil || w.N%partFiles == 0 {
			if part, err = w.partOf(s, w.N/partFiles); err != nil {
				return nil, err
			}
		}
		if !same(part, w.N%partFiles, f) {
			return w.differs(s, "file "+f.path+" differs", f.path), nil
		}
		w.Last = f.path
		w.N++
	}
	if s.State == record.StepOpen {
		s.LastSeal = w.ClusterTime()
		putStep(w.Tx, s)
	}
	return nil, nil
}

// partOf returns a part of the step. The one that is not sealed is in the job.
func (w *adopting) partOf(s *record.Step, n uint64) (*record.Part, error) {
	if s.State != record.StepCommitted && n == uint64(s.World)-1 {
		return &record.Part{Files: w.Part}, nil
	}
	p, err := PartRecord(&w.View, s.Id, uint32(n))
	if p == nil && err == nil {
		p = &record.Part{} // the directory has more files than the step
	}
	return p, err
}

// same reports whether file n of a part is a clone of f as it is now.
func same(p *record.Part, n uint64, f found) bool {
	if n >= uint64(len(p.Files)) {
		return false
	}
	have := p.Files[n]
	name, err := adopted.Name(f.path)
	return err == nil && have.Name == name && have.From == record.From{Inode: f.inode.Id, Generation: f.inode.Generation}
}

// differs is the refusal of a directory that is not what the step has.
func (w *adopting) differs(s *record.Step, how, path string) *refusal {
	if s.State != record.StepCommitted {
		return changed(path)
	}
	return refuse(moraine.Conflict, "%s was adopted from other content: %s. A step never changes: remove it (moraine ckpt rm), or adopt the directory as another step", s.Id, how)
}

// found is a file below the directory.
type found struct {
	path  string
	inode *record.Inode // nil: there are no more
}

// maxEmptyDirs bounds the directories without files that one search passes.
const maxEmptyDirs = 256

// nextFile returns the first file below dir whose path comes after a path. The order is that of the
// names in each directory.
func nextFile(v *kvtx.View, dir moraine.InodeID, after string) (found, *refusal, error) {
	budget := maxEmptyDirs
	return nextBelow(v, dir, after, &budget)
}
