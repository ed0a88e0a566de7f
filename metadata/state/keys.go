package state

import (
	"encoding/binary"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
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
	return record.Be64(k.key(table, 8), a)
}

func (k keys) u64x2(table byte, a, b uint64) []byte {
	return record.Be64(record.Be64(k.key(table, 16), a), b)
}

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

func (k keys) meta(name byte) []byte { return append(k.key(record.TabMeta, 1), name) }

func (k keys) signingKey(id uint64) []byte { return k.u64(record.TabSigningKey, id) }

func (k keys) tenant(t moraine.Tenant) []byte {
	return record.Be32(k.key(record.TabTenant, 4), uint32(t))
}

func (k keys) tenantName(name string) []byte {
	return append(k.key(record.TabTenantName, len(name)), name...)
}

func (k keys) member(id string) []byte { return append(k.key(record.TabMember, len(id)), id...) }

// Sessions.

func (k keys) session(s moraine.SessionID) []byte { return k.u64(record.TabSession, uint64(s)) }

func (k keys) sessionNonce(nonce []byte) []byte {
	return append(k.key(record.TabSessionNonce, len(nonce)), nonce...)
}

func (k keys) answers(s moraine.SessionID) []byte { return k.u64(record.TabAnswer, uint64(s)) }

func (k keys) answer(s moraine.SessionID, number uint64) []byte {
	return k.u64x2(record.TabAnswer, uint64(s), number)
}

func (k keys) sessionGrants(s moraine.SessionID) []byte {
	return k.u64(record.TabSessionGrant, uint64(s))
}

func (k keys) sessionGrant(s moraine.SessionID, last moraine.StripeID) []byte {
	return k.u64x2(record.TabSessionGrant, uint64(s), uint64(last))
}

func (k keys) sessionInodes(s moraine.SessionID) []byte {
	return k.u64(record.TabSessionInode, uint64(s))
}

func (k keys) sessionInode(s moraine.SessionID, i moraine.InodeID) []byte {
	return k.u64x2(record.TabSessionInode, uint64(s), uint64(i))
}

func (k keys) endedSession(s moraine.SessionID) []byte {
	return k.u64(record.TabEndedSession, uint64(s))
}

// Namespace.

func (k keys) inode(i moraine.InodeID) []byte { return k.u64(record.TabInode, uint64(i)) }

func (k keys) dentries(dir moraine.InodeID) []byte { return k.u64(record.TabDentry, uint64(dir)) }

func (k keys) dentry(dir moraine.InodeID, name string) []byte {
	return append(record.Be64(k.key(record.TabDentry, 8+len(name)), uint64(dir)), name...)
}

func (k keys) names(i moraine.InodeID) []byte { return k.u64(record.TabName, uint64(i)) }

func (k keys) name(i, parent moraine.InodeID, name string) []byte {
	return append(record.Be64(record.Be64(k.key(record.TabName, 16+len(name)), uint64(i)), uint64(parent)), name...)
}

func (k keys) xattrs(i moraine.InodeID) []byte { return k.u64(record.TabXattr, uint64(i)) }

func (k keys) xattr(i moraine.InodeID, name string) []byte {
	return append(record.Be64(k.key(record.TabXattr, 8+len(name)), uint64(i)), name...)
}

func (k keys) detachedOf(j moraine.JobID) []byte { return k.u64(record.TabDetached, uint64(j)) }

func (k keys) detached(j moraine.JobID, i moraine.InodeID) []byte {
	return k.u64x2(record.TabDetached, uint64(j), uint64(i))
}

// Exclusive leases.

func (k keys) hold(dir moraine.InodeID) []byte { return k.u64(record.TabHold, uint64(dir)) }

func (k keys) sessionHolds(s moraine.SessionID) []byte {
	return k.u64(record.TabSessionHold, uint64(s))
}

func (k keys) sessionHold(s moraine.SessionID, dir moraine.InodeID) []byte {
	return k.u64x2(record.TabSessionHold, uint64(s), uint64(dir))
}

func (k keys) ranges(s moraine.SessionID) []byte { return k.u64(record.TabRange, uint64(s)) }

func (k keys) numbers(s moraine.SessionID, last moraine.InodeID) []byte {
	return k.u64x2(record.TabRange, uint64(s), uint64(last))
}

// Content. Ranges are keyed by their end, so that the first key past an offset
// is the range that covers or follows it.

func (k keys) refs(content uint64) []byte { return k.u64(record.TabRef, content) }

func (k keys) ref(content uint64, end int64) []byte {
	return k.u64x2(record.TabRef, content, uint64(end))
}

func (k keys) deadContent(content uint64) []byte { return k.u64(record.TabDead, content) }

func (k keys) extTable(t moraine.TableID) []byte { return k.u64(record.TabTable, uint64(t)) }

func (k keys) exts(t moraine.TableID) []byte { return k.u64(record.TabExt, uint64(t)) }

func (k keys) ext(t moraine.TableID, end int64) []byte {
	return k.u64x2(record.TabExt, uint64(t), uint64(end))
}

func (k keys) grant(last moraine.StripeID) []byte { return k.u64(record.TabGrant, uint64(last)) }

func (k keys) endedGrant(last moraine.StripeID) []byte {
	return k.u64(record.TabEndedGrant, uint64(last))
}

func (k keys) stripe(s moraine.StripeID) []byte { return k.u64(record.TabStripe, uint64(s)) }

// Devices.

func (k keys) host(node string) []byte { return append(k.key(record.TabHost, len(node)), node...) }

func (k keys) device(d moraine.DeviceID) []byte {
	return record.Be32(k.key(record.TabDevice, 4), uint32(d))
}

func (k keys) deviceUUID(u moraine.UUID) []byte {
	return append(k.key(record.TabDeviceUUID, 16), u[:]...)
}

// onDevice makes device | stripe | index in a table; without stripe and index
// it is a prefix.
func (k keys) onDevice(table byte, d moraine.DeviceID) []byte {
	return record.Be32(k.key(table, 13), uint32(d))
}

func (k keys) deviceChunks(d moraine.DeviceID) []byte { return k.onDevice(record.TabDeviceChunk, d) }

func (k keys) deviceChunk(d moraine.DeviceID, c moraine.ChunkID) []byte {
	return record.ChunkKey(k.onDevice(record.TabDeviceChunk, d), c)
}

func (k keys) memoryChunks(d moraine.DeviceID) []byte { return k.onDevice(record.TabMemory, d) }

func (k keys) memoryChunk(d moraine.DeviceID, c moraine.ChunkID) []byte {
	return record.ChunkKey(k.onDevice(record.TabMemory, d), c)
}

func (k keys) unsafeFile(i moraine.InodeID) []byte { return k.u64(record.TabUnsafe, uint64(i)) }

func (k keys) tombstones(d moraine.DeviceID) []byte { return k.onDevice(record.TabTombstone, d) }

func (k keys) kept(d moraine.DeviceID) []byte { return k.onDevice(record.TabKept, d) }

func (k keys) keptOn(d moraine.DeviceID) []byte { return k.onDevice(record.TabKeptOn, d) }

// tombstone is where the tombstone of a chunk stands, by the table that it is in.
func (k keys) tombstone(kept bool, d moraine.DeviceID, deadSince uint64, c moraine.ChunkID) []byte {
	tab := byte(record.TabTombstone)
	if kept {
		tab = record.TabKept
	}
	b := record.Be32(k.key(tab, 21), uint32(d))
	return record.ChunkKey(record.Be64(b, deadSince), c)
}

func (k keys) tombstoneAt(d moraine.DeviceID, c moraine.ChunkID) []byte {
	return record.ChunkKey(k.onDevice(record.TabTombstoneAt, d), c)
}

// Repair.

func (k keys) repair(spare uint8, s moraine.StripeID) []byte {
	return record.Be64(append(k.key(record.TabRepair, 9), spare), uint64(s))
}

func (k keys) repairStripe(s moraine.StripeID) []byte {
	return k.u64(record.TabRepairStripe, uint64(s))
}

func (k keys) intents(s moraine.StripeID) []byte { return k.u64(record.TabIntent, uint64(s)) }

func (k keys) intent(c moraine.ChunkID) []byte { return record.ChunkKey(k.key(record.TabIntent, 9), c) }

func (k keys) endedIntents(d moraine.DeviceID) []byte { return k.onDevice(record.TabEndedIntent, d) }

func (k keys) endedIntent(d moraine.DeviceID, c moraine.ChunkID) []byte {
	return record.ChunkKey(k.onDevice(record.TabEndedIntent, d), c)
}

// Jobs.

func (k keys) job(j moraine.JobID) []byte { return k.u64(record.TabJob, uint64(j)) }

func (k keys) jobsReady(kind uint8) []byte {
	return append(k.key(record.TabJobReady, 17), kind)
}

func (k keys) jobReady(kind uint8, notBefore uint64, j moraine.JobID) []byte {
	return record.Be64(record.Be64(k.jobsReady(kind), notBefore), uint64(j))
}

func (k keys) jobLease(until uint64, j moraine.JobID) []byte {
	return k.u64x2(record.TabJobLease, until, uint64(j))
}

func (k keys) height(dir moraine.InodeID) []byte { return k.u64(record.TabHeight, uint64(dir)) }

func (k keys) sessionJobs(s moraine.SessionID) []byte { return k.u64(record.TabSessJobs, uint64(s)) }

func (k keys) jobEnded(updated uint64, j moraine.JobID) []byte {
	return k.u64x2(record.TabJobEnded, updated, uint64(j))
}

// The object tier.

func (k keys) object(o moraine.ObjectID) []byte { return k.u64(record.TabObject, uint64(o)) }

func (k keys) removedIndex(dir record.Place) []byte {
	return dir.Append(k.key(record.TabRemovedIndex, dir.Len()))
}

func (k keys) badObject(o moraine.ObjectID) []byte { return k.u64(record.TabBadObject, uint64(o)) }

func (k keys) objectKey(p record.Place) []byte { return p.Append(k.key(record.TabObjectKey, p.Len())) }

func (k keys) objectSums(o moraine.ObjectID) []byte {
	return k.u64(record.TabObjectSums, uint64(o))
}

func (k keys) objectSum(o moraine.ObjectID, block uint64) []byte {
	return k.u64x2(record.TabObjectSums, uint64(o), block)
}

func (k keys) objectIntent(j moraine.JobID) []byte { return k.u64(record.TabObjectIntent, uint64(j)) }

func (k keys) moves(i moraine.InodeID) []byte { return k.u64(record.TabMove, uint64(i)) }

func (k keys) move(i moraine.InodeID, kind uint8) []byte {
	return append(record.Be64(k.key(record.TabMove, 9), uint64(i)), kind)
}

func (k keys) unsettled(until uint64, p record.Place) []byte {
	return p.Append(record.Be64(k.key(record.TabUnsettled, 8+p.Len()), until))
}

func (k keys) treeDirs(j moraine.JobID) []byte { return k.u64(record.TabTreeDir, uint64(j)) }

func (k keys) treeDir(j moraine.JobID, i moraine.InodeID) []byte {
	return k.u64x2(record.TabTreeDir, uint64(j), uint64(i))
}

func (k keys) usageColumn(column uint8) []byte { return append(k.key(record.TabUsage, 1), column) }

func (k keys) usage(column uint8, dir moraine.InodeID) []byte {
	return record.Be64(append(k.key(record.TabUsage, 9), column), uint64(dir))
}

func (k keys) cloneDirs(j moraine.JobID) []byte { return k.u64(record.TabCloneDir, uint64(j)) }

func (k keys) cloneDir(j moraine.JobID, i moraine.InodeID) []byte {
	return k.u64x2(record.TabCloneDir, uint64(j), uint64(i))
}

func (k keys) concatRows(j moraine.JobID) []byte { return k.u64(record.TabConcatRow, uint64(j)) }

func (k keys) concatRow(j moraine.JobID, row uint64) []byte {
	return k.u64x2(record.TabConcatRow, uint64(j), row)
}

func (k keys) quota(dir moraine.InodeID) []byte { return k.u64(record.TabQuota, uint64(dir)) }

func (k keys) policy(dir moraine.InodeID) []byte { return k.u64(record.TabPolicy, uint64(dir)) }

func (k keys) run(r moraine.RunID) []byte { return k.u64(record.TabRun, uint64(r)) }

func (k keys) attempts(r moraine.RunID) []byte { return k.u64(record.TabAttempt, uint64(r)) }

func (k keys) attempt(r moraine.RunID, attempt uint32) []byte {
	return record.Be32(record.Be64(k.key(record.TabAttempt, 12), uint64(r)), attempt)
}

func (k keys) launch(r moraine.RunID, launch string) []byte {
	return append(record.Be64(k.key(record.TabLaunch, 8+len(launch)), uint64(r)), launch...)
}

func (k keys) runJob(r moraine.RunID, job string) []byte {
	return append(record.Be64(k.key(record.TabRunJob, 8+len(job)), uint64(r)), job...)
}

func (k keys) steps(r moraine.RunID) []byte { return k.u64(record.TabStep, uint64(r)) }

func (k keys) step(s record.StepID) []byte { return s.Append(k.key(record.TabStep, 20)) }

func (k keys) parts(s record.StepID) []byte { return s.Append(k.key(record.TabPart, 24)) }

func (k keys) part(s record.StepID, rank uint32) []byte { return record.Be32(k.parts(s), rank) }

func (k keys) openStep(s record.StepID) []byte { return s.Append(k.key(record.TabOpenStep, 20)) }

func (k keys) runCommits(r moraine.RunID) []byte { return k.u64(record.TabRunCommit, uint64(r)) }

func (k keys) runCommit(s record.StepID) []byte {
	s.Step = ^s.Step // so that a scan meets the latest first
	return s.Append(k.key(record.TabRunCommit, 20))
}

func (k keys) stepBlocks(s record.StepID) []byte { return s.Append(k.key(record.TabStepBlock, 24)) }

func (k keys) stepBlock(s record.StepID, block uint32) []byte {
	return record.Be32(k.stepBlocks(s), block)
}

func (k keys) sessionSteps(s moraine.SessionID) []byte {
	return k.u64(record.TabSessionStep, uint64(s))
}

func (k keys) sessionStep(s moraine.SessionID, id record.StepID, rank uint32) []byte {
	return record.Be32(id.Append(record.Be64(k.key(record.TabSessionStep, 32), uint64(s))), rank)
}

func (k keys) attemptSessions(r moraine.RunID, attempt uint32) []byte {
	return record.Be32(record.Be64(k.key(record.TabRunAtt, 20), uint64(r)), attempt)
}

func (k keys) attemptSession(r moraine.RunID, attempt uint32, s moraine.SessionID) []byte {
	return record.Be64(k.attemptSessions(r, attempt), uint64(s))
}

func (k keys) sessionAttempts(s moraine.SessionID) []byte { return k.u64(record.TabSessRun, uint64(s)) }

func (k keys) sessionAttempt(s moraine.SessionID, r moraine.RunID, attempt uint32) []byte {
	return record.Be32(record.Be64(record.Be64(k.key(record.TabSessRun, 20), uint64(s)), uint64(r)), attempt)
}
