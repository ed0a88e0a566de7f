package client

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
)

// Snapshot starts a job that makes a snapshot of a directory and all below it, named
// dir/.snapshots/name; no byte moves. Nothing in it can change: RemoveSnapshot removes it as a
// whole. It appears when it is whole. Each file in it is as it was at some moment of the job.
//
// InvalidArgument: the name is empty, ".", "..", has a slash, or more than 255 bytes. Exists: an
// entry of dir/.snapshots has the name, so also if the call is repeated after the job has ended.
// Repeated before that, it starts a second job, and the one that ends later fails.
func (j Jobs) Snapshot(ctx context.Context, dir, name string) (Job, error) {
	if err := checkSnapshotName("client.Snapshot", name); err != nil {
		return Job{}, err
	}
	all := path.Join(dir, moraine.SnapshotsDir)
	_, err := j.c.Mkdir(ctx, all, 0o755)
	if err != nil && !errors.Is(err, moraine.Exists) {
		return Job{}, err
	}
	job, err := j.cloneTree(ctx, dir, path.Join(all, name), true)
	return job, retry.Wrap("client.Snapshot", dir, err)
}

// RemoveSnapshot removes the snapshot dir/.snapshots/name. It disappears at once; the service frees
// its content in the background. InvalidArgument: the name is none of a snapshot (Jobs.Snapshot).
// NotFound: there is none of that name.
func (j Jobs) RemoveSnapshot(ctx context.Context, dir, name string) error {
	if err := checkSnapshotName("client.RemoveSnapshot", name); err != nil {
		return err
	}
	p := path.Join(dir, moraine.SnapshotsDir, name)
	if _, err := j.c.Lstat(ctx, p); err != nil {
		return err
	}
	return j.c.RemoveAll(ctx, p)
}

// checkSnapshotName fails unless name is one name of a directory entry, so that it leads to nothing
// but an entry of the directory of snapshots.
func checkSnapshotName(op, name string) error {
	why := ""
	switch {
	case name == "":
		why = "the name of the snapshot is empty"
	case name == "." || name == "..":
		why = "it is a path to another directory"
	case strings.Contains(name, "/"):
		why = "it has a slash"
	case len(name) > moraine.MaxNameLen:
		why = fmt.Sprintf("it has %d bytes, %d at most", len(name), moraine.MaxNameLen)
	default:
		return nil
	}
	return &moraine.Error{Op: op, Ref: name, Kind: moraine.InvalidArgument, Err: fmt.Errorf("%s: write the snapshot's name alone, as snapshot ls prints it", why)}
}
