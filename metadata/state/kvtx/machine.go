package kvtx

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// Events tells the leader which of its loops have work after a command.
type Events struct {
	JobsReady      bool // a job can be leased or run
	RepairsQueued  bool
	Diverged       bool   // this replica's state differs from that of the replica that proposed the entry
	DevicesChanged bool   // a host or device was registered, or a device's state changed
	Deletions      bool   // there are new tombstones
	Settled        bool   // chunks that were only in memory are now durable, or gone
	Routing        uint64 // the routing epoch that began; 0 if none did
	TreeMoved      bool   // a directory has another parent, or none
	DirUnnamed     bool   // a directory lost a name: it was renamed or removed
	StepsChanged   []*wire.StepKey
	SessionsEnded  []moraine.SessionID
	LocksChanged   []moraine.InodeID // inodes whose advisory locks changed
	Undelegated    []Met             // delegations that have ended
}

// Add adds the events of a later command.
func (e *Events) Add(o Events) {
	e.JobsReady = e.JobsReady || o.JobsReady
	e.RepairsQueued = e.RepairsQueued || o.RepairsQueued
	e.Diverged = e.Diverged || o.Diverged
	e.DevicesChanged = e.DevicesChanged || o.DevicesChanged
	e.Deletions = e.Deletions || o.Deletions
	e.Settled = e.Settled || o.Settled
	e.Routing = max(e.Routing, o.Routing)
	e.TreeMoved = e.TreeMoved || o.TreeMoved
	e.DirUnnamed = e.DirUnnamed || o.DirUnnamed
	e.StepsChanged = append(e.StepsChanged, o.StepsChanged...)
	e.SessionsEnded = append(e.SessionsEnded, o.SessionsEnded...)
	e.LocksChanged = append(e.LocksChanged, o.LocksChanged...)
	e.Undelegated = append(e.Undelegated, o.Undelegated...)
}

// UnknownCommand returns the error that stops the node. A newer build proposed a command that this
// build does not know; continuing without it would make the replicas differ.
func UnknownCommand(cmd *statepb.Command) error {
	m := cmd.ProtoReflect()
	if req := cmd.GetRequest(); req != nil {
		m = req.ProtoReflect()
	}
	what := ""
	if f := wire.Op(m.Interface()); f != nil {
		what = fmt.Sprintf(" (%s)", f.Name())
	} else if field, _, n := protowire.ConsumeTag(m.GetUnknown()); n > 0 {
		what = fmt.Sprintf(" (field %d of %s)", field, m.Descriptor().Name())
	}
	return &moraine.Error{Op: "apply", Kind: moraine.NewerFormat,
		Err: fmt.Errorf("the log has a command that this build does not know%s: start the newer build that proposed it", what)}
}

// Done answers a mutation that returns no data.
func Done() *wire.MetaResponse {
	return &wire.MetaResponse{Result: &wire.MetaResponse_Done{Done: &wire.Done{}}}
}

// maxErrorText bounds each text of an error answer, in bytes. The state keeps answers, and the name
// in a refused request may be as long as the request.
const maxErrorText = 1 << 10

// WireError converts an error for the wire and cuts its texts to maxErrorText bytes.
func WireError(err error) *wire.Error {
	m, _ := err.(*moraine.Error)
	e := wire.ErrorToWire(err, m, wire.MaxText)
	e.Op, e.Ref, e.Text = record.Clip(e.Op, maxErrorText), record.Clip(e.Ref, maxErrorText), record.Clip(e.Text, maxErrorText)
	return e
}
