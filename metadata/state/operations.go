package state

import (
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/ckpt"
	"github.com/morainefs/moraine/metadata/state/content"
	"github.com/morainefs/moraine/metadata/state/delegation"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/layout"
	"github.com/morainefs/moraine/metadata/state/locks"
	"github.com/morainefs/moraine/metadata/state/movers"
	"github.com/morainefs/moraine/metadata/state/names"
	"github.com/morainefs/moraine/metadata/state/session"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/metadata/state/tier"
	"github.com/morainefs/moraine/metadata/state/usage"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/morainefs/moraine/transport/wire/ops"
)

// handler is what the state machine does with one request. What else it must know of the request is
// in the table of package ops.
type handler struct {
	mutate mutation // nil: the request is no COMMAND
	read   read     // nil: the request is no READ, and is not one for some arguments either
}

type (
	mutation func(*kvtx.Tx, *wire.MetaRequest) (*wire.MetaResponse, error)
	read     func(*kvtx.View, kvtx.Scope, *wire.MetaRequest) (*wire.MetaResponse, error)
	command  func(*kvtx.Tx, *statepb.Command) (*wire.MetaResponse, error)
)

// handlers has the requests that the state machine answers, by their field number in
// wire.MetaRequest.
var handlers = checked([]handler{
	10:  {mutate: mutating((*wire.MetaRequest).GetOpenSession, session.OpenSession)},
	12:  {mutate: alone(session.CloseSession)},
	20:  {read: reading((*wire.MetaRequest).GetLookup, names.ReadLookup)},
	21:  {read: reading((*wire.MetaRequest).GetWalk, names.ReadWalk)},
	22:  {read: reading((*wire.MetaRequest).GetGetAttr, names.ReadAttr)},
	23:  {read: reading((*wire.MetaRequest).GetReadDir, names.ReadDir)},
	24:  {mutate: mutating((*wire.MetaRequest).GetCreate, names.Create)},
	25:  {mutate: mutating((*wire.MetaRequest).GetRename, names.Rename)},
	26:  {mutate: mutating((*wire.MetaRequest).GetRemove, ckpt.Remove)},
	27:  {mutate: mutating((*wire.MetaRequest).GetSetAttr, names.SetAttr)},
	28:  {mutate: mutating((*wire.MetaRequest).GetRemoveTree, ckpt.RemoveTree)},
	29:  {mutate: mutating((*wire.MetaRequest).GetLink, names.LinkName)},
	30:  {mutate: mutating((*wire.MetaRequest).GetRelease, names.Release)},
	31:  {mutate: mutating((*wire.MetaRequest).GetSetXattr, names.SetXattr)},
	32:  {read: reading((*wire.MetaRequest).GetGetXattr, names.ReadXattr)},
	40:  {mutate: mutating((*wire.MetaRequest).GetGrant, fleet.Grant)},
	41:  {mutate: mutating((*wire.MetaRequest).GetEndGrant, fleet.EndGrant)},
	43:  {mutate: mutating((*wire.MetaRequest).GetCommit, content.Commit)},
	44:  {read: reading((*wire.MetaRequest).GetGetExtents, layout.ReadExtents)},
	45:  {mutate: mutating((*wire.MetaRequest).GetReportBadChunks, fleet.ReportBadChunks)},
	46:  {mutate: mutating((*wire.MetaRequest).GetClone, content.Clone)},
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
	100: {mutate: mutating((*wire.MetaRequest).GetOpenRun, ckpt.OpenRun)},
	101: {mutate: mutating((*wire.MetaRequest).GetBeginStep, ckpt.BeginStep)},
	102: {mutate: mutating((*wire.MetaRequest).GetSealPart, ckpt.SealPart)},
	103: {read: reading((*wire.MetaRequest).GetGetStep, ckpt.ReadStep)},
	104: {mutate: mutating((*wire.MetaRequest).GetCommitStep, ckpt.CommitStep)},
	105: {mutate: mutating((*wire.MetaRequest).GetAbortStep, ckpt.AbortStep)},
	106: {read: reading((*wire.MetaRequest).GetListRuns, ckpt.ReadRuns)},
	107: {read: reading((*wire.MetaRequest).GetListSteps, ckpt.ReadSteps)},
	108: {mutate: mutating((*wire.MetaRequest).GetResolveStep, ckpt.ResolveStep), read: reading((*wire.MetaRequest).GetResolveStep, ckpt.ReadResolve)},
	109: {mutate: mutating((*wire.MetaRequest).GetRemoveStep, ckpt.RemoveStep)},
	110: {read: reading((*wire.MetaRequest).GetListParts, ckpt.ReadParts)},
	112: {mutate: mutating((*wire.MetaRequest).GetClaimSlices, ckpt.ClaimSlices)},
	720: {mutate: mutating((*wire.MetaRequest).GetMarkStep, ckpt.MarkStep)},
	740: {mutate: mutating((*wire.MetaRequest).GetAdoptStep, ckpt.AdoptStep)},
	680: {mutate: mutating((*wire.MetaRequest).GetLeaseStep, ckpt.LeaseStep)},
	681: {mutate: mutating((*wire.MetaRequest).GetReleaseStep, ckpt.ReleaseStep)},
	120: {mutate: mutating((*wire.MetaRequest).GetQueueMove, tier.QueueMove)},
	121: {mutate: mutating((*wire.MetaRequest).GetBeginObject, tier.BeginObject)},
	122: {mutate: mutating((*wire.MetaRequest).GetEndObject, tier.EndObject)},
	123: {mutate: mutating((*wire.MetaRequest).GetCommitFlush, tier.CommitFlush)},
	124: {mutate: mutating((*wire.MetaRequest).GetMoveObject, tier.MoveObject)},
	125: {mutate: mutating((*wire.MetaRequest).GetCommitEvict, tier.CommitEvict)},
	126: {mutate: mutating((*wire.MetaRequest).GetCommitStage, content.CommitStage)},
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
	224: {mutate: mutating((*wire.MetaRequest).GetCloneTree, content.CloneTree)},
	320: {mutate: mutating((*wire.MetaRequest).GetConcat, content.Concat)},
	321: {mutate: mutating((*wire.MetaRequest).GetRaiseRouting, session.RaiseRouting)},
	450: {mutate: mutating((*wire.MetaRequest).GetSetMaintenance, fleet.SetMaintenance)},
	451: {mutate: mutating((*wire.MetaRequest).GetSetHostState, fleet.SetHostState)},
	460: {mutate: mutating((*wire.MetaRequest).GetSettleChunks, fleet.SettleChunks)},
	461: {read: openly((*wire.MetaRequest).GetListMemory, fleet.ReadMemory)},
	462: {read: reading((*wire.MetaRequest).GetListLost, ckpt.ReadLost)},
	470: {mutate: mutating((*wire.MetaRequest).GetSetRebalance, fleet.SetRebalance)},
	490: {mutate: mutating((*wire.MetaRequest).GetCommitRewrite, content.CommitRewrite)},
	481: {mutate: mutating((*wire.MetaRequest).GetDropChunks, fleet.DropChunks)},
	620: {mutate: mutating((*wire.MetaRequest).GetRevokeCert, session.RevokeCert)},
	780: {mutate: mutating((*wire.MetaRequest).GetSetLock, locks.SetLock)},
	781: {read: reading((*wire.MetaRequest).GetGetLock, locks.ReadLock)},
	800: {mutate: mutating((*wire.MetaRequest).GetDelegate, delegation.Delegate)},
	801: {mutate: mutating((*wire.MetaRequest).GetEndDelegation, delegation.EndDelegation)},
	802: {mutate: wholeOnly},
	820: {read: reading((*wire.MetaRequest).GetFindOrphans, names.ReadOrphans)},
	821: {mutate: mutating((*wire.MetaRequest).GetKeep, names.Keep)},
	822: {mutate: mutating((*wire.MetaRequest).GetRaiseAtimes, content.RaiseAtimes)},
	132: {mutate: mutating((*wire.MetaRequest).GetReportObjects, tier.ReportObjects)},
	134: {read: reading((*wire.MetaRequest).GetListBadObjects, content.ReadBadObjects)},
}, ops.All())

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
	460: commanding((*statepb.Command).GetRaiseLevels, content.RaiseLevels),
	640: commanding((*statepb.Command).GetAdoptChunks, fleet.AdoptChunks),
	710: commanding((*statepb.Command).GetJudgeSteps, ckpt.JudgeSteps),
	720: commanding((*statepb.Command).GetRetainSteps, ckpt.RetainSteps),
	800: commanding((*statepb.Command).GetRevokeDelegation, delegation.RevokeDelegation),
	820: commanding((*statepb.Command).GetEndLingers, names.EndLingers),
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

// checked returns the handlers. It panics with what to write if a READ or a COMMAND has none, or
// another request has one.
func checked(handlers []handler, all []*ops.Op) []handler {
	for _, o := range all {
		var h handler
		if int(o.Number) < len(handlers) {
			h = handlers[o.Number]
		}
		mutates, reads := o.Effect == wire.Operation_COMMAND, o.IsRead(o.New())
		if (h.mutate != nil) != mutates || (h.read != nil) != reads {
			panic(fmt.Sprintf("metadata/state/operations.go: %s (%d) has effect %v in metadata.proto: its line must have mutate: %v, read: %v",
				o.Name, o.Number, o.Effect, mutates, reads))
		}
	}
	return handlers
}

// handlerOf returns the handler of a request, or the empty one if the request has none.
func handlerOf(o *ops.Op) handler {
	if o == nil || int(o.Number) >= len(handlers) {
		return handler{}
	}
	return handlers[o.Number]
}

// commandOf returns the handler of a leader's command, or nil if the command is unknown.
func commandOf(cmd *statepb.Command) command {
	if f := wire.Op(cmd); f != nil && int(f.Number()) < len(commands) {
		return commands[f.Number()]
	}
	return nil
}

// admits fails with ReadOnly where a scope that may not write sends a mutation.
func admits(sc kvtx.Scope, o *ops.Op, req *wire.MetaRequest) error {
	if !sc.ReadOnly || o != nil && o.ReadOnly(req) {
		return nil
	}
	return kvtx.Fail(moraine.ReadOnly, "apply", "", "the session was opened for reading only")
}
