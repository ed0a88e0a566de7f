package raftstore

import (
	"errors"
	"io"

	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
)

// InspectBackup extracts the state of a backup of size bytes into dir, which must be empty or
// missing. It calls fn with the state and the index of its last entry. The caller must remove dir.
// A damaged backup is Corrupt.
func InspectBackup(fsys vfs.FS, dir string, backup io.ReaderAt, size int64, fn func(r kvtx.Reader, applied uint64) error) (err error) {
	const op = "raftstore.InspectBackup"
	info, err := ReadBackup(backup, size)
	if err != nil {
		return err
	}
	stream, err := newStreamReader(backupStream(backup, info), info.Cluster)
	if err != nil {
		return wrap(op, dir, err)
	}
	if err := stream.extract(fsys, dir); err != nil {
		return wrap(op, dir, err)
	}
	db, err := openReadOnly(fsys, dir)
	if err != nil {
		return wrap(op, dir, err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	index, err := applied(db)
	if err != nil {
		return wrap(op, dir, err)
	}
	snap := db.NewSnapshot()
	defer func() { err = errors.Join(snap.Close(), err) }()
	return fn(snapReader{snap}, index)
}
