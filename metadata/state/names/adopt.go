package names

import (
	"strconv"
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/adopted"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// A framework that writes a checkpoint as files writes one file last. Where a policy sets the format,
// the entry that gives this file its content or its name queues a job that makes the directory a step
// of a run (package ckpt). The run is the directory above, and the digits at the end of the
// directory's name are the step.

// lastFiles has the file that completes a directory, by format.
var lastFiles = map[wire.CheckpointFormat]string{
	wire.CheckpointFormat_CHECKPOINT_FORMAT_DCP:      adopted.DCPMetadata,
	wire.CheckpointFormat_CHECKPOINT_FORMAT_MEGATRON: adopted.MegatronTracker,
	wire.CheckpointFormat_CHECKPOINT_FORMAT_HF:       adopted.HFIndex,
}

// adoptQuietMillis is how long nothing below a directory may change before a job that a policy
// queued adopts it, in milliseconds of cluster time, unless the policy says otherwise. Libraries of
// Hugging Face write further files after the one that completes the tensors.
const (
	adoptQuietMillis   = 10_000
	adoptQuietMillisHF = 30_000
)

// AdoptQuiet returns how long a directory must stay as it is before a job of a policy adopts it, in milliseconds.
func AdoptQuiet(v *kvtx.View, dir moraine.InodeID, format wire.CheckpointFormat) (uint64, error) {
	p, err := tree.Effective(v, dir)
	switch {
	case err != nil:
		return 0, err
	case p.QuietMillis > 0 && p.Format == format:
		return p.QuietMillis, nil
	case format == wire.CheckpointFormat_CHECKPOINT_FORMAT_HF:
		return adoptQuietMillisHF, nil
	}
	return adoptQuietMillis, nil
}

// completes reports whether a file of a name may be the last of a directory of a format. The Trainer of
// transformers writes its state last, also where a model has one file and so no index.
func completes(format wire.CheckpointFormat, name string) bool {
	return name != "" && (name == lastFiles[format] || format == wire.CheckpointFormat_CHECKPOINT_FORMAT_HF && name == adopted.TrainerState)
}

// HasFile reports whether a directory has a file of a name.
func HasFile(v *kvtx.View, dir moraine.InodeID, name string) (bool, error) {
	e, ok, err := tree.Lookup(v, dir, name)
	return ok && e.Typ == record.TypeFile, err
}

// adoptComplete queues the adoption of a directory if the file completes it.
func adoptComplete(t *kvtx.Tx, i *record.Inode) error {
	if t.Count[record.CPolicies] == 0 || i.Typ != record.TypeFile || i.Nlink == 0 || i.Sealed || i.Size == 0 || i.Parent == 0 {
		return nil
	}
	for format := range lastFiles {
		if completes(format, i.Name) {
			return adoptDir(t, i)
		}
	}
	return nil
}

// adoptRenamed queues the adoption of a directory that a rename completed.
func adoptRenamed(t *kvtx.Tx, i *record.Inode) error {
	if t.Count[record.CPolicies] == 0 || i.Typ != record.TypeDirectory {
		return adoptComplete(t, i)
	}
	p, err := tree.Effective(&t.View, i.Id)
	if err != nil || lastFiles[p.Format] == "" {
		return err
	}
	for _, name := range []string{lastFiles[p.Format], adopted.TrainerState} {
		if !completes(p.Format, name) {
			continue
		}
		e, ok, err := tree.Lookup(&t.View, i.Id, name)
		if err != nil {
			return err
		}
		if !ok || e.Typ != record.TypeFile {
			continue
		}
		last, err := tree.Inode(t, e.Inode)
		if err != nil {
			return kvtx.Damaged(err)
		}
		return adoptComplete(t, last)
	}
	return nil
}

// hasModel reports whether a directory of Hugging Face has safetensors files of a model. Without them the Trainer's
// state completes another format, which nobody can check.
func hasModel(v *kvtx.View, dir moraine.InodeID) (bool, error) {
	if ok, err := HasFile(v, dir, adopted.HFIndex); ok || err != nil {
		return ok, err
	}
	return HasFile(v, dir, adopted.HFModel)
}

// adoptDir queues what adopts the directory of the file last, if its policy says so.
func adoptDir(t *kvtx.Tx, last *record.Inode) error {
	p, err := tree.Effective(&t.View, last.Parent)
	if err != nil || !completes(p.Format, last.Name) {
		return err
	}
	if last.Name == adopted.TrainerState {
		if ok, err := hasModel(&t.View, last.Parent); !ok || err != nil {
			return err
		}
	}
	dir, err := tree.Inode(t, last.Parent)
	if err != nil {
		return kvtx.Damaged(err)
	}
	if p.Format == wire.CheckpointFormat_CHECKPOINT_FORMAT_MEGATRON {
		// The file is above the directories of the steps and names one of them.
		if dir.Name == "" {
			return nil
		}
		_, err = WantAdoption(t, wire.JobKind_JOB_KIND_READ_TRACKER, last, record.StepID{}, record.Adoption{Format: p.Format, Quiet: true}, 0)
		return err
	}
	step, ok := stepOfName(dir.Name)
	if !ok || dir.Parent == 0 || dir.Parent == t.K.Top() {
		return nil
	}
	of := record.StepID{Run: moraine.RunID(dir.Parent), Step: step}
	_, err = WantAdoption(t, wire.JobKind_JOB_KIND_ADOPT, dir, of, record.Adoption{Format: p.Format, Quiet: true}, 0)
	return err
}

// stepOfName returns the number at the end of a directory's name.
func stepOfName(name string) (step uint64, ok bool) {
	step, err := strconv.ParseUint(name[len(strings.TrimRight(name, "0123456789")):], 10, 64)
	return step, err == nil
}

// WantAdoption queues a job that adopts a directory, or reads a tracker file. If there is one already,
// that one continues, and another one follows it.
func WantAdoption(t *kvtx.Tx, kind wire.JobKind, of *record.Inode, step record.StepID, a record.Adoption, owner moraine.SessionID) (moraine.JobID, error) {
	j, err := AdoptionOf(&t.View, of.Id)
	if err != nil {
		return 0, err
	}
	if j != nil {
		have := &record.Adoption{}
		if err := have.Decode(j.Cursor); err != nil {
			return 0, err
		}
		if !have.Quiet {
			return j.Id, nil // somebody asked for this one
		}
		if kind == wire.JobKind_JOB_KIND_ADOPT && have.Phase == record.AdoptLook && j.Tries == 0 {
			return j.Id, nil // it has not taken a file yet: it finds this one too
		}
		have.Again = true
		j.Cursor = have.Encode()
		jobs.PutJob(t, j)
		return j.Id, nil
	}
	path, ok, err := tree.PathOf(&t.View, of)
	if err != nil {
		return 0, err
	}
	if !ok {
		path = of.Name
	}
	id, err := jobs.AddJob(t, jobs.JobSpec{Kind: kind, Subject: record.Clip(path, moraine.MaxNameLen), Target: uint64(of.Id), Step: step, Cursor: a.Encode(), Owner: owner})
	if err == nil {
		t.Put(t.K.Adopt(of.Id), record.EncodeID(record.JobVersion, id))
	}
	return id, err
}

// AdoptionOf returns the live job that adopts a directory or reads a tracker file; nil if none does.
func AdoptionOf(v *kvtx.View, id moraine.InodeID) (*record.Job, error) {
	b, ok, err := v.R.Get(v.K.Adopt(id))
	if err != nil || !ok {
		return nil, err
	}
	job, err := record.DecodeID[moraine.JobID](record.JobVersion, b, "adoption")
	if err != nil {
		return nil, err
	}
	j, err := jobs.Job(v, job)
	if err == nil && (j == nil || !j.Live()) {
		err = kvtx.Corrupt("adoption", id.String(), "job %s of the directory has ended", job)
	}
	return j, err
}
