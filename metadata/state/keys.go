package state

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
	tabMeta         = 0x01 // singletons, by metaXxx
	tabSigningKey   = 0x02 // key id -> signing key
	tabTenant       = 0x03 // tenant -> name
	tabTenantName   = 0x04 // name -> tenant
	tabMember       = 0x05 // metadata server's id -> its directory
	tabSession      = 0x08 // session -> record
	tabSessionNonce = 0x09 // nonce -> session
	tabAnswer       = 0x0a // session | number -> encoded response
	tabSessionGrant = 0x0b // session | last stripe
	tabSessionInode = 0x0c // session | inode: unlinked files that the session owns
	tabSessionStep  = 0x0d // session | run | attempt | step | rank: ranks begun and not sealed
	tabEndedSession = 0x0e // session: what it owned is still being cleaned up
	tabSessionHold  = 0x0f // session | directory: exclusive leases that the session has

	tabInode    = 0x10 // inode -> record
	tabDentry   = 0x11 // parent inode | name -> inode, type
	tabDetached = 0x12 // job | inode: directories that a removal has detached
	tabName     = 0x13 // inode | parent inode | name: the names of what has had two
	tabXattr    = 0x14 // inode | name -> value of an extended attribute
	tabHold     = 0x15 // directory -> session that has the exclusive lease on it
	tabRange    = 0x16 // session | last number -> inode numbers that the session may make files of

	tabRef   = 0x18 // content | end of the range in the file -> table, base
	tabTable = 0x19 // table -> header
	tabExt   = 0x1a // table | end of the range in the table -> extent
	tabDead  = 0x1b // content: what is left of it dies by a job

	tabGrant      = 0x20 // last stripe -> live grant
	tabEndedGrant = 0x21 // last stripe -> ended grant
	tabStripe     = 0x22 // stripe -> record
	tabMemory     = 0x23 // device | stripe | index: chunks that are in memory alone
	tabUnsafe     = 0x24 // inode -> how far the stripes of a file below level nvme are known to be at it

	tabHost         = 0x28 // node id -> record
	tabDevice       = 0x29 // device -> record
	tabDeviceUUID   = 0x2a // uuid -> device
	tabDeviceChunk  = 0x2b // device | stripe | index
	tabTombstone    = 0x2c // device | dead since | stripe | index -> below, bytes
	tabRepair       = 0x2d // spare | stripe: what waits for repair, least redundancy first
	tabRepairStripe = 0x2e // stripe -> item of the repair queue
	tabIntent       = 0x2f // stripe | index -> live intent
	tabEndedIntent  = 0x31 // device | stripe | index -> ended intent
	tabTombstoneAt  = 0x34 // device | stripe | index -> when its tombstone was left, and whether in tabKept
	tabKept         = 0x35 // device | dead since | stripe | index -> the same, of chunks that a backup may name
	tabKeptOn       = 0x36 // device -> how much of it is in tabKept

	tabJob      = 0x38 // job -> record
	tabJobReady = 0x39 // kind | not before | job: pending jobs
	tabJobLease = 0x3a // lease until | job: leased jobs
	tabJobEnded = 0x3b // updated | job: jobs that ended, oldest first
	tabSessJobs = 0x3c // session -> how many live jobs count among its own

	tabRun       = 0x40 // inode of the run -> record
	tabAttempt   = 0x42 // run | attempt -> record
	tabLaunch    = 0x43 // run | launch -> attempt
	tabStep      = 0x44 // run | attempt | step -> record
	tabPart      = 0x45 // run | attempt | step | rank -> part
	tabOpenStep  = 0x47 // run | attempt | step: steps neither committed nor ended
	tabRunAtt    = 0x48 // run | attempt | session: sessions that joined an attempt
	tabSessRun   = 0x49 // session | run | attempt: attempts that a session joined
	tabRunCommit = 0x4a // run | attempt | step, inverted -> level: committed steps, latest first
	tabRunJob    = 0x4c // run | scheduler's job -> its highest restart
	tabStepLease = 0x4d // run | attempt | step | session -> how often it leased the step to read it
	tabSessLease = 0x4e // session | run | attempt | step: the same, by session
	tabStepBlock = 0x4b // run | attempt | step | rank/1024 -> which ranks have sealed

	tabObject       = 0x50 // object -> record
	tabObjectKey    = 0x51 // bucket | 0 | key -> who owns it
	tabObjectSums   = 0x52 // object | block -> CRC32C of 1,024 pieces
	tabObjectIntent = 0x53 // job -> announced change of a key
	tabMove         = 0x54 // inode | kind -> live job
	tabUnsettled    = 0x55 // until | bucket | 0 | key: keys with a change under way whose end nobody saw
	tabTreeDir      = 0x56 // job | directory -> last name seen: what a MOVE_TREE has yet to list
	tabPolicy       = 0x57 // directory -> its own policy

	tabRemovedIndex = 0x59 // bucket | 0 | directory -> key of the index of a removed checkpoint that is still there
	tabBadObject    = 0x58 // object -> what is wrong with it in its bucket

	tabUsage = 0x60 // column | directory -> what is below it
	tabQuota = 0x61 // directory -> the most that may be below it

	tabHeight = 0x63 // directory -> how many levels of directories are below it, at most

	tabRevoked = 0x7c // what it names | name -> certificate that is not taken any more

	tabConcatRow = 0x70 // job | row -> ranges that a CONCAT has yet to lay

	tabCloneDir = 0x62 // job | directory -> its like, and the last name cloned: what a CLONE_TREE has yet to go through
)

// Singletons under tabMeta.
const (
	metaCluster     = 0x01 // identity, incarnation, feature level
	metaCounters    = 0x02 // all counters
	metaSum         = 0x03 // running sum of all other pairs; not part of the sum
	metaFleet       = 0x04 // how many hosts and devices are registered
	metaUsage       = 0x20 // which column of counts is in force, and the recount under way
	metaRouting     = 0x30 // the routing epoch; none: 1
	metaRebalance   = 0x31 // settings of rebalancing; none: the defaults
	metaEndedCursor = 0x06 // where the next report looks on among the ended grants; none: at the first
	metaMark        = 0x05 // the running sum as it was before the entry of the last Tick that asked
)

// keys makes the keys of one partition. Every key of the state comes from it.
type keys struct{ p moraine.Partition }

// key starts a key of a table, with room for n more bytes.
func (k keys) key(table byte, n int) []byte {
	b := make([]byte, 3, 3+n)
	binary.BigEndian.PutUint16(b, uint16(k.p))
	b[2] = table
	return b
}

func (k keys) u64(table byte, a uint64) []byte {
	return be64(k.key(table, 8), a)
}

func (k keys) u64x2(table byte, a, b uint64) []byte {
	return be64(be64(k.key(table, 16), a), b)
}

func be64(b []byte, v uint64) []byte { return binary.BigEndian.AppendUint64(b, v) }
func be32(b []byte, v uint32) []byte { return binary.BigEndian.AppendUint32(b, v) }

// top is the directory that holds all others of the partition: of partition 0 the
// root.
func (k keys) top() moraine.InodeID { return moraine.InodeID(moraine.MakeID(k.p, 1, 1)) }

// all returns the bounds of every key of the partition.
func (k keys) all() (lo, hi []byte) {
	lo = binary.BigEndian.AppendUint16(nil, uint16(k.p))
	return lo, prefixEnd(lo)
}

// table returns the prefix of all keys of a table.
func (k keys) table(table byte) []byte { return k.key(table, 0) }

// prefixEnd returns the first key past all that begin with prefix, nil if
// there is none.
func prefixEnd(prefix []byte) []byte {
	end := append([]byte(nil), prefix...)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i] != 0xff {
			end[i]++
			return end[:i+1]
		}
	}
	return nil
}

// Cluster.

func (k keys) meta(name byte) []byte          { return append(k.key(tabMeta, 1), name) }
func (k keys) signingKey(id uint64) []byte    { return k.u64(tabSigningKey, id) }
func (k keys) tenant(t moraine.Tenant) []byte { return be32(k.key(tabTenant, 4), uint32(t)) }
func (k keys) tenantName(name string) []byte {
	return append(k.key(tabTenantName, len(name)), name...)
}

func (k keys) member(id string) []byte { return append(k.key(tabMember, len(id)), id...) }

// Sessions.

func (k keys) session(s moraine.SessionID) []byte { return k.u64(tabSession, uint64(s)) }
func (k keys) sessionNonce(nonce []byte) []byte {
	return append(k.key(tabSessionNonce, len(nonce)), nonce...)
}
func (k keys) answers(s moraine.SessionID) []byte { return k.u64(tabAnswer, uint64(s)) }
func (k keys) answer(s moraine.SessionID, number uint64) []byte {
	return k.u64x2(tabAnswer, uint64(s), number)
}
func (k keys) sessionGrants(s moraine.SessionID) []byte { return k.u64(tabSessionGrant, uint64(s)) }
func (k keys) sessionGrant(s moraine.SessionID, last moraine.StripeID) []byte {
	return k.u64x2(tabSessionGrant, uint64(s), uint64(last))
}
func (k keys) sessionInodes(s moraine.SessionID) []byte { return k.u64(tabSessionInode, uint64(s)) }
func (k keys) sessionInode(s moraine.SessionID, i moraine.InodeID) []byte {
	return k.u64x2(tabSessionInode, uint64(s), uint64(i))
}
func (k keys) endedSession(s moraine.SessionID) []byte { return k.u64(tabEndedSession, uint64(s)) }

// Namespace.

func (k keys) inode(i moraine.InodeID) []byte      { return k.u64(tabInode, uint64(i)) }
func (k keys) dentries(dir moraine.InodeID) []byte { return k.u64(tabDentry, uint64(dir)) }
func (k keys) dentry(dir moraine.InodeID, name string) []byte {
	return append(be64(k.key(tabDentry, 8+len(name)), uint64(dir)), name...)
}
func (k keys) names(i moraine.InodeID) []byte { return k.u64(tabName, uint64(i)) }
func (k keys) name(i, parent moraine.InodeID, name string) []byte {
	return append(be64(be64(k.key(tabName, 16+len(name)), uint64(i)), uint64(parent)), name...)
}
func (k keys) xattrs(i moraine.InodeID) []byte { return k.u64(tabXattr, uint64(i)) }
func (k keys) xattr(i moraine.InodeID, name string) []byte {
	return append(be64(k.key(tabXattr, 8+len(name)), uint64(i)), name...)
}
func (k keys) detachedOf(j moraine.JobID) []byte { return k.u64(tabDetached, uint64(j)) }
func (k keys) detached(j moraine.JobID, i moraine.InodeID) []byte {
	return k.u64x2(tabDetached, uint64(j), uint64(i))
}

// Exclusive leases.

func (k keys) hold(dir moraine.InodeID) []byte         { return k.u64(tabHold, uint64(dir)) }
func (k keys) sessionHolds(s moraine.SessionID) []byte { return k.u64(tabSessionHold, uint64(s)) }
func (k keys) sessionHold(s moraine.SessionID, dir moraine.InodeID) []byte {
	return k.u64x2(tabSessionHold, uint64(s), uint64(dir))
}
func (k keys) ranges(s moraine.SessionID) []byte { return k.u64(tabRange, uint64(s)) }
func (k keys) numbers(s moraine.SessionID, last moraine.InodeID) []byte {
	return k.u64x2(tabRange, uint64(s), uint64(last))
}

// Content. Ranges are keyed by their end, so that the first key past an offset
// is the range that covers or follows it.

func (k keys) refs(content uint64) []byte { return k.u64(tabRef, content) }
func (k keys) ref(content uint64, end int64) []byte {
	return k.u64x2(tabRef, content, uint64(end))
}
func (k keys) deadContent(content uint64) []byte { return k.u64(tabDead, content) }
func (k keys) extTable(t moraine.TableID) []byte { return k.u64(tabTable, uint64(t)) }
func (k keys) exts(t moraine.TableID) []byte     { return k.u64(tabExt, uint64(t)) }
func (k keys) ext(t moraine.TableID, end int64) []byte {
	return k.u64x2(tabExt, uint64(t), uint64(end))
}

func (k keys) grant(last moraine.StripeID) []byte      { return k.u64(tabGrant, uint64(last)) }
func (k keys) endedGrant(last moraine.StripeID) []byte { return k.u64(tabEndedGrant, uint64(last)) }
func (k keys) stripe(s moraine.StripeID) []byte        { return k.u64(tabStripe, uint64(s)) }

// Devices.

func (k keys) host(node string) []byte { return append(k.key(tabHost, len(node)), node...) }
func (k keys) device(d moraine.DeviceID) []byte {
	return be32(k.key(tabDevice, 4), uint32(d))
}
func (k keys) deviceUUID(u moraine.UUID) []byte { return append(k.key(tabDeviceUUID, 16), u[:]...) }

// onDevice makes device | stripe | index in a table; without stripe and index
// it is a prefix.
func (k keys) onDevice(table byte, d moraine.DeviceID) []byte {
	return be32(k.key(table, 13), uint32(d))
}

func chunkKey(b []byte, c moraine.ChunkID) []byte { return append(be64(b, uint64(c.Stripe)), c.Index) }

func (k keys) deviceChunks(d moraine.DeviceID) []byte { return k.onDevice(tabDeviceChunk, d) }
func (k keys) deviceChunk(d moraine.DeviceID, c moraine.ChunkID) []byte {
	return chunkKey(k.onDevice(tabDeviceChunk, d), c)
}
func (k keys) memoryChunks(d moraine.DeviceID) []byte { return k.onDevice(tabMemory, d) }
func (k keys) memoryChunk(d moraine.DeviceID, c moraine.ChunkID) []byte {
	return chunkKey(k.onDevice(tabMemory, d), c)
}
func (k keys) unsafeFile(i moraine.InodeID) []byte { return k.u64(tabUnsafe, uint64(i)) }

func (k keys) tombstones(d moraine.DeviceID) []byte { return k.onDevice(tabTombstone, d) }
func (k keys) kept(d moraine.DeviceID) []byte       { return k.onDevice(tabKept, d) }
func (k keys) keptOn(d moraine.DeviceID) []byte     { return k.onDevice(tabKeptOn, d) }

// tombstone is where the tombstone of a chunk stands, by the table that it is in.
func (k keys) tombstone(kept bool, d moraine.DeviceID, deadSince uint64, c moraine.ChunkID) []byte {
	tab := byte(tabTombstone)
	if kept {
		tab = tabKept
	}
	b := be32(k.key(tab, 21), uint32(d))
	return chunkKey(be64(b, deadSince), c)
}
func (k keys) tombstoneAt(d moraine.DeviceID, c moraine.ChunkID) []byte {
	return chunkKey(k.onDevice(tabTombstoneAt, d), c)
}

// Repair.

func (k keys) repair(spare uint8, s moraine.StripeID) []byte {
	return be64(append(k.key(tabRepair, 9), spare), uint64(s))
}
func (k keys) repairStripe(s moraine.StripeID) []byte { return k.u64(tabRepairStripe, uint64(s)) }
func (k keys) intents(s moraine.StripeID) []byte      { return k.u64(tabIntent, uint64(s)) }
func (k keys) intent(c moraine.ChunkID) []byte        { return chunkKey(k.key(tabIntent, 9), c) }
func (k keys) endedIntents(d moraine.DeviceID) []byte { return k.onDevice(tabEndedIntent, d) }
func (k keys) endedIntent(d moraine.DeviceID, c moraine.ChunkID) []byte {
	return chunkKey(k.onDevice(tabEndedIntent, d), c)
}

// Jobs.

func (k keys) job(j moraine.JobID) []byte { return k.u64(tabJob, uint64(j)) }
func (k keys) jobsReady(kind uint8) []byte {
	return append(k.key(tabJobReady, 17), kind)
}
func (k keys) jobReady(kind uint8, notBefore uint64, j moraine.JobID) []byte {
	return be64(be64(k.jobsReady(kind), notBefore), uint64(j))
}
func (k keys) jobLease(until uint64, j moraine.JobID) []byte {
	return k.u64x2(tabJobLease, until, uint64(j))
}
func (k keys) height(dir moraine.InodeID) []byte { return k.u64(tabHeight, uint64(dir)) }

func (k keys) sessionJobs(s moraine.SessionID) []byte { return k.u64(tabSessJobs, uint64(s)) }

func (k keys) jobEnded(updated uint64, j moraine.JobID) []byte {
	return k.u64x2(tabJobEnded, updated, uint64(j))
}

// The object tier.

func (k keys) object(o moraine.ObjectID) []byte    { return k.u64(tabObject, uint64(o)) }
func (k keys) removedIndex(dir place) []byte       { return dir.append(k.key(tabRemovedIndex, dir.len())) }
func (k keys) badObject(o moraine.ObjectID) []byte { return k.u64(tabBadObject, uint64(o)) }
func (k keys) objectKey(p place) []byte            { return p.append(k.key(tabObjectKey, p.len())) }
func (k keys) objectSums(o moraine.ObjectID) []byte {
	return k.u64(tabObjectSums, uint64(o))
}
func (k keys) objectSum(o moraine.ObjectID, block uint64) []byte {
	return k.u64x2(tabObjectSums, uint64(o), block)
}
func (k keys) objectIntent(j moraine.JobID) []byte { return k.u64(tabObjectIntent, uint64(j)) }
func (k keys) moves(i moraine.InodeID) []byte      { return k.u64(tabMove, uint64(i)) }
func (k keys) move(i moraine.InodeID, kind uint8) []byte {
	return append(be64(k.key(tabMove, 9), uint64(i)), kind)
}
func (k keys) unsettled(until uint64, p place) []byte {
	return p.append(be64(k.key(tabUnsettled, 8+p.len()), until))
}
func (k keys) treeDirs(j moraine.JobID) []byte { return k.u64(tabTreeDir, uint64(j)) }
func (k keys) treeDir(j moraine.JobID, i moraine.InodeID) []byte {
	return k.u64x2(tabTreeDir, uint64(j), uint64(i))
}
func (k keys) usageColumn(column uint8) []byte { return append(k.key(tabUsage, 1), column) }
func (k keys) usage(column uint8, dir moraine.InodeID) []byte {
	return be64(append(k.key(tabUsage, 9), column), uint64(dir))
}
func (k keys) cloneDirs(j moraine.JobID) []byte { return k.u64(tabCloneDir, uint64(j)) }
func (k keys) cloneDir(j moraine.JobID, i moraine.InodeID) []byte {
	return k.u64x2(tabCloneDir, uint64(j), uint64(i))
}
func (k keys) concatRows(j moraine.JobID) []byte { return k.u64(tabConcatRow, uint64(j)) }
func (k keys) concatRow(j moraine.JobID, row uint64) []byte {
	return k.u64x2(tabConcatRow, uint64(j), row)
}
func (k keys) quota(dir moraine.InodeID) []byte  { return k.u64(tabQuota, uint64(dir)) }
func (k keys) policy(dir moraine.InodeID) []byte { return k.u64(tabPolicy, uint64(dir)) }

// Checkpoints.

// stepID is the key of a checkpoint.
type stepID struct {
	run     moraine.RunID
	attempt uint32
	step    uint64
}

func (s stepID) append(b []byte) []byte {
	return be64(be32(be64(b, uint64(s.run)), s.attempt), s.step)
}

func (k keys) run(r moraine.RunID) []byte      { return k.u64(tabRun, uint64(r)) }
func (k keys) attempts(r moraine.RunID) []byte { return k.u64(tabAttempt, uint64(r)) }
func (k keys) attempt(r moraine.RunID, attempt uint32) []byte {
	return be32(be64(k.key(tabAttempt, 12), uint64(r)), attempt)
}
func (k keys) launch(r moraine.RunID, launch string) []byte {
	return append(be64(k.key(tabLaunch, 8+len(launch)), uint64(r)), launch...)
}
func (k keys) runJob(r moraine.RunID, job string) []byte {
	return append(be64(k.key(tabRunJob, 8+len(job)), uint64(r)), job...)
}
func (k keys) steps(r moraine.RunID) []byte      { return k.u64(tabStep, uint64(r)) }
func (k keys) step(s stepID) []byte              { return s.append(k.key(tabStep, 20)) }
func (k keys) parts(s stepID) []byte             { return s.append(k.key(tabPart, 24)) }
func (k keys) part(s stepID, rank uint32) []byte { return be32(k.parts(s), rank) }
func (k keys) openStep(s stepID) []byte          { return s.append(k.key(tabOpenStep, 20)) }
func (k keys) runCommits(r moraine.RunID) []byte { return k.u64(tabRunCommit, uint64(r)) }
func (k keys) runCommit(s stepID) []byte {
	s.step = ^s.step // so that a scan meets the latest first
	return s.append(k.key(tabRunCommit, 20))
}
func (k keys) stepBlocks(s stepID) []byte { return s.append(k.key(tabStepBlock, 24)) }
func (k keys) stepBlock(s stepID, block uint32) []byte {
	return be32(k.stepBlocks(s), block)
}
func (k keys) sessionSteps(s moraine.SessionID) []byte { return k.u64(tabSessionStep, uint64(s)) }
func (k keys) sessionStep(s moraine.SessionID, id stepID, rank uint32) []byte {
	return be32(id.append(be64(k.key(tabSessionStep, 32), uint64(s))), rank)
}
func (k keys) attemptSessions(r moraine.RunID, attempt uint32) []byte {
	return be32(be64(k.key(tabRunAtt, 20), uint64(r)), attempt)
}
func (k keys) attemptSession(r moraine.RunID, attempt uint32, s moraine.SessionID) []byte {
	return be64(k.attemptSessions(r, attempt), uint64(s))
}
func (k keys) sessionAttempts(s moraine.SessionID) []byte { return k.u64(tabSessRun, uint64(s)) }
func (k keys) sessionAttempt(s moraine.SessionID, r moraine.RunID, attempt uint32) []byte {
	return be32(be64(be64(k.key(tabSessRun, 20), uint64(s)), uint64(r)), attempt)
}
