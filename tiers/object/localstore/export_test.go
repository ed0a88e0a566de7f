package localstore

import "github.com/morainefs/moraine/internal/vfs"

// SyncPoints are the places where the store makes something durable.
const SyncPoints = syncPoints

// SyncPoint is one of them.
type SyncPoint = syncPoint

// OpenWithout opens a store that leaves one of its syncs out.
func OpenWithout(files vfs.FS, dir string, opts Options, p SyncPoint) (*Store, error) {
	return open(files, dir, opts, p)
}

// MaxRecord limits a record.
const MaxRecord = maxRecord
