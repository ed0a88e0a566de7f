package state

import (
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/ckpt"
	"github.com/morainefs/moraine/metadata/state/delegation"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/layout"
	"github.com/morainefs/moraine/metadata/state/movers"
	"github.com/morainefs/moraine/metadata/state/names"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/session"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/metadata/state/usage"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/morainefs/moraine/transport/wire/ops"
)

// commandVersion is the newest version of a Command that this build knows.
const commandVersion = 1

// Machine is the state machine of one partition. It has no state of its own, so many readers may
// use one Machine at once. Calls of Apply on one KV must not overlap.
type Machine struct{ *kvtx.Space }

// New returns the machine of partition p.
func New(p moraine.Partition) *Machine {
	m := &Machine{kvtx.NewSpace(p)}
	m.JobEnded = movers.ReleaseJob
	return m
}

// Batch applies the commands of one log entry. kvtx.Batch describes what it shares between them.
type Batch struct {
	*kvtx.Batch
	machine *Machine
}

// Begin starts a batch for the log entry at index. It reads the counters.
func (m *Machine) Begin(kv kvtx.KV, index uint64) (Batch, error) {
	b, err := m.BeginBatch(kv, index)
	return Batch{b, m}, err
}

// Partition returns the partition whose keys the machine reads and writes.
func (m *Machine) Partition() moraine.Partition { return m.K.P }

// Result is the result of one command.
type Result struct {
	// Response is the answer to the caller and is never nil. Its Error is a user-level failure.
	Response *wire.MetaResponse
	// Touched are the items that clients may cache and that the command changed. An item may occur
	// more than once.
	Touched []kvtx.Touch
	// Read are the inodes that the command read. The answer, also a failure, may show their
	// attributes.
	Read []moraine.InodeID
	// Repeated says that the answer was kept from an earlier command. Touched then does not have
	// that command's changes.
	Repeated bool
	// Met are delegated directories that the command met. It had no effect, no answer is kept, and
	// Response is no answer for its caller: it must be repeated after these delegations.
	Met    []kvtx.Met
	Events kvtx.Events
}

// Apply applies one command at a log index, and is deterministic. A user-level failure is in
// Result.Response.Error and may still have written the kept answer. An error means that the store
// failed, that a value does not decode, or that the command is unknown. The node must then stop and
// discard what was written to kv.
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
			Err: fmt.Errorf("the command has version %d, but this build supports up to %d: start a newer build", cmd.GetVersion(), commandVersion)}
	}
	b.Count[record.CCommands]++
	b.Count[record.CWall] = max(b.Count[record.CWall]+1, uint64(max(cmd.GetWallNanos(), 0)))
	if req := cmd.GetRequest(); req.GetBatch() != nil {
		return b.changes(cmd, req)
	}
	t := b.begin(cmd)
	var resp *wire.MetaResponse
	var err error
	if req, ok := cmd.GetOp().(*statepb.Command_Request); ok {
		h, known := b.machine.handler(req.Request)
		if !known {
			// A service proposes only commands that it knows. This one comes from a newer service,
			// and answering it would make the replicas differ.
			return Result{}, kvtx.UnknownCommand(cmd)
		}
		resp, err = request(t, h, req.Request)
	} else {
		if cmd.GetRunJob() != nil { // a job does what a person requested
			t.MayMeet(0)
		}
		resp, err = guard(t, func() (*wire.MetaResponse, error) { return lead(t, cmd) })
		if err == nil {
			resp, err = unlessMet(t, resp)
		}
	}
	if err != nil {
		return Result{}, err
	}
	b.Merge(t)
	return Result{Response: resp, Touched: t.Touched, Read: t.Read, Repeated: t.Repeated, Met: t.Met, Events: t.Events}, nil
}

// begin returns a transaction of the command.
func (b Batch) begin(cmd *statepb.Command) *kvtx.Tx {
	t := b.Begin()
	t.Now = int64(b.Count[record.CWall])
	t.Caller = cmd.GetCaller()
	t.SettleTime = cmd.GetSettleMillis()
	return t
}

// guard runs a handler. It turns a user-level failure into the response and discards the handler's
// writes.
func guard(t *kvtx.Tx, handle func() (*wire.MetaResponse, error)) (*wire.MetaResponse, error) {
	resp, err := handle()
	if err == nil {
		err = layout.DropAbandoned(t)
	}
	if err == nil {
		var moved []names.LevelChange
		if moved, err = names.CheckSeals(t); err == nil {
			err = ckpt.FollowLevels(t, moved)
		}
	}
	if err == nil {
		err = usage.ApplyUsage(t)
	}
	if err == nil && t.Full() {
		err = kvtx.Fail(moraine.TooLarge, "apply", "", "the request changes more than %d records at once: split it", kvtx.MaxCommandKeys)
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

// lead applies a command that the leader decided itself.
func lead(t *kvtx.Tx, cmd *statepb.Command) (*wire.MetaResponse, error) {
	do := commandOf(cmd)
	if do == nil {
		return nil, kvtx.UnknownCommand(cmd)
	}
	return do(t, cmd)
}

// mutate applies a client's mutation in the command's scope.
func mutate(t *kvtx.Tx, h handler, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	if err := session.Crosses(t, req); err != nil {
		return nil, err
	}
	if h.mutate == nil {
		return nil, kvtx.Fail(moraine.Unimplemented, "apply", "", "the state does not apply request %T", req.GetOp())
	}
	resp, err := h.mutate(t, req)
	if err == nil {
		err = names.Confine(&t.View, t.Scope, resp)
	}
	return resp, err
}

// Read answers a read request from a consistent Reader. A user-level failure is in the response's
// Error; an error means that the store failed.
func (m *Machine) Read(r kvtx.Reader, caller *statepb.Caller, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	resp, err := answer(m.View(r), caller, req)
	if err == nil {
		return resp, nil
	}
	if !kvtx.IsAnswer(err) {
		return nil, err
	}
	return &wire.MetaResponse{Error: kvtx.WireError(err)}, nil
}

// answer is Read on a view. It returns failures as errors.
func answer(v *kvtx.View, caller *statepb.Caller, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	if req.GetPartition() != uint32(v.K.P) {
		return nil, kvtx.Fail(moraine.Misrouted, "read", "", "this server does not serve partition %d", req.GetPartition())
	}
	sc, err := names.ReadScope(v, caller, moraine.SessionID(req.GetSession()))
	if err != nil {
		return nil, err
	}
	h := handlerOf(ops.Of(req))
	if h.read == nil {
		return nil, kvtx.Fail(moraine.Unimplemented, "read", "", "the state does not answer request %T as a read", req.GetOp())
	}
	resp, err := h.read(v, sc, req)
	if err == nil {
		err = names.Confine(v, sc, resp)
	}
	if v.Meeting != nil {
		var failed error
		if v.Seen.Met, failed = delegation.Met(v, sc); failed != nil {
			return nil, failed
		}
	}
	return resp, err
}
