package kvtx

import "github.com/morainefs/moraine"

// A command may change its effect only from a feature level that the state has reached, so that
// servers of two builds apply a log identically. Each level is listed once here and in
// docs/formats/log-entry.md; moraine.FeatureLevel is the last.
const (
	// LevelJobLeases: only the holder of a job lease can use it, and a request for jobs divides its
	// leases among the kinds.
	LevelJobLeases = 2

	// Level 3 is one release. Each of its changes has a constant, and all take effect together.

	// LevelNewest: an upload that settles late does not replace an object of newer content. The job
	// of a tree counts a file once, even if it finds the file under two names.
	LevelNewest = 3
	// LevelUsage: the state counts what is below each directory and enforces quotas (SetQuota,
	// Recount).
	LevelUsage = 3
	// LevelCloneTree: cloning a tree is a job (CloneTree).
	LevelCloneTree = 3
	// LevelCaches: the session record says whether the session may have cache leases.
	LevelCaches = 3
	// LevelMembers: the state records the directories of the metadata servers (SetMember). Below
	// this level a leader proposes no SetMember, because an earlier build would stop.
	LevelMembers = 3

	// Level 4 is the release under development. Each of its changes has a constant too.

	// LevelHosts: an administrator can announce that a host will be away, or change the state of a
	// whole host (SetMaintenance, SetHostState; a leader proposes neither below this level). The
	// leader can take a device out permanently. A host that lost a device to another host does not
	// take it back.
	LevelHosts = 4
	// LevelWholeFiles: one piece of a tree removal is small enough to remove the contents of small
	// files too.
	LevelWholeFiles = 4
	// LevelRouting: a request with another routing epoch fails with Misrouted. One that would link
	// two partitions fails with CrossPartition.
	LevelRouting = 4
	// LevelRetabled: the clone of a tree restarts a file whose tables eviction or staging changed
	// during the copy.
	LevelRetabled = 4
	// LevelConcat: concatenating many ranges is a job (Concat).
	LevelConcat = 4
	// LevelHolds: a session may have the exclusive lease on a directory, and may create files under
	// inode numbers that it received (Hold, LapseHold, Create.inode, Commit.create).
	LevelHolds = 4
	// LevelJobOwners: the state counts and bounds each session's tree removals, tree clones and
	// concatenations.
	LevelJobOwners = 4
	// LevelAnswers: the session record keeps one of the session's answers
	// (OpenSession.keeps_answer).
	LevelAnswers = 4
	// LevelQuotaNames: the error of a full quota names the directory in its text.
	LevelQuotaNames = 4
	// LevelMemory: a client may commit chunks that are only in memory. Tables list these chunks and
	// the files below level nvme (SettleChunks, RaiseLevels).
	LevelMemory = 4
	// LevelRebalance: jobs move chunks of healthy stripes between devices (REBALANCE jobs,
	// SetRebalance).
	LevelRebalance = 4
	// LevelReadableCommits: a commit fails with Stale if its stripe is unreadable because too many
	// of its devices are out.
	LevelReadableCommits = 4
	// LevelDrops: an administrator can have unexplained chunks deleted (DropChunks).
	LevelDrops = 4
	// LevelReportedAt: the state ignores a report of a bad chunk if the report names an older
	// version of the stripe record (BadChunk.at_version).
	LevelReportedAt = 4
	// LevelSilentDrains: a draining device goes out while its host is silent and continues draining
	// when the host returns. Below this level a leader takes no draining device out for silence,
	// because it would not return with its host.
	LevelSilentDrains = 4
	// LevelKeepsChunks: a device that is out can be retired only when no stripe has a chunk on it,
	// or when an administrator accepts the loss (SetDeviceState.accept_loss).
	LevelKeepsChunks = 4
	// LevelRewrite: the live bytes of sparse stripes are written into new stripes (REWRITE jobs,
	// CommitRewrite).
	LevelRewrite = 4
	// LevelUnrecoverable: a stripe with too few chunks is retried at growing intervals, and at once
	// when it has enough again. Reports about chunks of another tenant than the caller's are
	// ignored.
	LevelUnrecoverable = 4
)

// Speaks reports whether the state has reached a feature level.
func (t *Tx) Speaks(level uint64) (bool, error) {
	c, err := t.Cluster()
	return err == nil && c.FeatureLevel >= level, err
}

// MustSpeak fails below a feature level. A leader proposes none of that level's commands there.
func (t *Tx) MustSpeak(op string, level uint64) error {
	ok, err := t.Speaks(level)
	if err == nil && !ok {
		err = Fail(moraine.Unimplemented, op, "", "the cluster has a feature level below %d: finish the upgrade first (`moraine cluster upgrade --finish`)", level)
	}
	return err
}
