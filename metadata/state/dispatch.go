package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/ckpt"
	"github.com/morainefs/moraine/metadata/state/content"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/names"
	"github.com/morainefs/moraine/metadata/state/session"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/metadata/state/tier"
	"github.com/morainefs/moraine/metadata/state/work"
	"github.com/morainefs/moraine/transport/wire"
)

// MutateCluster dispatches the mutations that concern hosts, jobs, repair and
// checkpoints.
func MutateCluster(t *kvtx.Tx, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	switch op := req.GetOp().(type) {
	case *wire.MetaRequest_RegisterHost:
		return fleet.RegisterHost(t, op.RegisterHost)
	case *wire.MetaRequest_SetDeviceState:
		return fleet.SetDeviceState(t, op.SetDeviceState)
	case *wire.MetaRequest_SetHostState:
		return fleet.SetHostState(t, op.SetHostState)
	case *wire.MetaRequest_SetMaintenance:
		return fleet.SetMaintenance(t, op.SetMaintenance)
	case *wire.MetaRequest_SetRebalance:
		return fleet.SetRebalance(t, op.SetRebalance)
	case *wire.MetaRequest_RevokeCert:
		return session.RevokeCert(t, op.RevokeCert)
	case *wire.MetaRequest_RaiseRouting:
		return session.RaiseRouting(t, op.RaiseRouting)
	case *wire.MetaRequest_DeletedChunks:
		return fleet.DeletedChunks(t, op.DeletedChunks)
	case *wire.MetaRequest_ReportBadChunks:
		return fleet.ReportBadChunks(t, op.ReportBadChunks)
	case *wire.MetaRequest_DropChunks:
		return fleet.DropChunks(t, op.DropChunks)
	case *wire.MetaRequest_SettleChunks:
		return fleet.SettleChunks(t, op.SettleChunks)
	case *wire.MetaRequest_LeaseJobs:
		return work.LeaseJobs(t, op.LeaseJobs)
	case *wire.MetaRequest_RenewJob:
		return work.RenewJob(t, op.RenewJob)
	case *wire.MetaRequest_FinishJob:
		return work.FinishJob(t, op.FinishJob)
	case *wire.MetaRequest_CancelJob:
		return work.CancelJob(t, op.CancelJob)
	case *wire.MetaRequest_BeginRepair:
		return fleet.BeginRepair(t, op.BeginRepair)
	case *wire.MetaRequest_CommitRepair:
		return fleet.CommitRepair(t, op.CommitRepair)
	case *wire.MetaRequest_EndIntents:
		return fleet.EndIntents(t, op.EndIntents)
	}
	return MutateTier(t, req)
}

// MutateTier dispatches the mutations that concern the object tier.
func MutateTier(t *kvtx.Tx, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	switch op := req.GetOp().(type) {
	case *wire.MetaRequest_QueueMove:
		return tier.QueueMove(t, op.QueueMove)
	case *wire.MetaRequest_BeginObject:
		return tier.BeginObject(t, op.BeginObject)
	case *wire.MetaRequest_EndObject:
		return tier.EndObject(t, op.EndObject)
	case *wire.MetaRequest_CommitFlush:
		return tier.CommitFlush(t, op.CommitFlush)
	case *wire.MetaRequest_MoveObject:
		return tier.MoveObject(t, op.MoveObject)
	case *wire.MetaRequest_CommitEvict:
		return tier.CommitEvict(t, op.CommitEvict)
	case *wire.MetaRequest_CommitStage:
		return content.CommitStage(t, op.CommitStage)
	case *wire.MetaRequest_CommitRewrite:
		return content.CommitRewrite(t, op.CommitRewrite)
	case *wire.MetaRequest_CommitPack:
		return content.CommitPack(t, op.CommitPack)
	case *wire.MetaRequest_SetPolicy:
		return names.SetPolicy(t, op.SetPolicy)
	case *wire.MetaRequest_ReportObjects:
		return tier.ReportObjects(t, op.ReportObjects)
	case *wire.MetaRequest_DeletedObject:
		return tier.DeletedObject(t, op.DeletedObject)
	}
	return MutateCheckpoints(t, req)
}

func MutateCheckpoints(t *kvtx.Tx, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	switch op := req.GetOp().(type) {
	case *wire.MetaRequest_OpenRun:
		return ckpt.OpenRun(t, op.OpenRun)
	case *wire.MetaRequest_BeginStep:
		return ckpt.BeginStep(t, op.BeginStep)
	case *wire.MetaRequest_SealPart:
		return ckpt.SealPart(t, op.SealPart)
	case *wire.MetaRequest_CommitStep:
		return ckpt.CommitStep(t, op.CommitStep)
	case *wire.MetaRequest_AbortStep:
		return ckpt.AbortStep(t, op.AbortStep)
	case *wire.MetaRequest_ResolveStep:
		return ckpt.ResolveStep(t, op.ResolveStep)
	case *wire.MetaRequest_RemoveStep:
		return ckpt.RemoveStep(t, op.RemoveStep)
	case *wire.MetaRequest_LeaseStep:
		return ckpt.LeaseStep(t, op.LeaseStep)
	case *wire.MetaRequest_ReleaseStep:
		return ckpt.ReleaseStep(t, op.ReleaseStep)
	}
	return nil, kvtx.Fail(moraine.Unimplemented, "apply", "", "request %T is unknown, or no mutation", req.GetOp())
}

// CommandCluster dispatches what the leader decides about jobs, repair and
// checkpoints; false where the command is none of these.
func CommandCluster(t *kvtx.Tx, cmd *statepb.Command) (resp *wire.MetaResponse, known bool, err error) {
	switch op := cmd.GetOp().(type) {
	case *statepb.Command_CreateJobs:
		resp, err = work.CreateJobs(t, op.CreateJobs)
	case *statepb.Command_RunJob:
		resp, err = work.RunJob(t, op.RunJob)
	case *statepb.Command_AbortSteps:
		resp, err = ckpt.AbortSteps(t, op.AbortSteps)
	case *statepb.Command_QueueRepairs:
		resp, err = fleet.QueueRepairs(t, op.QueueRepairs)
	case *statepb.Command_CompleteReport:
		resp, err = fleet.CompleteReport(t, op.CompleteReport)
	case *statepb.Command_DropTombstones:
		resp, err = fleet.DropTombstones(t, op.DropTombstones.GetDeleted())
	case *statepb.Command_AssignIntents:
		resp, err = fleet.AssignIntents(t, op.AssignIntents)
	case *statepb.Command_AdoptChunks:
		resp, err = fleet.AdoptChunks(t, op.AdoptChunks)
	case *statepb.Command_RaiseLevels:
		resp, err = content.RaiseLevels(t, op.RaiseLevels)
	case *statepb.Command_JudgeSteps:
		resp, err = ckpt.JudgeSteps(t, op.JudgeSteps)
	default:
		return nil, false, nil
	}
	return resp, true, err
}

// isClusterRead reports whether readCluster answers req.
func isClusterRead(req *wire.MetaRequest) bool {
	switch op := req.GetOp().(type) {
	case *wire.MetaRequest_ListJobs, *wire.MetaRequest_GetStep, *wire.MetaRequest_ListRuns, *wire.MetaRequest_ListSteps,
		*wire.MetaRequest_ListParts, *wire.MetaRequest_GetObject, *wire.MetaRequest_GetTier,
		*wire.MetaRequest_GetPolicy, *wire.MetaRequest_ListMemory, *wire.MetaRequest_ListLost, *wire.MetaRequest_ListBadObjects:
		return true
	case *wire.MetaRequest_ResolveStep:
		return !op.ResolveStep.GetFix()
	}
	return false
}

// ReadCluster dispatches the reads that concern jobs and checkpoints.
func ReadCluster(v *kvtx.View, sc kvtx.Scope, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	switch op := req.GetOp().(type) {
	case *wire.MetaRequest_ListJobs:
		return work.ReadJobs(v, sc, op.ListJobs)
	case *wire.MetaRequest_GetStep:
		return ckpt.ReadStep(v, sc, op.GetStep)
	case *wire.MetaRequest_ListRuns:
		return ckpt.ReadRuns(v, sc, op.ListRuns)
	case *wire.MetaRequest_ListSteps:
		return ckpt.ReadSteps(v, sc, op.ListSteps)
	case *wire.MetaRequest_ListParts:
		return ckpt.ReadParts(v, sc, op.ListParts)
	case *wire.MetaRequest_ResolveStep:
		return ckpt.ReadResolve(v, sc, op.ResolveStep)
	case *wire.MetaRequest_GetObject:
		return tier.ReadObject(v, sc, op.GetObject)
	case *wire.MetaRequest_GetTier:
		return tier.ReadTier(v)
	case *wire.MetaRequest_GetPolicy:
		return names.ReadPolicy(v, sc, op.GetPolicy)
	case *wire.MetaRequest_ListMemory:
		return fleet.ReadMemory(v, op.ListMemory)
	case *wire.MetaRequest_ListLost:
		return ckpt.ReadLost(v, sc, op.ListLost)
	case *wire.MetaRequest_ListBadObjects:
		return content.ReadBadObjects(v, sc, op.ListBadObjects)
	}
	return nil, kvtx.Fail(moraine.Unimplemented, "read", "", "request %T is unknown, or no read", req.GetOp())
}
