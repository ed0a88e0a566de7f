package state

import (
	"fmt"
	"sync/atomic"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// commandVersion is the newest meaning of a Command that this build knows.
const commandVersion = 1

// Machine is the state machine of one partition. It keeps no state of its own,
// so that a Machine may be used by many readers at once; Apply calls on one KV
// must not overlap.
type Machine struct {
	k     keys
	hints grantHints            // to save searches; nothing depends on them
	spare atomic.Pointer[Batch] // one that was flushed, for its memory
}

// New returns the machine of partition p.
func New(p moraine.Partition) *Machine { return &Machine{k: keys{p: p}} }

// Partition returns the partition whose keys the machine reads and writes.
func (m *Machine) Partition() moraine.Partition { return m.k.p }

// Result is what applying a command gives.
type Result struct {
	// Response is for the caller; a user-level failure is its Error. Never nil.
	Response *wire.MetaResponse
	// Touched is what the command changed that clients may cache; one thing may be
	// there more than once.
	Touched []Touch
	// Read are the inodes that it looked at, and whose attributes its answer may
	// show, a failure too.
	Read []moraine.InodeID
	// Repeated says that the answer is the one kept of an earlier command: what
	// that touched is not here.
	Repeated bool
	// Met says that the command was refused because of another session's exclusive
	// lease. It changed nothing, and may be proposed again.
	Met    record.Hold
	Events Events
}

// Events is what a leader should wake up for.
type Events struct {
	JobsReady      bool // a job is there to be leased or run
	RepairsQueued  bool
	Diverged       bool   // this replica's state is not the one of the replica that proposed the entry
	DevicesChanged bool   // a host or device was registered, or a device's state changed
	Deletions      bool   // there are new tombstones
	Settled        bool   // chunks that were in memory alone are on their device, or gone
	Routing        uint64 // the epoch that began, 0 where none did
	TreeMoved      bool   // a directory has another parent than before, or none
	DirUnnamed     bool   // a directory lost a name: it was renamed or removed
	StepsChanged   []*wire.StepKey
	SessionsEnded  []moraine.SessionID
	Holds          []record.Hold // exclusive leases that were given, and, with no session, that ended
}

// Apply applies one command, at log index, and is deterministic. A user-level
// failure is in Result.Response.Error, and may still have written (the answer
// is kept). An error means that the store failed, holds a value that does not
// decode, or that the command is unknown: the node must stop, and what was
// written to kv must be thrown away.
func (m *Machine) Apply(kv KV, index uint64, cmd *statepb.Command) (Result, error) {
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
func (b *Batch) Apply(cmd *statepb.Command) (Result, error) {
	if cmd.GetVersion() != commandVersion {
		return Result{}, &moraine.Error{Op: "apply", Kind: moraine.NewerFormat,
			Err: fmt.Errorf("command has version %d, this build knows %d", cmd.GetVersion(), commandVersion)}
	}
	if !knows(cmd) {
		return Result{}, unknownCommand(cmd.GetOp())
	}
	b.count[record.CCommands]++
	b.count[record.CWall] = max(b.count[record.CWall]+1, uint64(max(cmd.GetWallNanos(), 0)))
	t := b.begin()
	t.now = int64(b.count[record.CWall])
	t.caller = cmd.GetCaller()
	t.settleTime = cmd.GetSettleMillis()
	var resp *wire.MetaResponse
	var err error
	if req, ok := cmd.GetOp().(*statepb.Command_Request); ok {
		if req.Request.GetOp() == nil {
			// A service proposes only what it knows: this is from a newer one, and
			// answering it here would diverge.
			return Result{}, unknownCommand(nil)
		}
		resp, err = t.request(req.Request)
	} else {
		resp, err = t.guard(func() (*wire.MetaResponse, error) { return b.m.internal(t, cmd) })
	}
	if err != nil {
		return Result{}, err
	}
	b.merge(t)
	return Result{Response: resp, Touched: t.touched, Read: t.read, Repeated: t.repeated, Met: t.met, Events: t.events}, nil
}

// guard runs a handler; a user-level failure becomes the response, and what
// the handler wrote is thrown away.
func (t *tx) guard(handle func() (*wire.MetaResponse, error)) (*wire.MetaResponse, error) {
	resp, err := handle()
	if t.holdErr != nil {
		return nil, t.holdErr
	}
	if refused := t.refusedByLease(); refused != nil && (err == nil || isAnswer(err)) {
		return refused, nil
	}
	if err == nil {
		err = t.m.dropAbandoned(t)
	}
	if err == nil {
		err = t.checkSeals()
	}
	if err == nil {
		err = t.m.applyUsage(t)
	}
	if err == nil && t.full() {
		err = fail(moraine.TooLarge, "apply", "", "the operation changes more than %d records at once", maxCommandKeys)
	}
	if err == nil {
		return resp, nil
	}
	if !isAnswer(err) {
		return nil, err
	}
	t.reset()
	return &wire.MetaResponse{Error: WireError(err)}, nil
}

// internal dispatches what the leader itself decides.
func (m *Machine) internal(t *tx, cmd *statepb.Command) (*wire.MetaResponse, error) {
	switch op := cmd.GetOp().(type) {
	case *statepb.Command_Init:
		return m.init(t, op.Init)
	case *statepb.Command_Tick:
		return m.tick(t, op.Tick)
	case *statepb.Command_AddSigningKey:
		return m.addSigningKey(t, op.AddSigningKey)
	case *statepb.Command_SetFeatureLevel:
		return m.setFeatureLevel(t, op.SetFeatureLevel)
	case *statepb.Command_SetMember:
		return m.setMember(t, op.SetMember)
	case *statepb.Command_RaiseIncarnation:
		return m.raiseIncarnation(t, op.RaiseIncarnation)
	case *statepb.Command_ExpireSessions:
		return m.expireSessions(t, op.ExpireSessions)
	case *statepb.Command_LapseHold:
		return m.lapseHold(t, op.LapseHold)
	}
	resp, known, err := m.commandCluster(t, cmd)
	if !known {
		err = unknownCommand(cmd.GetOp())
	}
	return resp, err
}

// unknownCommand stops the node: what was proposed by a newer build is not known here, and
// to go on without it would be to differ from the others.
func unknownCommand(op any) error {
	what := ""
	if r, ok := op.(*statepb.Command_Request); ok {
		op = r.Request.GetOp()
	}
	if op != nil {
		what = fmt.Sprintf(" (%T)", op)
	}
	return &moraine.Error{Op: "apply", Kind: moraine.NewerFormat,
		Err: fmt.Errorf("the log has a command that this build does not know%s: a newer build proposed it", what)}
}

// mutate dispatches a client's mutation.
func (m *Machine) mutate(t *tx, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	if err := t.crosses(req); err != nil {
		return nil, err
	}
	switch op := req.GetOp().(type) {
	case *wire.MetaRequest_OpenSession:
		return m.openSession(t, op.OpenSession)
	case *wire.MetaRequest_CloseSession:
		return m.closeSession(t)
	case *wire.MetaRequest_Create:
		return m.create(t, op.Create)
	case *wire.MetaRequest_Rename:
		return m.rename(t, op.Rename)
	case *wire.MetaRequest_Remove:
		return m.remove(t, op.Remove)
	case *wire.MetaRequest_RemoveTree:
		return m.removeTree(t, op.RemoveTree)
	case *wire.MetaRequest_SetAttr:
		return m.setAttr(t, op.SetAttr)
	case *wire.MetaRequest_Link:
		return m.linkName(t, op.Link)
	case *wire.MetaRequest_Release:
		return m.release(t, op.Release)
	case *wire.MetaRequest_SetXattr:
		return m.setXattr(t, op.SetXattr)
	case *wire.MetaRequest_Grant:
		return m.grant(t, op.Grant)
	case *wire.MetaRequest_EndGrant:
		return m.endGrant(t, op.EndGrant)
	case *wire.MetaRequest_Commit:
		return m.commit(t, op.Commit)
	case *wire.MetaRequest_Clone:
		return m.clone(t, op.Clone)
	case *wire.MetaRequest_SetQuota:
		return m.setQuota(t, op.SetQuota)
	case *wire.MetaRequest_CloneTree:
		return m.cloneTree(t, op.CloneTree)
	case *wire.MetaRequest_Concat:
		return m.concat(t, op.Concat)
	case *wire.MetaRequest_Recount:
		return m.beginRecount(t)
	case *wire.MetaRequest_Hold:
		return m.holdDirectory(t, op.Hold)
	case *wire.MetaRequest_EndHold:
		return m.endHold(t, op.EndHold)
	}
	return m.mutateCluster(t, req)
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
func (m *Machine) Read(r Reader, caller *statepb.Caller, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	resp, err := m.read(m.view(r), caller, req)
	if err == nil {
		return resp, nil
	}
	if !isAnswer(err) {
		return nil, err
	}
	return &wire.MetaResponse{Error: WireError(err)}, nil
}

func (m *Machine) read(v *view, caller *statepb.Caller, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	if req.GetPartition() != uint32(m.k.p) {
		return nil, fail(moraine.Misrouted, "read", "", "partition %d is not served here", req.GetPartition())
	}
	sc, err := v.readScope(caller, moraine.SessionID(req.GetSession()))
	if err != nil {
		return nil, err
	}
	resp, err := v.answer(sc, req)
	if err == nil {
		err = v.confine(sc, resp)
	}
	return resp, err
}

// answer answers a read-only request in a scope.
func (v *view) answer(sc scope, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	switch op := req.GetOp().(type) {
	case *wire.MetaRequest_GetAttr:
		return v.readAttr(sc, op.GetAttr)
	case *wire.MetaRequest_Lookup:
		return v.readLookup(sc, op.Lookup)
	case *wire.MetaRequest_Walk:
		return v.readWalk(sc, op.Walk)
	case *wire.MetaRequest_ReadDir:
		return v.readDir(sc, op.ReadDir)
	case *wire.MetaRequest_GetExtents:
		return v.readExtents(sc, op.GetExtents)
	case *wire.MetaRequest_GetXattr:
		return v.readXattr(sc, op.GetXattr)
	case *wire.MetaRequest_GetUsage:
		return v.readUsage(sc, op.GetUsage)
	case *wire.MetaRequest_ListQuotas:
		return v.readQuotas(sc, op.ListQuotas)
	}
	return v.readCluster(sc, req)
}

// done answers a mutation that has nothing to say.
func done() *wire.MetaResponse {
	return &wire.MetaResponse{Result: &wire.MetaResponse_Done{Done: &wire.Done{}}}
}

// maxErrorText bounds the texts of an answer that is a failure, in bytes. Answers are kept
// in the state, and the name that a request is refused for may be as long as the request.
const maxErrorText = 1 << 10

// WireError returns an error as it travels, with texts of maxErrorText bytes at most.
func WireError(err error) *wire.Error {
	m, _ := err.(*moraine.Error)
	e := wire.ErrorToWire(err, m, wire.MaxText)
	e.Op, e.Ref, e.Text = record.Clip(e.Op, maxErrorText), record.Clip(e.Ref, maxErrorText), record.Clip(e.Text, maxErrorText)
	return e
}
