package kvtx

import (
	"encoding/binary"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// keys builds the keys of one partition. Every key of the state comes from here;
// docs/formats/metadata-keys.md lists the tables.
type keys struct{ P moraine.Partition }

// Key starts a key of a table and reserves room for n more bytes.
func (k keys) Key(table byte, n int) []byte {
	b := make([]byte, 3, 3+n)
	binary.BigEndian.PutUint16(b, uint16(k.P))
	b[2] = table
	return b
}

// U64 returns the key of a table with one number.
func (k keys) U64(table byte, a uint64) []byte {
	return record.Be64(k.Key(table, 8), a)
}

func (k keys) u64x2(table byte, a, b uint64) []byte {
	return record.Be64(record.Be64(k.Key(table, 16), a), b)
}

// Top is the top directory of the partition. For partition 0 this is the root.
func (k keys) Top() moraine.InodeID { return moraine.InodeID(moraine.MakeID(k.P, 1, 1)) }

// All returns the bounds of every key of the partition.
func (k keys) All() (lo, hi []byte) {
	lo = binary.BigEndian.AppendUint16(nil, uint16(k.P))
	return lo, PrefixEnd(lo)
}

// Table returns the prefix of all keys of a table.
func (k keys) Table(table byte) []byte { return k.Key(table, 0) }

// PrefixEnd returns the first key after all keys that begin with prefix, or nil if there is none.
func PrefixEnd(prefix []byte) []byte {
	end := append([]byte(nil), prefix...)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i] != 0xff {
			end[i]++
			return end[:i+1]
		}
	}
	return nil
}

// The methods below return one key each, named for its table. A plural name returns the prefix of
// several keys.
//
// Cluster.

func (k keys) Meta(name byte) []byte { return append(k.Key(record.TabMeta, 1), name) }

func (k keys) SigningKey(id uint64) []byte { return k.U64(record.TabSigningKey, id) }

func (k keys) Tenant(t moraine.Tenant) []byte {
	return record.Be32(k.Key(record.TabTenant, 4), uint32(t))
}

func (k keys) TenantName(name string) []byte {
	return append(k.Key(record.TabTenantName, len(name)), name...)
}

func (k keys) Member(id string) []byte { return append(k.Key(record.TabMember, len(id)), id...) }

// Sessions.

func (k keys) Session(s moraine.SessionID) []byte { return k.U64(record.TabSession, uint64(s)) }

func (k keys) SessionNonce(nonce []byte) []byte {
	return append(k.Key(record.TabSessionNonce, len(nonce)), nonce...)
}

func (k keys) Answers(s moraine.SessionID) []byte { return k.U64(record.TabAnswer, uint64(s)) }

func (k keys) Answer(s moraine.SessionID, number uint64) []byte {
	return k.u64x2(record.TabAnswer, uint64(s), number)
}

func (k keys) SessionGrants(s moraine.SessionID) []byte {
	return k.U64(record.TabSessionGrant, uint64(s))
}

func (k keys) SessionGrant(s moraine.SessionID, last moraine.StripeID) []byte {
	return k.u64x2(record.TabSessionGrant, uint64(s), uint64(last))
}

func (k keys) SessionInodes(s moraine.SessionID) []byte {
	return k.U64(record.TabSessionInode, uint64(s))
}

func (k keys) SessionInode(s moraine.SessionID, i moraine.InodeID) []byte {
	return k.u64x2(record.TabSessionInode, uint64(s), uint64(i))
}

func (k keys) EndedSession(s moraine.SessionID) []byte {
	return k.U64(record.TabEndedSession, uint64(s))
}

// Namespace.

func (k keys) Inode(i moraine.InodeID) []byte { return k.U64(record.TabInode, uint64(i)) }

func (k keys) Dentries(dir moraine.InodeID) []byte { return k.U64(record.TabDentry, uint64(dir)) }

func (k keys) Dentry(dir moraine.InodeID, name string) []byte {
	return append(record.Be64(k.Key(record.TabDentry, 8+len(name)), uint64(dir)), name...)
}

func (k keys) Names(i moraine.InodeID) []byte { return k.U64(record.TabName, uint64(i)) }

func (k keys) Name(i, parent moraine.InodeID, name string) []byte {
	return append(record.Be64(record.Be64(k.Key(record.TabName, 16+len(name)), uint64(i)), uint64(parent)), name...)
}

func (k keys) Xattrs(i moraine.InodeID) []byte { return k.U64(record.TabXattr, uint64(i)) }

func (k keys) Xattr(i moraine.InodeID, name string) []byte {
	return append(record.Be64(k.Key(record.TabXattr, 8+len(name)), uint64(i)), name...)
}

func (k keys) DetachedOf(j moraine.JobID) []byte { return k.U64(record.TabDetached, uint64(j)) }

func (k keys) Detached(j moraine.JobID, i moraine.InodeID) []byte {
	return k.u64x2(record.TabDetached, uint64(j), uint64(i))
}

// Exclusive leases.

func (k keys) Hold(dir moraine.InodeID) []byte { return k.U64(record.TabHold, uint64(dir)) }

func (k keys) SessionHolds(s moraine.SessionID) []byte {
	return k.U64(record.TabSessionHold, uint64(s))
}

func (k keys) SessionHold(s moraine.SessionID, dir moraine.InodeID) []byte {
	return k.u64x2(record.TabSessionHold, uint64(s), uint64(dir))
}

func (k keys) Ranges(s moraine.SessionID) []byte { return k.U64(record.TabRange, uint64(s)) }

func (k keys) Numbers(s moraine.SessionID, last moraine.InodeID) []byte {
	return k.u64x2(record.TabRange, uint64(s), uint64(last))
}

// Content. Ranges are keyed by their end: the first key after an offset is the range that covers or
// follows it.

func (k keys) Refs(content uint64) []byte { return k.U64(record.TabRef, content) }

func (k keys) Ref(content uint64, end int64) []byte {
	return k.u64x2(record.TabRef, content, uint64(end))
}

func (k keys) DeadContent(content uint64) []byte { return k.U64(record.TabDead, content) }

func (k keys) ExtTable(t moraine.TableID) []byte { return k.U64(record.TabTable, uint64(t)) }

func (k keys) Exts(t moraine.TableID) []byte { return k.U64(record.TabExt, uint64(t)) }

func (k keys) Ext(t moraine.TableID, end int64) []byte {
	return k.u64x2(record.TabExt, uint64(t), uint64(end))
}

func (k keys) Grant(last moraine.StripeID) []byte { return k.U64(record.TabGrant, uint64(last)) }

func (k keys) EndedGrant(last moraine.StripeID) []byte {
	return k.U64(record.TabEndedGrant, uint64(last))
}

func (k keys) Stripe(s moraine.StripeID) []byte { return k.U64(record.TabStripe, uint64(s)) }

// Devices.

func (k keys) Host(node string) []byte { return append(k.Key(record.TabHost, len(node)), node...) }

func (k keys) Device(d moraine.DeviceID) []byte {
	return record.Be32(k.Key(record.TabDevice, 4), uint32(d))
}

func (k keys) DeviceUUID(u moraine.UUID) []byte {
	return append(k.Key(record.TabDeviceUUID, 16), u[:]...)
}

// onDevice builds device | stripe | index in a table. Without stripe and index it returns a prefix.
func (k keys) onDevice(table byte, d moraine.DeviceID) []byte {
	return record.Be32(k.Key(table, 13), uint32(d))
}

func (k keys) DeviceChunks(d moraine.DeviceID) []byte { return k.onDevice(record.TabDeviceChunk, d) }

func (k keys) DeviceChunk(d moraine.DeviceID, c moraine.ChunkID) []byte {
	return record.ChunkKey(k.onDevice(record.TabDeviceChunk, d), c)
}

func (k keys) MemoryChunks(d moraine.DeviceID) []byte { return k.onDevice(record.TabMemory, d) }

func (k keys) MemoryChunk(d moraine.DeviceID, c moraine.ChunkID) []byte {
	return record.ChunkKey(k.onDevice(record.TabMemory, d), c)
}

func (k keys) UnsafeFile(i moraine.InodeID) []byte { return k.U64(record.TabUnsafe, uint64(i)) }

func (k keys) Tombstones(d moraine.DeviceID) []byte { return k.onDevice(record.TabTombstone, d) }

func (k keys) Kept(d moraine.DeviceID) []byte { return k.onDevice(record.TabKept, d) }

func (k keys) KeptOn(d moraine.DeviceID) []byte { return k.onDevice(record.TabKeptOn, d) }

// Tombstone returns the key of a chunk's tombstone in the table of kept tombstones or in the other
// one.
func (k keys) Tombstone(kept bool, d moraine.DeviceID, deadSince uint64, c moraine.ChunkID) []byte {
	tab := byte(record.TabTombstone)
	if kept {
		tab = record.TabKept
	}
	b := record.Be32(k.Key(tab, 21), uint32(d))
	return record.ChunkKey(record.Be64(b, deadSince), c)
}

func (k keys) TombstoneAt(d moraine.DeviceID, c moraine.ChunkID) []byte {
	return record.ChunkKey(k.onDevice(record.TabTombstoneAt, d), c)
}

// Repair.

func (k keys) Repair(spare uint8, s moraine.StripeID) []byte {
	return record.Be64(append(k.Key(record.TabRepair, 9), spare), uint64(s))
}

func (k keys) RepairStripe(s moraine.StripeID) []byte {
	return k.U64(record.TabRepairStripe, uint64(s))
}

func (k keys) Intents(s moraine.StripeID) []byte { return k.U64(record.TabIntent, uint64(s)) }

func (k keys) Intent(c moraine.ChunkID) []byte { return record.ChunkKey(k.Key(record.TabIntent, 9), c) }

func (k keys) EndedIntents(d moraine.DeviceID) []byte { return k.onDevice(record.TabEndedIntent, d) }

func (k keys) EndedIntent(d moraine.DeviceID, c moraine.ChunkID) []byte {
	return record.ChunkKey(k.onDevice(record.TabEndedIntent, d), c)
}

// Jobs.

func (k keys) Job(j moraine.JobID) []byte { return k.U64(record.TabJob, uint64(j)) }

func (k keys) JobsReady(kind uint8) []byte {
	return append(k.Key(record.TabJobReady, 17), kind)
}

func (k keys) JobReady(kind uint8, notBefore uint64, j moraine.JobID) []byte {
	return record.Be64(record.Be64(k.JobsReady(kind), notBefore), uint64(j))
}

func (k keys) JobLease(until uint64, j moraine.JobID) []byte {
	return k.u64x2(record.TabJobLease, until, uint64(j))
}

func (k keys) Height(dir moraine.InodeID) []byte { return k.U64(record.TabHeight, uint64(dir)) }

func (k keys) SessionJobs(s moraine.SessionID) []byte { return k.U64(record.TabSessJobs, uint64(s)) }

func (k keys) JobEnded(updated uint64, j moraine.JobID) []byte {
	return k.u64x2(record.TabJobEnded, updated, uint64(j))
}

// The object tier.

func (k keys) Object(o moraine.ObjectID) []byte { return k.U64(record.TabObject, uint64(o)) }

func (k keys) RemovedIndex(dir record.Place) []byte {
	return dir.Append(k.Key(record.TabRemovedIndex, dir.Len()))
}

func (k keys) BadObject(o moraine.ObjectID) []byte { return k.U64(record.TabBadObject, uint64(o)) }

func (k keys) ObjectKey(p record.Place) []byte { return p.Append(k.Key(record.TabObjectKey, p.Len())) }

func (k keys) ObjectSums(o moraine.ObjectID) []byte {
	return k.U64(record.TabObjectSums, uint64(o))
}

func (k keys) ObjectSum(o moraine.ObjectID, block uint64) []byte {
	return k.u64x2(record.TabObjectSums, uint64(o), block)
}

func (k keys) ObjectIntent(j moraine.JobID) []byte { return k.U64(record.TabObjectIntent, uint64(j)) }

func (k keys) Move(i moraine.InodeID, kind uint8) []byte {
	return append(record.Be64(k.Key(record.TabMove, 9), uint64(i)), kind)
}

func (k keys) Unsettled(until uint64, p record.Place) []byte {
	return p.Append(record.Be64(k.Key(record.TabUnsettled, 8+p.Len()), until))
}

func (k keys) TreeDirs(j moraine.JobID) []byte { return k.U64(record.TabTreeDir, uint64(j)) }

func (k keys) TreeDir(j moraine.JobID, i moraine.InodeID) []byte {
	return k.u64x2(record.TabTreeDir, uint64(j), uint64(i))
}

func (k keys) UsageColumn(column uint8) []byte { return append(k.Key(record.TabUsage, 1), column) }

func (k keys) Usage(column uint8, dir moraine.InodeID) []byte {
	return record.Be64(append(k.Key(record.TabUsage, 9), column), uint64(dir))
}

func (k keys) CloneDirs(j moraine.JobID) []byte { return k.U64(record.TabCloneDir, uint64(j)) }

func (k keys) CloneDir(j moraine.JobID, i moraine.InodeID) []byte {
	return k.u64x2(record.TabCloneDir, uint64(j), uint64(i))
}

func (k keys) ConcatRows(j moraine.JobID) []byte { return k.U64(record.TabConcatRow, uint64(j)) }

func (k keys) ConcatRow(j moraine.JobID, row uint64) []byte {
	return k.u64x2(record.TabConcatRow, uint64(j), row)
}

func (k keys) Quota(dir moraine.InodeID) []byte { return k.U64(record.TabQuota, uint64(dir)) }

func (k keys) Policy(dir moraine.InodeID) []byte { return k.U64(record.TabPolicy, uint64(dir)) }

func (k keys) Run(r moraine.RunID) []byte { return k.U64(record.TabRun, uint64(r)) }

func (k keys) Attempt(r moraine.RunID, attempt uint32) []byte {
	return record.Be32(record.Be64(k.Key(record.TabAttempt, 12), uint64(r)), attempt)
}

func (k keys) Launch(r moraine.RunID, launch string) []byte {
	return append(record.Be64(k.Key(record.TabLaunch, 8+len(launch)), uint64(r)), launch...)
}

func (k keys) RunJob(r moraine.RunID, job string) []byte {
	return append(record.Be64(k.Key(record.TabRunJob, 8+len(job)), uint64(r)), job...)
}

func (k keys) Steps(r moraine.RunID) []byte { return k.U64(record.TabStep, uint64(r)) }

func (k keys) Step(s record.StepID) []byte { return s.Append(k.Key(record.TabStep, 20)) }

func (k keys) Parts(s record.StepID) []byte { return s.Append(k.Key(record.TabPart, 24)) }

func (k keys) Part(s record.StepID, rank uint32) []byte { return record.Be32(k.Parts(s), rank) }

func (k keys) OpenStep(s record.StepID) []byte { return s.Append(k.Key(record.TabOpenStep, 20)) }

func (k keys) RunCommits(r moraine.RunID) []byte { return k.U64(record.TabRunCommit, uint64(r)) }

func (k keys) RunCommit(s record.StepID) []byte {
	s.Step = ^s.Step // so that a scan finds the latest step first
	return s.Append(k.Key(record.TabRunCommit, 20))
}

func (k keys) StepBlocks(s record.StepID) []byte { return s.Append(k.Key(record.TabStepBlock, 24)) }

func (k keys) StepBlock(s record.StepID, block uint32) []byte {
	return record.Be32(k.StepBlocks(s), block)
}

func (k keys) SessionSteps(s moraine.SessionID) []byte {
	return k.U64(record.TabSessionStep, uint64(s))
}

func (k keys) SessionStep(s moraine.SessionID, id record.StepID, rank uint32) []byte {
	return record.Be32(id.Append(record.Be64(k.Key(record.TabSessionStep, 32), uint64(s))), rank)
}

func (k keys) AttemptSessions(r moraine.RunID, attempt uint32) []byte {
	return record.Be32(record.Be64(k.Key(record.TabRunAtt, 20), uint64(r)), attempt)
}

func (k keys) AttemptSession(r moraine.RunID, attempt uint32, s moraine.SessionID) []byte {
	return record.Be64(k.AttemptSessions(r, attempt), uint64(s))
}

func (k keys) SessionAttempts(s moraine.SessionID) []byte { return k.U64(record.TabSessRun, uint64(s)) }

func (k keys) SessionAttempt(s moraine.SessionID, r moraine.RunID, attempt uint32) []byte {
	return record.Be32(record.Be64(record.Be64(k.Key(record.TabSessRun, 20), uint64(s)), uint64(r)), attempt)
}

// Revocation returns the key of a revocation. It fails with InvalidArgument unless w names exactly
// one thing.
func (k keys) Revocation(w *wire.Revocation) ([]byte, error) {
	bad := func(text string) ([]byte, error) {
		return nil, Fail(moraine.InvalidArgument, "revoke certificate", w.GetNode(), "%s", text)
	}
	switch {
	case len(w.GetKey()) > 0 && w.GetSerial() != "":
		return bad("name the key or the serial number, not both")
	case len(w.GetNode()) > 128 || len(w.GetRole()) > 32 || len(w.GetSerial()) > 64:
		return bad("a name that is too long")
	case len(w.GetKey()) > 0:
		if len(w.GetKey()) != 32 {
			return bad("a key is named by 32 bytes")
		}
		return append(append(k.Key(record.TabRevoked, 33), record.RevokedKey), w.GetKey()...), nil
	case w.GetSerial() != "":
		return append(append(k.Key(record.TabRevoked, 65), record.RevokedSerial), w.GetSerial()...), nil
	case w.GetNode() != "":
		b := append(append(k.Key(record.TabRevoked, 162), record.RevokedNode), w.GetNode()...)
		return append(append(b, 0), w.GetRole()...), nil
	}
	return bad("name a key, a serial number or a node")
}

// Keys of leases.

func (k keys) StepLeases(s record.StepID) []byte { return s.Append(k.Key(record.TabStepLease, 28)) }

func (k keys) StepLease(s record.StepID, reader moraine.SessionID) []byte {
	return record.Be64(k.StepLeases(s), uint64(reader))
}

func (k keys) SessionLeases(reader moraine.SessionID) []byte {
	return k.U64(record.TabSessLease, uint64(reader))
}

func (k keys) SessionLease(reader moraine.SessionID, s record.StepID) []byte {
	return s.Append(record.Be64(k.Key(record.TabSessLease, 28), uint64(reader)))
}
