package record

import (
	"encoding/binary"

	"github.com/morainefs/moraine"
)

// Every key begins with the partition (16 bits, big endian) and a table byte. Numbers in keys are
// big endian with fixed width, so that byte order is numeric order. Partition 0xffff is never a
// partition of the namespace; a store may keep its own records there. Table bytes are only
// appended, and unused ones below the last of their group were never used.
// docs/formats/metadata-keys.md lists them.
const (
	TabMeta         = 0x01 // singletons, by MetaXxx
	TabSigningKey   = 0x02 // key id -> signing key
	TabTenant       = 0x03 // tenant -> name
	TabTenantName   = 0x04 // name -> tenant
	TabMember       = 0x05 // metadata server's id -> its directory
	TabSession      = 0x08 // session -> record
	TabSessionNonce = 0x09 // nonce -> session
	TabAnswer       = 0x0a // session | number -> encoded response
	TabSessionGrant = 0x0b // session | last stripe
	TabSessionInode = 0x0c // session | inode: files without a name that the session owns or keeps
	TabSessionStep  = 0x0d // session | run | attempt | step | rank: ranks that began and have not sealed
	TabEndedSession = 0x0e // session: an ended session whose belongings are still being removed
	TabSessLock     = 0x0f // session | inode: files on which the session has locks

	TabInode    = 0x10 // inode -> record
	TabDentry   = 0x11 // parent inode | name -> inode, type
	TabDetached = 0x12 // job | inode: directories that a removal has detached
	TabName     = 0x13 // inode | parent inode | name: the names of an inode that has had two
	TabXattr    = 0x14 // inode | name -> value of an extended attribute
	TabLock     = 0x15 // inode -> its advisory locks
	TabLinger   = 0x16 // number -> inode: files that lost their last name a moment ago

	TabRef   = 0x18 // content | end of the range in the file -> table, base
	TabTable = 0x19 // table -> header
	TabExt   = 0x1a // table | end of the range in the table -> extent
	TabDead  = 0x1b // content: a job removes the rest of it
	// number -> bytes of a small file, for the extents that name it
	TabInline = 0x1c

	TabGrant      = 0x20 // last stripe -> live grant
	TabEndedGrant = 0x21 // last stripe -> ended grant
	TabStripe     = 0x22 // stripe -> record
	TabMemory     = 0x23 // device | number of the commit | stripe | index: chunks that are only in memory
	TabUnsafe     = 0x24 // inode -> offset up to which a file below level nvme is known to be at nvme

	TabHost         = 0x28 // node id -> record
	TabDevice       = 0x29 // device -> record
	TabDeviceUUID   = 0x2a // uuid -> device
	TabDeviceChunk  = 0x2b // device | stripe | index
	TabTombstone    = 0x2c // device | dead since | stripe | index -> below, bytes
	TabRepair       = 0x2d // spare | stripe: stripes that wait for repair, least redundancy first
	TabRepairStripe = 0x2e // stripe -> item of the repair queue
	TabIntent       = 0x2f // stripe | index -> live intent
	TabEndedIntent  = 0x31 // device | stripe | index -> ended intent
	TabTombstoneAt  = 0x34 // device | stripe | index -> time of its tombstone, and whether it is in TabKept
	TabKept         = 0x35 // device | dead since | stripe | index -> the same, of chunks that a backup may name
	TabKeptOn       = 0x36 // device -> totals of the device in TabKept

	TabJob      = 0x38 // job -> record
	TabJobReady = 0x39 // kind | not before | job: pending jobs
	TabJobLease = 0x3a // lease until | job: leased jobs
	TabJobEnded = 0x3b // updated | job: ended jobs, oldest first
	TabSessJobs = 0x3c // session -> number of its live jobs

	TabRun       = 0x40 // inode of the run -> record
	TabAttempt   = 0x42 // run | attempt -> record
	TabLaunch    = 0x43 // run | launch -> attempt
	TabStep      = 0x44 // run | attempt | step -> record
	TabPart      = 0x45 // run | attempt | step | rank -> part
	TabClaim     = 0x46 // run | attempt | step | group of slices -> rank that stores it
	TabOpenStep  = 0x47 // run | attempt | step: steps that are neither committed nor aborted
	TabRunAtt    = 0x48 // run | attempt | session: sessions that joined an attempt
	TabSessRun   = 0x49 // session | run | attempt: attempts that a session joined
	TabRunCommit = 0x4a // run | attempt | step, inverted -> bytes, good, level: committed steps, latest first
	TabRunJob    = 0x4c // run | scheduler's job -> its highest restart
	TabStepLease = 0x4d // run | attempt | step | session -> how many read leases the session has on the step
	TabSessLease = 0x4e // session | run | attempt | step: the same, by session
	TabAdopt     = 0x4f // directory, or tracker file -> live job that adopts it
	TabStepBlock = 0x4b // run | attempt | step | rank/1024 -> which ranks have sealed

	TabObject       = 0x50 // object -> record
	TabObjectKey    = 0x51 // bucket | 0 | key -> its owner
	TabObjectSums   = 0x52 // object | block -> CRC32C of 1,024 pieces
	TabObjectIntent = 0x53 // job -> announced change of a key
	TabMove         = 0x54 // inode | kind -> live job
	TabUnsettled    = 0x55 // until | bucket | 0 | key: keys with a change whose end was not seen
	TabTreeDir      = 0x56 // job | directory -> last name seen: directories that a MOVE_TREE has not finished
	TabPolicy       = 0x57 // directory -> its own policy

	TabRemovedIndex = 0x59 // bucket | 0 | directory -> key of a removed checkpoint's index that still exists
	TabBadObject    = 0x58 // object -> what is wrong with it in its bucket

	TabUsage = 0x60 // column | directory -> usage below it
	TabQuota = 0x61 // directory -> limit on the usage below it

	TabHeight = 0x63 // directory -> bound on the levels of directories below it

	TabSessDir     = 0x64 // session | directory: directories delegated to the session
	TabSessNumbers = 0x65 // session -> how many directories are delegated to it, and its reserved inode numbers

	TabRevoked = 0x7c // kind | name -> revoked certificate

	TabConcatRow = 0x70 // job | row -> ranges that a CONCAT has not laid

	TabCloneDir = 0x62 // job | directory -> its copy and the last name cloned: directories that a CLONE_TREE has not finished
)

// Singletons under TabMeta.
const (
	MetaCluster     = 0x01 // identity, incarnation, feature level
	MetaCounters    = 0x02 // all counters
	MetaSum         = 0x03 // running sum of all other pairs; not part of the sum
	MetaFleet       = 0x04 // number of registered hosts and devices
	MetaUsage       = 0x20 // which column of counts is in force, and the recount in progress
	MetaRouting     = 0x30 // the routing epoch; none: 1
	MetaRebalance   = 0x31 // settings of rebalancing; none: the defaults
	MetaEndedCursor = 0x06 // place among the ended grants where the next report continues; none: the first
	MetaMark        = 0x05 // running sum before the entry of the last Tick that requested a mark
)

// Be64 appends 8 bytes, big endian.
func Be64(b []byte, v uint64) []byte { return binary.BigEndian.AppendUint64(b, v) }

// Be32 appends 4 bytes, big endian.
func Be32(b []byte, v uint32) []byte { return binary.BigEndian.AppendUint32(b, v) }

// ChunkKey appends a chunk's stripe and index.
func ChunkKey(b []byte, c moraine.ChunkID) []byte { return append(Be64(b, uint64(c.Stripe)), c.Index) }

// Checkpoints.

// StepID identifies a checkpoint.
type StepID struct {
	Run     moraine.RunID
	Attempt uint32
	Step    uint64
}

// Append appends the checkpoint's part of a key.
func (s StepID) Append(b []byte) []byte {
	return Be64(Be32(Be64(b, uint64(s.Run)), s.Attempt), s.Step)
}
