package metadata

import (
	"fmt"
	"sync/atomic"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	statesession "github.com/morainefs/moraine/metadata/state/session"
	"github.com/morainefs/moraine/transport/wire"
)

// loadRouting loads the routing epoch from the state.
func (g *routing) loadRouting() error {
	return g.Store.View(func(r kvtx.Reader, _ uint64) error {
		epoch, err := statesession.RoutingEpoch(g.Machine.View(r))
		if err == nil {
			g.sawRouting(epoch)
		}
		return err
	})
}

// sawRouting records an epoch of the state; it only grows.
func (g *routing) sawRouting(epoch uint64) {
	for {
		have := g.epoch.Load()
		if have >= epoch || g.epoch.CompareAndSwap(have, epoch) {
			return
		}
	}
}

// routed fails with Misrouted if a request has another routing epoch than the present one. Reads
// are checked here, so that no read with the old epoch is answered after a rise. A mutation is
// checked again when it is applied. A client learns the epoch with its session. Requests of servers
// and administrators without a session go to whichever server leads, and need no routing.
func (g *routing) routed(o *op, req *wire.MetaRequest) error {
	present := g.epoch.Load()
	known := req.RoutingEpoch
	if o.Routing == wire.Operation_ANY_EPOCH || known == present || known == 0 && req.Session == 0 {
		return nil
	}
	return &moraine.Error{Kind: moraine.Misrouted, Err: fmt.Errorf("the routing epoch is %d, but the request has %d: renew the session", present, known)}
}

// routing is a leadership's knowledge of the routing.
type routing struct {
	*lead.Term
	epoch atomic.Uint64 // the present epoch
}
