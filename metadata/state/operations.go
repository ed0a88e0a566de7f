package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/ckpt"
	"github.com/morainefs/moraine/metadata/state/content"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/layout"
	"github.com/morainefs/moraine/metadata/state/movers"
	"github.com/morainefs/moraine/metadata/state/names"
	"github.com/morainefs/moraine/metadata/state/session"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/metadata/state/tier"
	"github.com/morainefs/moraine/metadata/state/usage"
	"github.com/morainefs/moraine/transport/wire"
)

// operation describes one request to the state machine.
type operation struct {
	mutate mutation // nil: the request changes nothing
	read   read     // nil: the request is a mutation, or the leader answers it from memory
	// session: the request fails without a session.
	session bool
	// readOnly reports whether a read-only session may send the request; nil: it may not.
	readOnly func(*wire.MetaRequest) bool
	// reads reports whether a request with both a mutation and a read is the read; nil: it is the
	// read only if there is no mutation.
	reads func(*wire.MetaRequest) bool
	// noted: the answer shows no cacheable item other than those that the read recorded in Seen.
	noted bool
}

type (
	mutation func(*kvtx.Tx, *wire.MetaRequest) (*wire.MetaResponse, error)
	read     func(*kvtx.View, kvtx.Scope, *wire.MetaRequest) (*wire.MetaResponse, error)
	command  func(*kvtx.Tx, *statepb.Command) (*wire.MetaResponse, error)
)

// operations has all requests by their field number in wire.MetaRequest.
var operations = [...]operation{
	10:  {mutate: mutating((*wire.MetaRequest).GetOpenSession, session.OpenSession), readOnly: always},
	12:  {mutate: alone(session.CloseSession), session: true, readOnly: always},
	20:  {read: reading((*wire.MetaRequest).GetLookup, names.ReadLookup), noted: true},
	21:  {read: reading((*wire.MetaRequest).GetWalk, names.ReadWalk), noted: true},
	22:  {read: reading((*wire.MetaRequest).GetGetAttr, names.ReadAttr), noted: true},
	23:  {read: reading((*wire.MetaRequest).GetReadDir, names.ReadDir), noted: true},
	24:  {mutate: mutating((*wire.MetaRequest).GetCreate, names.Create), session: true},
	25:  {mutate: mutating((*wire.MetaRequest).GetRename, names.Rename), session: true},
	26:  {mutate: mutating((*wire.MetaRequest).GetRemove, ckpt.Remove), session: true},
	27:  {mutate: mutating((*wire.MetaRequest).GetSetAttr, names.SetAttr), session: true},
	28:  {mutate: mutating((*wire.MetaRequest).GetRemoveTree, ckpt.RemoveTree), session: true},
	29:  {mutate: mutating((*wire.MetaRequest).GetLink, names.LinkName), session: true},
	30:  {mutate: mutating((*wire.MetaRequest).GetRelease, names.Release), session: true},
	31:  {mutate: mutating((*wire.MetaRequest).GetSetXattr, names.SetXattr), session: true},
	32:  {read: reading((*wire.MetaRequest).GetGetXattr, names.ReadXattr), noted: true},
	40:  {mutate: mutating((*wire.MetaRequest).GetGrant, fleet.Grant), session: true},
	41:  {mutate: mutating((*wire.MetaRequest).GetEndGrant, fleet.EndGrant), session: true},
	43:  {mutate: mutating((*wire.MetaRequest).GetCommit, content.Commit), session: true},
	44:  {read: reading((*wire.MetaRequest).GetGetExtents, layout.ReadExtents), noted: true},
	45:  {mutate: mutating((*wire.MetaRequest).GetReportBadChunks, fleet.ReportBadChunks), readOnly: always},
	46:  {mutate: mutating((*wire.MetaRequest).GetClone, content.Clone), session: true},
	60:  {mutate: mutating((*wire.MetaRequest).GetRegisterHost, fleet.RegisterHost)},
	63:  {mutate: mutating((*wire.MetaRequest).GetDeletedChunks, fleet.DeletedChunks)},
	64:  {mutate: mutating((*wire.MetaRequest).GetSetDeviceState, fleet.SetDeviceState)},
	80:  {mutate: mutating((*wire.MetaRequest).GetLeaseJobs, movers.LeaseJobs)},
	81:  {mutate: mutating((*wire.MetaRequest).GetRenewJob, movers.RenewJob)},
	82:  {mutate: mutating((*wire.MetaRequest).GetFinishJob, movers.FinishJob)},
	83:  {read: reading((*wire.MetaRequest).GetListJobs, movers.ReadJobs)},
	84:  {mutate: mutating((*wire.MetaRequest).GetCancelJob, movers.CancelJob)},
	85:  {mutate: mutating((*wire.MetaRequest).GetBeginRepair, fleet.BeginRepair)},
	86:  {mutate: mutating((*wire.MetaRequest).GetCommitRepair, fleet.CommitRepair)},
	87:  {mutate: mutating((*wire.MetaRequest).GetEndIntents, fleet.EndIntents)},
	100: {mutate: mutating((*wire.MetaRequest).GetOpenRun, ckpt.OpenRun), session: true, readOnly: visits},
	101: {mutate: mutating((*wire.MetaRequest).GetBeginStep, ckpt.BeginStep), session: true},
	102: {mutate: mutating((*wire.MetaRequest).GetSealPart, ckpt.SealPart), session: true},
	103: {read: reading((*wire.MetaRequest).GetGetStep, ckpt.ReadStep)},
	104: {mutate: mutating((*wire.MetaRequest).GetCommitStep, ckpt.CommitStep)},
	105: {mutate: mutating((*wire.MetaRequest).GetAbortStep, ckpt.AbortStep), session: true},
	106: {read: reading((*wire.MetaRequest).GetListRuns, ckpt.ReadRuns)},
	107: {read: reading((*wire.MetaRequest).GetListSteps, ckpt.ReadSteps)},
	108: {mutate: mutating((*wire.MetaRequest).GetResolveStep, ckpt.ResolveStep), read: reading((*wire.MetaRequest).GetResolveStep, ckpt.ReadResolve), readOnly: resolvesOnly, reads: resolvesOnly},
	109: {mutate: mutating((*wire.MetaRequest).GetRemoveStep, ckpt.RemoveStep), session: true},
	110: {read: reading((*wire.MetaRequest).GetListParts, ckpt.ReadParts)},
	680: {mutate: mutating((*wire.MetaRequest).GetLeaseStep, ckpt.LeaseStep), session: true, readOnly: always},
	681: {mutate: mutating((*wire.MetaRequest).GetReleaseStep, ckpt.ReleaseStep), session: true, readOnly: always},
	120: {mutate: mutating((*wire.MetaRequest).GetQueueMove, tier.QueueMove)},
	121: {mutate: mutating((*wire.MetaRequest).GetBeginObject, tier.BeginObject)},
	122: {mutate: mutating((*wire.MetaRequest).GetEndObject, tier.EndObject)},
	123: {mutate: mutating((*wire.MetaRequest).GetCommitFlush, tier.CommitFlush)},
	124: {mutate: mutating((*wire.MetaRequest).GetMoveObject, tier.MoveObject)},
	125: {mutate: mutating((*wire.MetaRequest).GetCommitEvict, tier.CommitEvict)},
	126: {mutate: mutating((*wire.MetaRequest).GetCommitStage, content.CommitStage), session: true},
	127: {mutate: mutating((*wire.MetaRequest).GetDeletedObject, tier.DeletedObject)},
	128: {read: reading((*wire.MetaRequest).GetGetObject, tier.ReadObject)},
	129: {read: func(v *kvtx.View, _ kvtx.Scope, _ *wire.MetaRequest) (*wire.MetaResponse, error) {
		return tier.ReadTier(v)
	}},
	130: {mutate: mutating((*wire.MetaRequest).GetSetPolicy, names.SetPolicy)},
	131: {read: reading((*wire.MetaRequest).GetGetPolicy, names.ReadPolicy)},
	220: {read: reading((*wire.MetaRequest).GetGetUsage, usage.ReadUsage)},
	221: {mutate: mutating((*wire.MetaRequest).GetSetQuota, usage.SetQuota)},
	222: {read: reading((*wire.MetaRequest).GetListQuotas, usage.ReadQuotas)},
	223: {mutate: alone(usage.BeginRecount)},
	224: {mutate: mutating((*wire.MetaRequest).GetCloneTree, content.CloneTree), session: true},
	320: {mutate: mutating((*wire.MetaRequest).GetConcat, content.Concat), session: true},
	321: {mutate: mutating((*wire.MetaRequest).GetRaiseRouting, session.RaiseRouting)},
	450: {mutate: mutating((*wire.MetaRequest).GetSetMaintenance, fleet.SetMaintenance)},
	451: {mutate: mutating((*wire.MetaRequest).GetSetHostState, fleet.SetHostState)},
	460: {mutate: mutating((*wire.MetaRequest).GetSettleChunks, fleet.SettleChunks)},
	461: {read: openly((*wire.MetaRequest).GetListMemory, fleet.ReadMemory)},
	462: {read: reading((*wire.MetaRequest).GetListLost, ckpt.ReadLost)},
	470: {mutate: mutating((*wire.MetaRequest).GetSetRebalance, fleet.SetRebalance)},
	490: {mutate: mutating((*wire.MetaRequest).GetCommitRewrite, content.CommitRewrite), session: true},
	481: {mutate: mutating((*wire.MetaRequest).GetDropChunks, fleet.DropChunks)},
	400: {mutate: mutating((*wire.MetaRequest).GetHold, session.HoldDirectory), session: true},
	401: {mutate: mutating((*wire.MetaRequest).GetEndHold, session.EndHold), session: true},
	620: {mutate: mutating((*wire.MetaRequest).GetRevokeCert, session.RevokeCert)},
	132: {mutate: mutating((*wire.MetaRequest).GetReportObjects, tier.ReportObjects)},
	134: {read: reading((*wire.MetaRequest).GetListBadObjects, content.ReadBadObjects)},
}

// commands has the leader's own commands by their field number in statepb.Command.
var commands = [...]command{
	20: commanding((*statepb.Command).GetTick, tick),
	21: commanding((*statepb.Command).GetExpireSessions, session.ExpireSessions),
	22: commanding((*statepb.Command).GetInit, initialize),
	23: commanding((*statepb.Command).GetAddSigningKey, fleet.AddSigningKey),
	24: commanding((*statepb.Command).GetCreateJobs, movers.CreateJobs),
	25: commanding((*statepb.Command).GetRunJob, movers.RunJob),
	26: commanding((*statepb.Command).GetAbortSteps, ckpt.AbortSteps),
	27: commanding((*statepb.Command).GetQueueRepairs, fleet.QueueRepairs),
	28: commanding((*statepb.Command).GetCompleteReport, fleet.CompleteReport),
	29: func(t *kvtx.Tx, c *statepb.Command) (*wire.MetaResponse, error) {
		return fleet.DropTombstones(t, c.GetDropTombstones().GetDeleted())
	},
	30:  commanding((*statepb.Command).GetAssignIntents, fleet.AssignIntents),
	31:  commanding((*statepb.Command).GetSetFeatureLevel, setFeatureLevel),
	240: commanding((*statepb.Command).GetSetMember, fleet.SetMember),
	241: commanding((*statepb.Command).GetRaiseIncarnation, fleet.RaiseIncarnation),
	400: commanding((*statepb.Command).GetLapseHold, session.LapseHold),
	460: commanding((*statepb.Command).GetRaiseLevels, content.RaiseLevels),
	640: commanding((*statepb.Command).GetAdoptChunks, fleet.AdoptChunks),
	710: commanding((*statepb.Command).GetJudgeSteps, ckpt.JudgeSteps),
}

func mutating[O any](op func(*wire.MetaRequest) O, do func(*kvtx.Tx, O) (*wire.MetaResponse, error)) mutation {
	return func(t *kvtx.Tx, req *wire.MetaRequest) (*wire.MetaResponse, error) { return do(t, op(req)) }
}

// alone makes a mutation from a handler that needs only the transaction.
func alone(do func(*kvtx.Tx) (*wire.MetaResponse, error)) mutation {
	return func(t *kvtx.Tx, _ *wire.MetaRequest) (*wire.MetaResponse, error) { return do(t) }
}

func reading[O any](op func(*wire.MetaRequest) O, do func(*kvtx.View, kvtx.Scope, O) (*wire.MetaResponse, error)) read {
	return func(v *kvtx.View, sc kvtx.Scope, req *wire.MetaRequest) (*wire.MetaResponse, error) {
		return do(v, sc, op(req))
	}
}

// openly makes a read from a handler whose answer is the same in every scope.
func openly[O any](op func(*wire.MetaRequest) O, do func(*kvtx.View, O) (*wire.MetaResponse, error)) read {
	return func(v *kvtx.View, _ kvtx.Scope, req *wire.MetaRequest) (*wire.MetaResponse, error) {
		return do(v, op(req))
	}
}

func commanding[O any](op func(*statepb.Command) O, do func(*kvtx.Tx, O) (*wire.MetaResponse, error)) command {
	return func(t *kvtx.Tx, c *statepb.Command) (*wire.MetaResponse, error) { return do(t, op(c)) }
}

func always(*wire.MetaRequest) bool { return true }

// visits reports whether the request opens a run only to read it.
func visits(req *wire.MetaRequest) bool { return req.GetOpenRun().GetReadOnly() }

// resolvesOnly reports whether the request resolves a step without fixing it as the run's parent.
func resolvesOnly(req *wire.MetaRequest) bool { return !req.GetResolveStep().GetFix() }

// operationOf returns the operation of a request, or the zero operation if the request has none.
func operationOf(req *wire.MetaRequest) operation {
	if f := wire.Op(req); f != nil && int(f.Number()) < len(operations) {
		return operations[f.Number()]
	}
	return operation{}
}

// commandOf returns the handler of a leader's command, or nil if the command is unknown.
func commandOf(cmd *statepb.Command) command {
	if f := wire.Op(cmd); f != nil && int(f.Number()) < len(commands) {
		return commands[f.Number()]
	}
	return nil
}

// isRead reports whether Read answers a request of this operation.
func (o operation) isRead(req *wire.MetaRequest) bool {
	if o.reads != nil {
		return o.reads(req)
	}
	return o.read != nil
}

// admits fails with ReadOnly where a scope that may not write sends a mutation.
func (o operation) admits(sc kvtx.Scope, req *wire.MetaRequest) error {
	if !sc.ReadOnly || o.readOnly != nil && o.readOnly(req) {
		return nil
	}
	return kvtx.Fail(moraine.ReadOnly, "apply", "", "the session may not write")
}
