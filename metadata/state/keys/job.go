package keys

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
)

// jobKeys are the keys of jobs, and of the rows that jobs on trees and ranges have.
type jobKeys struct{ partition }

func (k jobKeys) Job(j moraine.JobID) []byte { return k.U64(record.TabJob, uint64(j)) }

func (k jobKeys) JobsReady(kind uint8) []byte {
	return append(k.Key(record.TabJobReady, 17), kind)
}

func (k jobKeys) JobReady(kind uint8, notBefore uint64, j moraine.JobID) []byte {
	return record.Be64(record.Be64(k.JobsReady(kind), notBefore), uint64(j))
}

func (k jobKeys) JobLease(until uint64, j moraine.JobID) []byte {
	return k.u64x2(record.TabJobLease, until, uint64(j))
}

func (k jobKeys) SessionJobs(s moraine.SessionID) []byte { return k.U64(record.TabSessJobs, uint64(s)) }

func (k jobKeys) JobEnded(updated uint64, j moraine.JobID) []byte {
	return k.u64x2(record.TabJobEnded, updated, uint64(j))
}

func (k jobKeys) TreeDirs(j moraine.JobID) []byte { return k.U64(record.TabTreeDir, uint64(j)) }

func (k jobKeys) TreeDir(j moraine.JobID, i moraine.InodeID) []byte {
	return k.u64x2(record.TabTreeDir, uint64(j), uint64(i))
}

func (k jobKeys) CloneDirs(j moraine.JobID) []byte { return k.U64(record.TabCloneDir, uint64(j)) }

func (k jobKeys) CloneDir(j moraine.JobID, i moraine.InodeID) []byte {
	return k.u64x2(record.TabCloneDir, uint64(j), uint64(i))
}

func (k jobKeys) ConcatRows(j moraine.JobID) []byte { return k.U64(record.TabConcatRow, uint64(j)) }

func (k jobKeys) ConcatRow(j moraine.JobID, row uint64) []byte {
	return k.u64x2(record.TabConcatRow, uint64(j), row)
}
