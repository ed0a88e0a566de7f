package kvtx

import (
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

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

// UnknownCommand stops the node: what was proposed by a newer build is not known here, and
// to go on without it would be to differ from the others.
func UnknownCommand(op any) error {
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

// Done answers a mutation that has nothing to say.
func Done() *wire.MetaResponse {
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
