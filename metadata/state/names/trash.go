package names

import (
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/metadata/state/usage"
	"github.com/morainefs/moraine/transport/wire"
)

// Below a directory whose policy has a trash, a file that loses its last name, and a tree that is
// removed, move to DIR/.trash/HOUR, at the path that they had below DIR. The hour is that of the
// removal. Each directory of an hour is removed, by a job, when the time of the policy has passed
// since the hour's end. What is removed from the trash is removed for good.

const (
	// minTrashMillis and maxTrashMillis bound the time for which a trash keeps files.
	minTrashMillis = 60_000
	maxTrashMillis = 10 * 366 * 24 * hourMillis

	hourMillis = 3_600_000
)

// Lose takes a name from child. A file without another one goes to the trash, stays with the session
// if keep is set, or is removed. A directory must be empty.
func Lose(t *kvtx.Tx, dir *record.Inode, name string, child *record.Inode, keep bool) error {
	last := child.Typ != record.TypeDirectory && child.Nlink == 1
	if last {
		if kept, err := ToTrash(t, dir, name, child); kept || err != nil {
			return err
		}
	}
	Unlink(t, dir, name, child)
	if last && keep {
		Hold(t, child)
		return nil
	}
	return DropName(t, child, name)
}

// ToTrash moves child, the only name of which is in dir, to the trash. It returns false if the
// policy there has none, or child is an empty directory, a checkpoint, or has some below it.
func ToTrash(t *kvtx.Tx, dir *record.Inode, name string, child *record.Inode) (kept bool, err error) {
	isDir := child.Typ == record.TypeDirectory
	if t.Count[record.CPolicies] == 0 || child.Sealed || isDir && (child.Entries == 0 || moraine.IsReserved(name)) {
		return false, nil
	}
	b, err := tree.TrashOf(&t.View, dir)
	if err != nil || b == nil {
		return false, err
	}
	if isDir {
		if n, err := StepsBelow(t, child); n > 0 || err != nil {
			return false, err
		}
	}
	into, err := trashPlace(t, b)
	if err != nil {
		return false, err
	}
	if isDir {
		err := usage.FitsBelow(t, into.Id, child.Id)
		if kvtx.IsAnswer(err) {
			return false, nil // it would be too deep there
		}
		if err != nil {
			return false, err
		}
	}
	at, err := freeName(t, into, name, child)
	if err != nil {
		return false, err
	}
	Unlink(t, dir, name, child)
	Link(t, into, at, child)
	child.Changed(t.Now)
	tree.PutInode(t, child)
	return true, nil
}

// trashPlace returns the directory of a trash in which the files of its directory go, and makes it.
func trashPlace(t *kvtx.Tx, b *tree.Trash) (*record.Inode, error) {
	top, err := tree.Inode(t, b.Top.Id)
	if err != nil {
		return nil, err
	}
	at, _, err := subdirectory(t, top, moraine.TrashDir, top)
	if err != nil {
		return nil, err
	}
	hour := record.HourName(t.Now)
	at, made, err := subdirectory(t, at, hour, top)
	if err != nil {
		return nil, err
	}
	if made {
		if _, err := jobs.AddJob(t, jobs.JobSpec{Kind: wire.JobKind_JOB_KIND_EMPTY_TRASH, Subject: record.Clip(top.Name+"/"+moraine.TrashDir+"/"+hour, moraine.MaxNameLen),
			Target: uint64(at.Id), After: t.ClusterTime() + b.Millis + hourMillis}); err != nil {
			return nil, err
		}
	}
	for i := len(b.Below) - 1; i >= 0; i-- {
		if at, _, err = subdirectory(t, at, b.Below[i].Name, b.Below[i]); err != nil {
			return nil, err
		}
	}
	return at, nil
}

// subdirectory returns the directory of a name in dir. If there is none it makes one with the mode
// and owner of like.
func subdirectory(t *kvtx.Tx, dir *record.Inode, name string, like *record.Inode) (sub *record.Inode, made bool, err error) {
	e, ok, err := tree.Lookup(&t.View, dir.Id, name)
	if err != nil {
		return nil, false, err
	}
	if ok && e.Typ == record.TypeDirectory {
		// A tree that was moved here may still be delegated. Nothing waits for its session.
		if was, err := tree.Ancestor(&t.View, e.Inode); err != nil || was.Delegate == 0 {
			if err == nil {
				sub, err = tree.Inode(t, e.Inode)
			}
			return sub, false, err
		}
	}
	if ok {
		if name, err = freeName(t, dir, name, like); err != nil {
			return nil, false, err
		}
	}
	n := record.Inode{Typ: record.TypeDirectory, Mode: like.Mode, Uid: like.Uid, Gid: like.Gid, Nlink: 2, Tenant: dir.Tenant, Parent: dir.Id, Name: name}
	if sub, err = MakeInode(t, n); err == nil {
		Link(t, dir, name, sub)
	}
	return sub, true, err
}

// freeName returns name if nothing in dir has it. Otherwise it returns name with the number of the
// inode and, since one file may be removed, restored and removed again, a count.
func freeName(t *kvtx.Tx, dir *record.Inode, name string, child *record.Inode) (string, error) {
	for at, n := name, 1; ; n++ {
		if _, taken, err := tree.Lookup(&t.View, dir.Id, at); err != nil || !taken {
			return at, err
		}
		suffix := "." + child.Id.String() + strings.Repeat("+", n-1)
		at = record.Clip(name, moraine.MaxNameLen-len(suffix)) + suffix
	}
}

// RunEmptyTrash removes the trash of an hour, unless somebody has moved it away to keep it. Then the
// job has ended.
func RunEmptyTrash(t *kvtx.Tx, j *record.Job) error {
	dir, err := tree.Inode(t, moraine.InodeID(j.Target))
	if err == nil && dir.Nlink > 0 {
		err = dropHour(t, dir)
	}
	if err != nil && kvtx.MoraineKind(err) != moraine.NotFound {
		return err
	}
	return jobs.EndJob(t, j, wire.JobState_JOB_STATE_DONE, "")
}

func dropHour(t *kvtx.Tx, dir *record.Inode) error {
	above, err := tree.Inode(t, dir.Parent)
	if err != nil || above.Name != moraine.TrashDir {
		return err
	}
	name := dir.Name
	Unlink(t, above, name, dir)
	return DropTree(t, dir, name)
}
