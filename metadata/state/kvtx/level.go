package kvtx

import "github.com/morainefs/moraine"

// What a command does may change only from a feature level on that the state has
// reached, so that servers of two builds apply a log alike. Each level is listed
// here once, and in docs/formats/log-entry.md; moraine.FeatureLevel is the last.
const (
	// LevelJobLeases: a job's lease is its holder's alone, and a request for jobs
	// shares its leases among the kinds.
	LevelJobLeases = 2

	// Level 3 is one release. Its changes have a constant each, and are in force
	// together.

	// LevelNewest: an upload that is settled late does not take the place of an
	// object of newer content, and a tree's job counts a file once that it meets
	// under two names.
	LevelNewest = 3
	// LevelUsage: what is below each directory is counted, and quotas hold (SetQuota,
	// Recount).
	LevelUsage = 3
	// LevelCloneTree: a clone of a tree is a job (CloneTree).
	LevelCloneTree = 3
	// LevelCaches: the record of a session says whether it may hold leases.
	LevelCaches = 3
	// LevelMembers: the state knows the directories of the metadata servers
	// (SetMember). A leader proposes none below it: an earlier build would stop.
	LevelMembers = 3

	// Level 4 is the release that is being made. Its changes have a constant each
	// too.

	// LevelHosts: hosts are announced to be away, and change state as a whole
	// (SetMaintenance, SetHostState; a leader proposes none below it), the leader
	// can take a device out for good, and a host that lost a device to another one
	// does not take it back.
	LevelHosts = 4
	// LevelWholeFiles: a piece of the removal of a tree is small enough that the
	// contents of small files die in it.
	LevelWholeFiles = 4
	// LevelRouting: a request by another routing epoch is Misrouted, and one that
	// would tie two partitions CrossPartition.
	LevelRouting = 4
	// LevelRetabled: the clone of a tree begins a file anew whose tables eviction or
	// staging changed under it.
	LevelRetabled = 4
	// LevelConcat: a concatenation of many ranges is a job (Concat).
	LevelConcat = 4
	// LevelHolds: a session may have the exclusive lease on a directory, and make files
	// of numbers that it was given (Hold, LapseHold, Create.inode, Commit.create).
	LevelHolds = 4
	// LevelJobOwners: the removals and clones of trees and the concatenations of a
	// session are counted, and bounded.
	LevelJobOwners = 4
	// LevelAnswers: the record of a session keeps one of its answers
	// (OpenSession.keeps_answer).
	LevelAnswers = 4
	// LevelQuotaNames: the error of a full quota names the directory in its text.
	LevelQuotaNames = 4
	// LevelMemory: chunks may be committed that are in memory alone; which they are, and
	// which files are below level nvme, has tables (SettleChunks, RaiseLevels).
	LevelMemory = 4
	// LevelRebalance: chunks of sound stripes are moved between devices (REBALANCE jobs,
	// SetRebalance).
	LevelRebalance = 4
	// LevelReadableCommits: a commit of a stripe that could not be read, since its devices
	// are out, is Stale.
	LevelReadableCommits = 4
	// LevelDrops: a person has chunks deleted that nothing explains (DropChunks).
	LevelDrops = 4
	// LevelReportedAt: a bad chunk that is told of by a certain record of its stripe is passed
	// over where there is another one (BadChunk.at_version).
	LevelReportedAt = 4
	// LevelSilentDrains: a device that is drained goes out while its host is silent, and is
	// drained on when it is back. A leader takes none out for silence below it: it would
	// not come back with its host.
	LevelSilentDrains = 4
	// LevelKeepsChunks: a device that is out is retired when no stripe has a chunk on it, or
	// by a person's word that what is left is given up (SetDeviceState.accept_loss).
	LevelKeepsChunks = 4
	// LevelRewrite: what files name of stripes that are mostly dead is put into new ones
	// (REWRITE jobs, CommitRewrite).
	LevelRewrite = 4
	// LevelUnrecoverable: a stripe of which too few chunks are left waits longer and longer for
	// the next try to rebuild it, and not any more once there are enough; and what is told
	// of chunks of another tenant than the caller's is passed over.
	LevelUnrecoverable = 4
)

// Speaks reports whether the state has reached a feature level.
func (t *Tx) Speaks(level uint64) (bool, error) {
	c, err := t.Cluster()
	return err == nil && c.FeatureLevel >= level, err
}

// MustSpeak fails below a feature level: a leader proposes nothing of it there.
func (t *Tx) MustSpeak(op string, level uint64) error {
	ok, err := t.Speaks(level)
	if err == nil && !ok {
		err = Fail(moraine.Unimplemented, op, "", "the cluster has a feature level below %d: finish the upgrade first (`moraine cluster upgrade --finish`)", level)
	}
	return err
}
