package record

import (
	"encoding/binary"

	"github.com/morainefs/moraine"
)

// Every key begins with the partition (16 bits, big endian) and a table byte;
// numbers in keys are big endian and of fixed width, so that order of bytes is
// order of numbers. Partition 0xffff is never a partition of the namespace: a
// store may keep its own records there. Table bytes are append only, and free
// ones below the last of their group were never used; they are listed in
// docs/formats/metadata-keys.md.
const (
	TabMeta         = 0x01 // singletons, by metaXxx
	TabSigningKey   = 0x02 // key id -> signing key
	TabTenant       = 0x03 // tenant -> name
	TabTenantName   = 0x04 // name -> tenant
	TabMember       = 0x05 // metadata server's id -> its directory
	TabSession      = 0x08 // session -> record
	TabSessionNonce = 0x09 // nonce -> session
	TabAnswer       = 0x0a // session | number -> encoded response
	TabSessionGrant = 0x0b // session | last stripe
	TabSessionInode = 0x0c // session | inode: unlinked files that the session owns
	TabSessionStep  = 0x0d // session | run | attempt | step | rank: ranks begun and not sealed
	TabEndedSession = 0x0e // session: what it owned is still being cleaned up
	TabSessionHold  = 0x0f // session | directory: exclusive leases that the session has

	TabInode    = 0x10 // inode -> record
	TabDentry   = 0x11 // parent inode | name -> inode, type
	TabDetached = 0x12 // job | inode: directories that a removal has detached
	TabName     = 0x13 // inode | parent inode | name: the names of what has had two
	TabXattr    = 0x14 // inode | name -> value of an extended attribute
	TabHold     = 0x15 // directory -> session that has the exclusive lease on it
	TabRange    = 0x16 // session | last number -> inode numbers that the session may make files of

	TabRef   = 0x18 // content | end of the range in the file -> table, base
	TabTable = 0x19 // table -> header
	TabExt   = 0x1a // table | end of the range in the table -> extent
	TabDead  = 0x1b // content: what is left of it dies by a job

	TabGrant      = 0x20 // last stripe -> live grant
	TabEndedGrant = 0x21 // last stripe -> ended grant
	TabStripe     = 0x22 // stripe -> record
	TabMemory     = 0x23 // device | stripe | index: chunks that are in memory alone
	TabUnsafe     = 0x24 // inode -> how far the stripes of a file below level nvme are known to be at it

	TabHost         = 0x28 // node id -> record
	TabDevice       = 0x29 // device -> record
	TabDeviceUUID   = 0x2a // uuid -> device
	TabDeviceChunk  = 0x2b // device | stripe | index
	TabTombstone    = 0x2c // device | dead since | stripe | index -> below, bytes
	TabRepair       = 0x2d // spare | stripe: what waits for repair, least redundancy first
	TabRepairStripe = 0x2e // stripe -> item of the repair queue
	TabIntent       = 0x2f // stripe | index -> live intent
	TabEndedIntent  = 0x31 // device | stripe | index -> ended intent
	TabTombstoneAt  = 0x34 // device | stripe | index -> when its tombstone was left, and whether in tabKept
	TabKept         = 0x35 // device | dead since | stripe | index -> the same, of chunks that a backup may name
	TabKeptOn       = 0x36 // device -> how much of it is in tabKept

	TabJob      = 0x38 // job -> record
	TabJobReady = 0x39 // kind | not before | job: pending jobs
	TabJobLease = 0x3a // lease until | job: leased jobs
	TabJobEnded = 0x3b // updated | job: jobs that ended, oldest first
	TabSessJobs = 0x3c // session -> how many live jobs count among its own

	TabRun       = 0x40 // inode of the run -> record
	TabAttempt   = 0x42 // run | attempt -> record
	TabLaunch    = 0x43 // run | launch -> attempt
	TabStep      = 0x44 // run | attempt | step -> record
	TabPart      = 0x45 // run | attempt | step | rank -> part
	TabOpenStep  = 0x47 // run | attempt | step: steps neither committed nor ended
	TabRunAtt    = 0x48 // run | attempt | session: sessions that joined an attempt
	TabSessRun   = 0x49 // session | run | attempt: attempts that a session joined
	TabRunCommit = 0x4a // run | attempt | step, inverted -> level: committed steps, latest first
	TabRunJob    = 0x4c // run | scheduler's job -> its highest restart
	TabStepLease = 0x4d // run | attempt | step | session -> how often it leased the step to read it
	TabSessLease = 0x4e // session | run | attempt | step: the same, by session
	TabStepBlock = 0x4b // run | attempt | step | rank/1024 -> which ranks have sealed

	TabObject       = 0x50 // object -> record
	TabObjectKey    = 0x51 // bucket | 0 | key -> who owns it
	TabObjectSums   = 0x52 // object | block -> CRC32C of 1,024 pieces
	TabObjectIntent = 0x53 // job -> announced change of a key
	TabMove         = 0x54 // inode | kind -> live job
	TabUnsettled    = 0x55 // until | bucket | 0 | key: keys with a change under way whose end nobody saw
	TabTreeDir      = 0x56 // job | directory -> last name seen: what a MOVE_TREE has yet to list
	TabPolicy       = 0x57 // directory -> its own policy

	TabRemovedIndex = 0x59 // bucket | 0 | directory -> key of the index of a removed checkpoint that is still there
	TabBadObject    = 0x58 // object -> what is wrong with it in its bucket

	TabUsage = 0x60 // column | directory -> what is below it
	TabQuota = 0x61 // directory -> the most that may be below it

	TabHeight = 0x63 // directory -> how many levels of directories are below it, at most

	TabRevoked = 0x7c // what it names | name -> certificate that is not taken any more

	TabConcatRow = 0x70 // job | row -> ranges that a CONCAT has yet to lay

	TabCloneDir = 0x62 // job | directory -> its like, and the last name cloned: what a CLONE_TREE has yet to go through
)

// Singletons under tabMeta.
const (
	MetaCluster     = 0x01 // identity, incarnation, feature level
	MetaCounters    = 0x02 // all counters
	MetaSum         = 0x03 // running sum of all other pairs; not part of the sum
	MetaFleet       = 0x04 // how many hosts and devices are registered
	MetaUsage       = 0x20 // which column of counts is in force, and the recount under way
	MetaRouting     = 0x30 // the routing epoch; none: 1
	MetaRebalance   = 0x31 // settings of rebalancing; none: the defaults
	MetaEndedCursor = 0x06 // where the next report looks on among the ended grants; none: at the first
	MetaMark        = 0x05 // the running sum as it was before the entry of the last Tick that asked
)

func Be64(b []byte, v uint64) []byte { return binary.BigEndian.AppendUint64(b, v) }

func Be32(b []byte, v uint32) []byte { return binary.BigEndian.AppendUint32(b, v) }

func ChunkKey(b []byte, c moraine.ChunkID) []byte { return append(Be64(b, uint64(c.Stripe)), c.Index) }

// Checkpoints.

// StepID is the key of a checkpoint.
type StepID struct {
	Run     moraine.RunID
	Attempt uint32
	Step    uint64
}

func (s StepID) Append(b []byte) []byte {
	return Be64(Be32(Be64(b, uint64(s.Run)), s.Attempt), s.Step)
}
