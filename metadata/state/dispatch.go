package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// mutateCluster dispatches the mutations that concern hosts, jobs, repair and
// checkpoints.
func (m *Machine) mutateCluster(t *tx, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	switch op := req.GetOp().(type) {
	case *wire.MetaRequest_RegisterHost:
		return m.registerHost(t, op.RegisterHost)
	case *wire.MetaRequest_SetDeviceState:
		return m.setDeviceState(t, op.SetDeviceState)
	case *wire.MetaRequest_SetHostState:
		return m.setHostState(t, op.SetHostState)
	case *wire.MetaRequest_SetMaintenance:
		return m.setMaintenance(t, op.SetMaintenance)
	case *wire.MetaRequest_SetRebalance:
		return m.setRebalance(t, op.SetRebalance)
	case *wire.MetaRequest_RevokeCert:
		return m.revokeCert(t, op.RevokeCert)
	case *wire.MetaRequest_RaiseRouting:
		return m.raiseRouting(t, op.RaiseRouting)
	case *wire.MetaRequest_DeletedChunks:
		return m.deletedChunks(t, op.DeletedChunks)
	case *wire.MetaRequest_ReportBadChunks:
		return m.reportBadChunks(t, op.ReportBadChunks)
	case *wire.MetaRequest_DropChunks:
		return m.dropChunks(t, op.DropChunks)
	case *wire.MetaRequest_SettleChunks:
		return m.settleChunks(t, op.SettleChunks)
	case *wire.MetaRequest_LeaseJobs:
		return m.leaseJobs(t, op.LeaseJobs)
	case *wire.MetaRequest_RenewJob:
		return m.renewJob(t, op.RenewJob)
	case *wire.MetaRequest_FinishJob:
		return m.finishJob(t, op.FinishJob)
	case *wire.MetaRequest_CancelJob:
		return m.cancelJob(t, op.CancelJob)
	case *wire.MetaRequest_BeginRepair:
		return m.beginRepair(t, op.BeginRepair)
	case *wire.MetaRequest_CommitRepair:
		return m.commitRepair(t, op.CommitRepair)
	case *wire.MetaRequest_EndIntents:
		return m.endIntents(t, op.EndIntents)
	}
	return m.mutateTier(t, req)
}

// mutateTier dispatches the mutations that concern the object tier.
func (m *Machine) mutateTier(t *tx, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	switch op := req.GetOp().(type) {
	case *wire.MetaRequest_QueueMove:
		return m.queueMove(t, op.QueueMove)
	case *wire.MetaRequest_BeginObject:
		return m.beginObject(t, op.BeginObject)
	case *wire.MetaRequest_EndObject:
		return m.endObject(t, op.EndObject)
	case *wire.MetaRequest_CommitFlush:
		return m.commitFlush(t, op.CommitFlush)
	case *wire.MetaRequest_MoveObject:
		return m.moveObject(t, op.MoveObject)
	case *wire.MetaRequest_CommitEvict:
		return m.commitEvict(t, op.CommitEvict)
	case *wire.MetaRequest_CommitStage:
		return m.commitStage(t, op.CommitStage)
	case *wire.MetaRequest_CommitRewrite:
		return m.commitRewrite(t, op.CommitRewrite)
	case *wire.MetaRequest_CommitPack:
		return m.commitPack(t, op.CommitPack)
	case *wire.MetaRequest_SetPolicy:
		return m.setPolicy(t, op.SetPolicy)
	case *wire.MetaRequest_ReportObjects:
		return m.reportObjects(t, op.ReportObjects)
	case *wire.MetaRequest_DeletedObject:
		return m.deletedObject(t, op.DeletedObject)
	}
	return m.mutateCheckpoints(t, req)
}

func (m *Machine) mutateCheckpoints(t *tx, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	switch op := req.GetOp().(type) {
	case *wire.MetaRequest_OpenRun:
		return m.openRun(t, op.OpenRun)
	case *wire.MetaRequest_BeginStep:
		return m.beginStep(t, op.BeginStep)
	case *wire.MetaRequest_SealPart:
		return m.sealPart(t, op.SealPart)
	case *wire.MetaRequest_CommitStep:
		return m.commitStep(t, op.CommitStep)
	case *wire.MetaRequest_AbortStep:
		return m.abortStep(t, op.AbortStep)
	case *wire.MetaRequest_ResolveStep:
		return m.resolveStep(t, op.ResolveStep)
	case *wire.MetaRequest_RemoveStep:
		return m.removeStep(t, op.RemoveStep)
	case *wire.MetaRequest_LeaseStep:
		return m.leaseStep(t, op.LeaseStep)
	case *wire.MetaRequest_ReleaseStep:
		return m.releaseStep(t, op.ReleaseStep)
	}
	return nil, fail(moraine.Unimplemented, "apply", "", "request %T is unknown, or no mutation", req.GetOp())
}

// commandCluster dispatches what the leader decides about jobs, repair and
// checkpoints; false where the command is none of these.
func (m *Machine) commandCluster(t *tx, cmd *statepb.Command) (resp *wire.MetaResponse, known bool, err error) {
	switch op := cmd.GetOp().(type) {
	case *statepb.Command_CreateJobs:
		resp, err = m.createJobs(t, op.CreateJobs)
	case *statepb.Command_RunJob:
		resp, err = m.runJob(t, op.RunJob)
	case *statepb.Command_AbortSteps:
		resp, err = m.abortSteps(t, op.AbortSteps)
	case *statepb.Command_QueueRepairs:
		resp, err = m.queueRepairs(t, op.QueueRepairs)
	case *statepb.Command_CompleteReport:
		resp, err = m.completeReport(t, op.CompleteReport)
	case *statepb.Command_DropTombstones:
		resp, err = m.dropTombstones(t, op.DropTombstones.GetDeleted())
	case *statepb.Command_AssignIntents:
		resp, err = m.assignIntents(t, op.AssignIntents)
	case *statepb.Command_AdoptChunks:
		resp, err = m.adoptChunks(t, op.AdoptChunks)
	case *statepb.Command_RaiseLevels:
		resp, err = m.raiseLevels(t, op.RaiseLevels)
	case *statepb.Command_JudgeSteps:
		resp, err = m.judgeSteps(t, op.JudgeSteps)
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

// readCluster dispatches the reads that concern jobs and checkpoints.
func (v *view) readCluster(sc scope, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	switch op := req.GetOp().(type) {
	case *wire.MetaRequest_ListJobs:
		return v.readJobs(sc, op.ListJobs)
	case *wire.MetaRequest_GetStep:
		return v.readStep(sc, op.GetStep)
	case *wire.MetaRequest_ListRuns:
		return v.readRuns(sc, op.ListRuns)
	case *wire.MetaRequest_ListSteps:
		return v.readSteps(sc, op.ListSteps)
	case *wire.MetaRequest_ListParts:
		return v.readParts(sc, op.ListParts)
	case *wire.MetaRequest_ResolveStep:
		return v.readResolve(sc, op.ResolveStep)
	case *wire.MetaRequest_GetObject:
		return v.readObject(sc, op.GetObject)
	case *wire.MetaRequest_GetTier:
		return v.readTier()
	case *wire.MetaRequest_GetPolicy:
		return v.readPolicy(sc, op.GetPolicy)
	case *wire.MetaRequest_ListMemory:
		return v.readMemory(op.ListMemory)
	case *wire.MetaRequest_ListLost:
		return v.readLost(sc, op.ListLost)
	case *wire.MetaRequest_ListBadObjects:
		return v.readBadObjects(sc, op.ListBadObjects)
	}
	return nil, fail(moraine.Unimplemented, "read", "", "request %T is unknown, or no read", req.GetOp())
}
