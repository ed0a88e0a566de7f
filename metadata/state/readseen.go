package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/morainefs/moraine/transport/wire/ops"
)

// ReadSeen is Read that also returns the cacheable items that the answer shows.
//
// session is the caller's, which the request need not name: it meets none of its own delegations.
// If seen.Met is not empty, the answer must not be sent.
func (m *Machine) ReadSeen(r kvtx.Reader, caller *statepb.Caller, req *wire.MetaRequest, session moraine.SessionID) (*wire.MetaResponse, kvtx.Seen, error) {
	var seen kvtx.Seen
	v := m.View(r)
	v.Seen = &seen
	if waits(caller) {
		v.Meeting = &kvtx.Meeting{Session: session}
	}
	resp, err := answer(v, caller, req)
	seen.All = true
	if o := ops.Of(req); o != nil && o.Leased {
		// A failed request shows the items that it read. A lookup that found nothing shows the
		// entry.
		_, lookup := req.GetOp().(*wire.MetaRequest_Lookup)
		seen.All = err != nil && (!lookup || len(seen.Touches) == 0)
	}
	if err == nil {
		return resp, seen, nil
	}
	if !kvtx.IsAnswer(err) {
		return nil, seen, err
	}
	return &wire.MetaResponse{Error: kvtx.WireError(err)}, seen, nil
}
