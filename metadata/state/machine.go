package state

import (
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/ckpt"
	"github.com/morainefs/moraine/metadata/state/content"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/layout"
	"github.com/morainefs/moraine/metadata/state/names"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/session"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/metadata/state/usage"
	"github.com/morainefs/moraine/metadata/state/work"
	"github.com/morainefs/moraine/transport/wire"
)

// commandVersion is the newest meaning of a Command that this build knows.
const commandVersion = 1

// Machine is the state machine of one partition. It keeps no state of its own,
// so that a Machine may be used by many readers at once; Apply calls on one KV
// must not overlap.
type Machine struct{ *kvtx.Space }

// New returns the machine of partition p.
func New(p moraine.Partition) *Machine {
	m := &Machine{kvtx.NewSpace(p)}
	m.JobEnded = work.ReleaseJob
	return m
}

// Batch applies the commands of one log entry. See kvtx.Batch for what it shares between them.
type Batch struct{ *kvtx.Batch }

// Begin starts a batch for the log entry at index. It reads the counters.
func (m *Machine) Begin(kv kvtx.KV, index uint64) (Batch, error) {
	b, err := m.BeginBatch(kv, index)
	return Batch{b}, err
}

// Partition returns the partition whose keys the machine reads and writes.
func (m *Machine) Partition() moraine.Partition { return m.K.P }

// Result is what applying a command gives.
type Result struct {
	// Response is for the caller; a user-level failure is its Error. Never nil.
	Response *wire.MetaResponse
	// Touched is what the command changed that clients may cache; one thing may be
	// there more than once.
	Touched []kvtx.Touch
	// Read are the inodes that it looked at, and whose attributes its answer may
	// show, a failure too.
	Read []moraine.InodeID
	// Repeated says that the answer is the one kept of an earlier command: what
	// that touched is not here.
	Repeated bool
	// Met says that the command was refused because of another session's exclusive
	// lease. It changed nothing, and may be proposed again.
	Met    record.Hold
	Events kvtx.Events
}

// Apply applies one command, at log index, and is deterministic. A user-level
// failure is in Result.Response.Error, and may still have written (the answer
// is kept). An error means that the store failed, holds a value that does not
// decode, or that the command is unknown: the node must stop, and what was
// written to kv must be thrown away.
func (m *Machine) Apply(kv kvtx.KV, index uint64, cmd *statepb.Command) (Result, error) {
	b, err := m.Begin(kv, index)
	if err != nil {
		return Result{}, err
	}
	res, err := b.Apply(cmd)
	if err != nil {
		return Result{}, err
	}
	return res, b.Flush()
}

// Apply applies the next command of the batch, as Machine.Apply does.
func (b Batch) Apply(cmd *statepb.Command) (Result, error) {
	if cmd.GetVersion() != commandVersion {
		return Result{}, &moraine.Error{Op: "apply", Kind: moraine.NewerFormat,
			Err: fmt.Errorf("command has version %d, this build knows %d", cmd.GetVersion(), commandVersion)}
	}
	if !knows(cmd) {
		return Result{}, kvtx.UnknownCommand(cmd.GetOp())
	}
	b.Count[record.CCommands]++
	b.Count[record.CWall] = max(b.Count[record.CWall]+1, uint64(max(cmd.GetWallNanos(), 0)))
	t := b.Begin()
	t.Now = int64(b.Count[record.CWall])
	t.Caller = cmd.GetCaller()
	t.SettleTime = cmd.GetSettleMillis()
	var resp *wire.MetaResponse
	var err error
	if req, ok := cmd.GetOp().(*statepb.Command_Request); ok {
		if req.Request.GetOp() == nil {
			// A service proposes only what it knows: this is from a newer one, and
			// answering it here would diverge.
			return Result{}, kvtx.UnknownCommand(nil)
		}
		resp, err = Request(t, req.Request)
	} else {
		resp, err = Guard(t, func() (*wire.MetaResponse, error) { return Internal(t, cmd) })
	}
	if err != nil {
		return Result{}, err
	}
	b.Merge(t)
	return Result{Response: resp, Touched: t.Touched, Read: t.Read, Repeated: t.Repeated, Met: t.Met, Events: t.Events}, nil
}

// Guard runs a handler; a user-level failure becomes the response, and what
// the handler wrote is thrown away.
func Guard(t *kvtx.Tx, handle func() (*wire.MetaResponse, error)) (*wire.MetaResponse, error) {
	resp, err := handle()
	if t.HoldErr != nil {
		return nil, t.HoldErr
	}
	if refused := session.RefusedByLease(t); refused != nil && (err == nil || kvtx.IsAnswer(err)) {
		return refused, nil
	}
	if err == nil {
		err = layout.DropAbandoned(t)
	}
	if err == nil {
		err = names.CheckSeals(t)
	}
	if err == nil {
		err = usage.ApplyUsage(t)
	}
	if err == nil && t.Full() {
		err = kvtx.Fail(moraine.TooLarge, "apply", "", "the operation changes more than %d records at once", kvtx.MaxCommandKeys)
	}
	if err == nil {
		return resp, nil
	}
	if !kvtx.IsAnswer(err) {
		return nil, err
	}
	t.Reset()
	return &wire.MetaResponse{Error: kvtx.WireError(err)}, nil
}

// Internal dispatches what the leader itself decides.
func Internal(t *kvtx.Tx, cmd *statepb.Command) (*wire.MetaResponse, error) {
	switch op := cmd.GetOp().(type) {
	case *statepb.Command_Init:
		return Init(t, op.Init)
	case *statepb.Command_Tick:
		return Tick(t, op.Tick)
	case *statepb.Command_AddSigningKey:
		return fleet.AddSigningKey(t, op.AddSigningKey)
	case *statepb.Command_SetFeatureLevel:
		return SetFeatureLevel(t, op.SetFeatureLevel)
	case *statepb.Command_SetMember:
		return fleet.SetMember(t, op.SetMember)
	case *statepb.Command_RaiseIncarnation:
		return fleet.RaiseIncarnation(t, op.RaiseIncarnation)
	case *statepb.Command_ExpireSessions:
		return session.ExpireSessions(t, op.ExpireSessions)
	case *statepb.Command_LapseHold:
		return session.LapseHold(t, op.LapseHold)
	}
	resp, known, err := CommandCluster(t, cmd)
	if !known {
		err = kvtx.UnknownCommand(cmd.GetOp())
	}
	return resp, err
}

// Mutate dispatches a client's mutation.
func Mutate(t *kvtx.Tx, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	if err := session.Crosses(t, req); err != nil {
		return nil, err
	}
	switch op := req.GetOp().(type) {
	case *wire.MetaRequest_OpenSession:
		return session.OpenSession(t, op.OpenSession)
	case *wire.MetaRequest_CloseSession:
		return session.CloseSession(t)
	case *wire.MetaRequest_Create:
		return names.Create(t, op.Create)
	case *wire.MetaRequest_Rename:
		return names.Rename(t, op.Rename)
	case *wire.MetaRequest_Remove:
		return ckpt.Remove(t, op.Remove)
	case *wire.MetaRequest_RemoveTree:
		return ckpt.RemoveTree(t, op.RemoveTree)
	case *wire.MetaRequest_SetAttr:
		return names.SetAttr(t, op.SetAttr)
	case *wire.MetaRequest_Link:
		return names.LinkName(t, op.Link)
	case *wire.MetaRequest_Release:
		return names.Release(t, op.Release)
	case *wire.MetaRequest_SetXattr:
		return names.SetXattr(t, op.SetXattr)
	case *wire.MetaRequest_Grant:
		return fleet.Grant(t, op.Grant)
	case *wire.MetaRequest_EndGrant:
		return fleet.EndGrant(t, op.EndGrant)
	case *wire.MetaRequest_Commit:
		return content.Commit(t, op.Commit)
	case *wire.MetaRequest_Clone:
		return content.Clone(t, op.Clone)
	case *wire.MetaRequest_SetQuota:
		return usage.SetQuota(t, op.SetQuota)
	case *wire.MetaRequest_CloneTree:
		return content.CloneTree(t, op.CloneTree)
	case *wire.MetaRequest_Concat:
		return content.Concat(t, op.Concat)
	case *wire.MetaRequest_Recount:
		return usage.BeginRecount(t)
	case *wire.MetaRequest_Hold:
		return session.HoldDirectory(t, op.Hold)
	case *wire.MetaRequest_EndHold:
		return session.EndHold(t, op.EndHold)
	}
	return MutateCluster(t, req)
}

// IsRead reports whether req changes nothing and is answered by Read. Requests
// that the service answers from its leader's memory (Place, GetTopology,
// RenewSession, Heartbeat, ReportChunks) are neither read nor mutation here.
func IsRead(req *wire.MetaRequest) bool {
	switch req.GetOp().(type) {
	case *wire.MetaRequest_GetAttr, *wire.MetaRequest_Lookup, *wire.MetaRequest_Walk, *wire.MetaRequest_ReadDir,
		*wire.MetaRequest_GetExtents, *wire.MetaRequest_GetXattr, *wire.MetaRequest_GetUsage, *wire.MetaRequest_ListQuotas:
		return true
	}
	return isClusterRead(req)
}

// Read answers a read-only request from a consistent Reader. A user-level
// failure is in the response's Error; an error means that the store failed.
func (m *Machine) Read(r kvtx.Reader, caller *statepb.Caller, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	resp, err := Read(m.View(r), caller, req)
	if err == nil {
		return resp, nil
	}
	if !kvtx.IsAnswer(err) {
		return nil, err
	}
	return &wire.MetaResponse{Error: kvtx.WireError(err)}, nil
}

func Read(v *kvtx.View, caller *statepb.Caller, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	if req.GetPartition() != uint32(v.K.P) {
		return nil, kvtx.Fail(moraine.Misrouted, "read", "", "partition %d is not served here", req.GetPartition())
	}
	sc, err := names.ReadScope(v, caller, moraine.SessionID(req.GetSession()))
	if err != nil {
		return nil, err
	}
	resp, err := Answer(v, sc, req)
	if err == nil {
		err = names.Confine(v, sc, resp)
	}
	return resp, err
}

// Answer answers a read-only request in a scope.
func Answer(v *kvtx.View, sc kvtx.Scope, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	switch op := req.GetOp().(type) {
	case *wire.MetaRequest_GetAttr:
		return names.ReadAttr(v, sc, op.GetAttr)
	case *wire.MetaRequest_Lookup:
		return names.ReadLookup(v, sc, op.Lookup)
	case *wire.MetaRequest_Walk:
		return names.ReadWalk(v, sc, op.Walk)
	case *wire.MetaRequest_ReadDir:
		return names.ReadDir(v, sc, op.ReadDir)
	case *wire.MetaRequest_GetExtents:
		return layout.ReadExtents(v, sc, op.GetExtents)
	case *wire.MetaRequest_GetXattr:
		return names.ReadXattr(v, sc, op.GetXattr)
	case *wire.MetaRequest_GetUsage:
		return usage.ReadUsage(v, sc, op.GetUsage)
	case *wire.MetaRequest_ListQuotas:
		return usage.ReadQuotas(v, sc, op.ListQuotas)
	}
	return ReadCluster(v, sc, req)
}
