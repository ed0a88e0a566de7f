package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/check"
	"github.com/morainefs/moraine/metadata/state/ckpt"
	"github.com/morainefs/moraine/metadata/state/content"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/names"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/session"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/metadata/state/tier"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/metadata/state/usage"
	"github.com/morainefs/moraine/metadata/state/work"
	"github.com/morainefs/moraine/transport/wire"
)

// What other packages use, by the names that it has had here.

const MaxReportedObjects = record.MaxReportedObjects

type Sum = record.Sum

type Hold = record.Hold

const JobLeaseMillis = record.JobLeaseMillis

const MaxLeaseJobs = record.MaxLeaseJobs

const MaxJobTries = record.MaxJobTries

const MaxEndedJobs = record.MaxEndedJobs

const MaxObjectKey = record.MaxObjectKey

const MaxPieces = record.MaxPieces

type RebalanceSettings = record.RebalanceSettings

type Principal = record.Principal

func PrincipalOf(c *statepb.Caller) (p Principal) { return record.PrincipalOf(c) }

const ReasonSilent = record.ReasonSilent

type SessionInfo = record.SessionInfo

func (m *Machine) SilentSteps(r Reader, limit int) ([]*wire.AbortStep, error) {
	return ckpt.SilentSteps(m.View(r), limit)
}

const MaxAdopted = fleet.MaxAdopted

func (m *Machine) Unreported(r Reader) (n int, err error) { return fleet.Unreported(m.View(r)) }

func (m *Machine) Answered(r Reader, id moraine.SessionID, number uint64) (bool, error) {
	return session.Answered(m.View(r), id, number)
}

const MaxFileSize = tree.MaxFileSize

func (m *Machine) ObjectsChange(r Reader, checks []*wire.ObjectCheck) (out []*wire.ObjectCheck, err error) {
	return tier.ObjectsChange(m.View(r), checks)
}

func (m *Machine) CountBadObjects(r Reader, most int) (lost, bad int, err error) {
	return tier.CountBadObjects(m.View(r), most)
}

func (m *Machine) BadObjectsOf(r Reader, bucket string, after moraine.ObjectID, limit, most int) (out []*wire.ObjectToCheck, next moraine.ObjectID, err error) {
	return tier.BadObjectsOf(m.View(r), bucket, after, limit, most)
}

func (m *Machine) ObjectsOf(r Reader, bucket, after string, limit, most int) (out []*wire.Object, last string, more bool, err error) {
	return tier.ObjectsOf(m.View(r), bucket, after, limit, most)
}

func (m *Machine) ObjectBuckets(r Reader, most int) (names []string, err error) {
	return tier.ObjectBuckets(m.View(r), most)
}

func (m *Machine) Check(r Reader) ([]string, error) { return check.Check(m.View(r)) }

func (m *Machine) CheckWithin(r Reader, records uint64) (problems []string, whole bool, err error) {
	return check.CheckWithin(m.View(r), records)
}

const MaxCloneRanges = content.MaxCloneRanges

const MaxHostDevices = fleet.MaxHostDevices

const MaxAddresses = fleet.MaxAddresses

func (m *Machine) EndedGrants(r Reader, limit int) (n int, err error) {
	return fleet.EndedGrants(m.View(r), limit)
}

func (m *Machine) Hosts(r Reader) ([]*wire.Host, error) { return fleet.Hosts(m.View(r)) }

func (m *Machine) Devices(r Reader) ([]*wire.Device, error) { return fleet.Devices(m.View(r)) }

type UnknownChunks = fleet.UnknownChunks

func (m *Machine) Unknowns(r Reader) ([]UnknownChunks, error) { return fleet.Unknowns(m.View(r)) }

func (m *Machine) PendingJobs(r Reader, kinds []wire.JobKind, limit int) ([]*wire.Job, error) {
	return fleet.PendingJobs(m.View(r), kinds, limit)
}

func (m *Machine) LiveJobs(r Reader, kind wire.JobKind, limit int) (int, error) {
	return fleet.LiveJobs(m.View(r), kind, limit)
}

type RepairCursor = fleet.RepairCursor

func (m *Machine) RepairQueue(r Reader, from RepairCursor, limit int, back uint64) ([]*wire.RepairTask, RepairCursor, error) {
	return fleet.RepairQueue(m.View(r), from, limit, back)
}

func (m *Machine) StripesBySpare(r Reader) ([]uint64, error) { return fleet.StripesBySpare(m.View(r)) }

func (m *Machine) RepairRunning(r Reader) (uint64, error) { return fleet.RepairRunning(m.View(r)) }

func (m *Machine) RepairHopeful(r Reader) (uint64, error) { return fleet.RepairHopeful(m.View(r)) }

func (m *Machine) DefaultScheme(r Reader) (moraine.Scheme, error) {
	return fleet.DefaultScheme(m.View(r))
}

func (m *Machine) Intent(r Reader, chunk moraine.ChunkID) (*wire.Intent, error) {
	return fleet.Intent(m.View(r), chunk)
}

const MaxFlushSums = tier.MaxFlushSums

const MaxGrant = fleet.MaxGrant

const MaxSessionGrants = fleet.MaxSessionGrants

const MaxSessionBytes = fleet.MaxSessionBytes

const MaxSessionHolds = session.MaxSessionHolds

const MaxNumbers = session.MaxNumbers

const MaxSessionRanges = session.MaxSessionRanges

func (m *Machine) Holder(r Reader, dir moraine.InodeID) (record.Hold, error) {
	return session.Holder(m.View(r), dir)
}

func (m *Machine) Holds(r Reader, fn func(record.Hold)) error { return session.Holds(m.View(r), fn) }

func (m *Machine) NumberHold(r Reader, id moraine.InodeID, own moraine.SessionID) (record.Hold, error) {
	return session.NumberHold(m.View(r), id, own)
}

const MaxMaintenance = fleet.MaxMaintenance

func (m *Machine) HostsAway(r Reader, but string) ([]string, error) {
	return fleet.HostsAway(m.View(r), but)
}

const MaxIntents = fleet.MaxIntents

func (m *Machine) IsOfJob(r Reader, node string, id moraine.JobID, file moraine.InodeID) (bool, error) {
	return work.IsOfJob(m.View(r), node, id, file)
}

func (m *Machine) OwnedBy(r Reader, session moraine.SessionID, file moraine.InodeID) (bool, error) {
	return work.OwnedBy(m.View(r), session, file)
}

const MaxSessionJobs = jobs.MaxSessionJobs

type Kept = fleet.Kept

func (m *Machine) KeptOn(r Reader, id moraine.DeviceID) (Kept, error) {
	return fleet.KeptOn(m.View(r), id)
}

func (m *Machine) KeptTombstones(r Reader, id moraine.DeviceID, olderThan, atMost, bytes uint64, limit int) ([]*wire.Deletion, error) {
	return fleet.KeptTombstones(m.View(r), id, olderThan, atMost, bytes, limit)
}

type Reader = kvtx.Reader

type KV = kvtx.KV

type Inserter = kvtx.Inserter

const LevelUsage = kvtx.LevelUsage

const LevelCloneTree = kvtx.LevelCloneTree

const LevelMembers = kvtx.LevelMembers

const LevelHosts = kvtx.LevelHosts

const LevelRouting = kvtx.LevelRouting

const LevelConcat = kvtx.LevelConcat

const LevelHolds = kvtx.LevelHolds

const LevelAnswers = kvtx.LevelAnswers

const LevelMemory = kvtx.LevelMemory

const LevelRebalance = kvtx.LevelRebalance

const LevelDrops = kvtx.LevelDrops

const LevelSilentDrains = kvtx.LevelSilentDrains

const LevelRewrite = kvtx.LevelRewrite

const LevelUnrecoverable = kvtx.LevelUnrecoverable

type FilePlace = content.FilePlace

func (m *Machine) FindLost(r Reader, from FilePlace, limit int) (lost []FilePlace, next FilePlace, err error) {
	return content.FindLost(m.View(r), from, limit)
}

type Events = kvtx.Events

func WireError(err error) *wire.Error { return kvtx.WireError(err) }

func (m *Machine) SumMark(r Reader) (*statepb.SumMark, error) { return fleet.SumMark(m.View(r)) }

func (m *Machine) Member(r Reader, id string) (moraine.UUID, bool, error) {
	return fleet.Member(m.View(r), id)
}

const MaxIncarnation = fleet.MaxIncarnation

const MaxSettled = fleet.MaxSettled

const MaxMemoryListed = fleet.MaxMemoryListed

func (m *Machine) InMemory(r Reader, id moraine.DeviceID) (some bool, err error) {
	return fleet.InMemory(m.View(r), id)
}

const MaxQueueMove = tier.MaxQueueMove

const MaxLinks = tree.MaxLinks

const MaxRelease = names.MaxRelease

func (m *Machine) TypeOf(r Reader, id moraine.InodeID) (wire.FileType, error) {
	return names.TypeOf(m.View(r), id)
}

func (m *Machine) PathBelow(r Reader, top, id moraine.InodeID) (path string, below bool, err error) {
	return tree.PathBelow(m.View(r), top, id)
}

const DefaultSettleMillis = jobs.DefaultSettleMillis

func (m *Machine) PackDomain(r Reader, dir moraine.InodeID, scopes map[moraine.InodeID]bool) (moraine.InodeID, error) {
	return content.PackDomain(m.View(r), dir, scopes)
}

func (m *Machine) MayName(r Reader, caller *statepb.Caller, session moraine.SessionID, id moraine.InodeID) (bool, error) {
	return content.MayName(m.View(r), caller, session, id)
}

const MaxPackFiles = content.MaxPackFiles

type Packable = content.Packable

func (m *Machine) Packable(r Reader, file moraine.InodeID) (p Packable, ok bool, err error) {
	return content.FindPackable(m.View(r), file)
}

const MaxPartFiles = ckpt.MaxPartFiles

func (m *Machine) PolicyScheme(r Reader, dir moraine.InodeID) (moraine.Scheme, error) {
	return names.PolicyScheme(m.View(r), dir)
}

func (m *Machine) PolicySchemeFor(r Reader, caller *statepb.Caller, session moraine.SessionID, id moraine.InodeID) (moraine.Scheme, error) {
	return names.PolicySchemeFor(m.View(r), caller, session, id)
}

func Protects(scheme moraine.Scheme, domains []string) int { return fleet.Protects(scheme, domains) }

type QueuedStripe = fleet.QueuedStripe

func (m *Machine) QueuedStripes(r Reader, limit int) (out []QueuedStripe, more bool, err error) {
	return fleet.QueuedStripes(m.View(r), limit)
}

type BadStripe = fleet.BadStripe

func (m *Machine) BadChunks(r Reader, from moraine.StripeID, limit int) (out []BadStripe, next moraine.StripeID, err error) {
	return fleet.BadChunks(m.View(r), from, limit)
}

func (m *Machine) HasQuotas(r Reader) (bool, error) { return usage.HasQuotas(m.View(r)) }

const MaxQuotas = usage.MaxQuotas

const DefaultBand = fleet.DefaultBand

const MinBand = fleet.MinBand

const MaxBand = fleet.MaxBand

const DefaultRebalanceBytes = fleet.DefaultRebalanceBytes

const MinRebalanceBytes = fleet.MinRebalanceBytes

const MaxRebalanceBytes = fleet.MaxRebalanceBytes

func (m *Machine) RebalanceSettings(r Reader) (s record.RebalanceSettings, known bool, err error) {
	return fleet.RebalanceSettings(m.View(r))
}

func (m *Machine) Rebalancing(r Reader) (uint64, error) { return fleet.Rebalancing(m.View(r)) }

func (m *Machine) JobKind(r Reader, id moraine.JobID) (wire.JobKind, error) {
	return fleet.JobKind(m.View(r), id)
}

func (m *Machine) Queued(r Reader, id moraine.StripeID) (bool, error) {
	return fleet.Queued(m.View(r), id)
}

func (m *Machine) DeadBytes(r Reader, id moraine.DeviceID, limit int) (bytes uint64, chunks int, all bool, err error) {
	return fleet.DeadBytes(m.View(r), id, limit)
}

const MaxRepairStripes = fleet.MaxRepairStripes

type Fate = fleet.Fate

const Live = fleet.Live

const Damaged = fleet.Damaged

const Pending = fleet.Pending

const Dead = fleet.Dead

const Unknown = fleet.Unknown

const Wanted = fleet.Wanted

const Undecided = fleet.Undecided

const Superseded = fleet.Superseded

type ChunkVerdict = fleet.ChunkVerdict

func (m *Machine) ClassifyChunk(r Reader, id moraine.DeviceID, c *wire.ChunkReport, olderThan uint64) (ChunkVerdict, error) {
	return fleet.ClassifyChunk(m.View(r), id, c, olderThan)
}

type Expected = fleet.Expected

func (m *Machine) ExpectedChunks(r Reader, id moraine.DeviceID, from, to moraine.StripeID, limit int) ([]Expected, error) {
	return fleet.ExpectedChunks(m.View(r), id, from, to, limit)
}

func (m *Machine) StripeOnRecord(r Reader, id moraine.StripeID) (s *moraine.Stripe, queued bool, err error) {
	return fleet.StripeOnRecord(m.View(r), id)
}

func (m *Machine) WireStripe(r Reader, id moraine.StripeID) (*wire.Stripe, error) {
	return fleet.WireStripe(m.View(r), id)
}

const MaxRevocations = session.MaxRevocations

const MaxRevoke = session.MaxRevoke

func (m *Machine) Revocations(r Reader) (all []*wire.Revocation, err error) {
	return session.Revocations(m.View(r))
}

const MaxRewriteStripes = content.MaxRewriteStripes

func (m *Machine) Rewritables(r Reader, after moraine.InodeID, limit int) (files []moraine.InodeID, last moraine.InodeID, err error) {
	return content.Rewritables(m.View(r), after, limit)
}

type Named = content.Named

func (m *Machine) NameStripes(r Reader, file moraine.InodeID, from int64, limit int, named map[moraine.StripeID]Named) (looked int, next int64, err error) {
	return content.NameStripes(m.View(r), file, from, limit, named)
}

func (m *Machine) LastStripe(r Reader) (moraine.StripeID, error) {
	return content.LastStripe(m.View(r))
}

func (m *Machine) RoutingEpoch(r Reader) (uint64, error) { return session.RoutingEpoch(m.View(r)) }

const MaxLaunchLen = ckpt.MaxLaunchLen

func (m *Machine) InScope(r Reader, scope string, dir moraine.InodeID) (bool, error) {
	return names.InScope(m.View(r), scope, dir)
}

const AnswerWindow = session.AnswerWindow

const MaxExpire = session.MaxExpire

const MaxExpireHolding = session.MaxExpireHolding

func (m *Machine) HasNonce(r Reader, nonce []byte) (known bool, err error) {
	return session.HasNonce(m.View(r), nonce)
}

const MaxWorld = ckpt.MaxWorld

const MaxMissing = ckpt.MaxMissing

const DefaultSealTimeout = ckpt.DefaultSealTimeout

const MaxStepLeases = ckpt.MaxStepLeases

type StepLook = ckpt.StepLook

func (m *Machine) StepLosses(r Reader) (changes, stripes, steps uint64, err error) {
	return ckpt.StepLosses(m.View(r))
}

func (m *Machine) FindStepLoss(r Reader, l *StepLook, limit int) error {
	return ckpt.FindStepLoss(m.View(r), l, limit)
}

const MaxJudged = ckpt.MaxJudged

func (m *Machine) LossSuspects(r Reader, seen map[moraine.StripeID]bool, all bool) (*StepLook, map[moraine.StripeID]bool, error) {
	return ckpt.LossSuspects(m.View(r), seen, all)
}

const MaxDeleted = fleet.MaxDeleted

func (m *Machine) FreedBytes(r Reader, deleted []*wire.Deletion) (map[uint32]uint64, error) {
	return fleet.FreedBytes(m.View(r), deleted)
}

func (m *Machine) Tombstones(r Reader, id moraine.DeviceID, olderThan uint64, limit int) ([]*wire.Deletion, error) {
	return fleet.Tombstones(m.View(r), id, olderThan, limit)
}

type Touch = kvtx.Touch

type Change = kvtx.Change

const Changed = kvtx.Changed

const Added = kvtx.Added

const Removed = kvtx.Removed

const Taken = kvtx.Taken

type Seen = kvtx.Seen

const MaxRaised = content.MaxRaised

func (m *Machine) Raisable(r Reader, after moraine.InodeID, look, limit int) (ids []moraine.InodeID, last moraine.InodeID, err error) {
	return content.Raisable(m.View(r), after, look, limit)
}

type ClusterInfo = kvtx.ClusterInfo

func (m *Machine) Cluster(r Reader) (ClusterInfo, error) { return kvtx.Cluster(m.View(r)) }

func (m *Machine) Unused(r Reader) (bool, error) { return kvtx.Unused(m.View(r)) }

func (m *Machine) SigningKeys(r Reader) ([]*wire.SigningKey, error) {
	return fleet.SigningKeys(m.View(r))
}

func (m *Machine) Session(r Reader, id moraine.SessionID) (record.SessionInfo, error) {
	return session.Session(m.View(r), id)
}

func (m *Machine) Sessions(r Reader, fn func(record.SessionInfo) bool) error {
	return session.Sessions(m.View(r), fn)
}

func (m *Machine) StripeByID(r Reader, id moraine.StripeID) (*moraine.Stripe, error) {
	return fleet.StripeByID(m.View(r), id)
}

type GrantInfo = fleet.GrantInfo

func (m *Machine) LiveGrant(r Reader, id moraine.StripeID) (GrantInfo, bool, error) {
	return fleet.LiveGrant(m.View(r), id)
}

func (m *Machine) ClusterTime(r Reader) (uint64, error) { return kvtx.ClusterTime(m.View(r)) }

type Counters = kvtx.Counters

func (m *Machine) Counters(r Reader) (Counters, error) { return kvtx.ReadCounters(m.View(r)) }

func (m *Machine) Sum(r Reader) (record.Sum, error) { return kvtx.Sum(m.View(r)) }

func (m *Machine) Tenants(r Reader, root moraine.InodeID) (tenants []moraine.Tenant, all bool, err error) {
	return tree.Tenants(m.View(r), root)
}

const MaxListed = tree.MaxListed

const MaxXattrs = names.MaxXattrs

const MaxXattrBytes = names.MaxXattrBytes
