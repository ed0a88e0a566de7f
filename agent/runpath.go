package agent

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
	"github.com/morainefs/moraine/internal/address"
)

// cleanRun replaces the path of a run in a request by its one form: trainers, commands and other languages write
// it with slashes at its end, without one at its begin, or as moraine:///PATH.
func cleanRun(req *agentproto.Request) error {
	var run *string
	switch {
	case req.Open != nil:
		run = &req.Open.Run
	case req.Wait != nil:
		run = &req.Wait.Run
	case req.Read != nil:
		run = &req.Read.Run
	case req.Progress != nil:
		run = &req.Progress.Run
	case req.Push != nil && req.Push.Run != "": // without one it is about all runs
		run = &req.Push.Run
	default:
		return nil
	}
	clean, err := address.CleanPath(*run)
	if err != nil {
		return &moraine.Error{Op: "agent", Ref: *run, Kind: moraine.InvalidArgument, Err: err}
	}
	*run = clean
	return nil
}
