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

// AdoptQuietMillis is how long nothing below a directory may change before a job that a policy
// queued adopts it, in milliseconds of cluster time: some frameworks write further files after the
// one that completes the tensors.
const AdoptQuietMillis = 10_000

// adoptComplete queues the adoption of a directory if the file completes it.
func adoptComplete(t *kvtx.Tx, i *record.Inode) error {
	if t.Count[record.CPolicies] == 0 || i.Typ != record.TypeFile || i.Nlink == 0 || i.Sealed || i.Size == 0 || i.Parent == 0 {
		return nil
	}
	for _, last := range lastFiles {
		if i.Name == last {
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
	e, ok, err := tree.Lookup(&t.View, i.Id, lastFiles[p.Format])
	if err != nil || !ok || e.Typ != record.TypeFile {
		return err
	}
	last, err := tree.Inode(t, e.Inode)
	if err != nil {
		return kvtx.Damaged(err)
	}
	return adoptComplete(t, last)
}

// adoptDir queues what adopts the directory of the file last, if its policy says so.
func adoptDir(t *kvtx.Tx, last *record.Inode) error {
	p, err := tree.Effective(&t.View, last.Parent)
	if err != nil || lastFiles[p.Format] != last.Name {
		return err
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
