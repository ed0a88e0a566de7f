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

// loadRouting takes the routing epoch over from the state.
func (g *routing) loadRouting() error {
	return g.Store.View(func(r kvtx.Reader, _ uint64) error {
		epoch, err := statesession.RoutingEpoch(g.Machine.View(r))
		if err == nil {
			g.sawRouting(epoch)
		}
		return err
	})
}

// sawRouting notes an epoch that is in the state: it only rises.
func (g *routing) sawRouting(epoch uint64) {
	for {
		have := g.epoch.Load()
		if have >= epoch || g.epoch.CompareAndSwap(have, epoch) {
			return
		}
	}
}

// routed fails with Misrouted where a request was routed by another epoch than the
// present one. Reads are held against it here, so that after a rise is answered
// none by the old one is; a mutation is held against it once more when it is
// applied. Who has a session learns the epoch with it. A request without one is
// what a server or an administrator asks of whoever leads, and needs no routing;
// neither do clients of earlier builds, until the epoch rises for the first time.
func (g *routing) routed(o *op, req *wire.MetaRequest) error {
	present := g.epoch.Load()
	known := req.RoutingEpoch
	if o.unrouted || known == present || known == 0 && (req.Session == 0 || present <= 1) {
		return nil
	}
	return &moraine.Error{Kind: moraine.Misrouted, Err: fmt.Errorf("the routing epoch is %d, not %d: renew the session to learn it", present, known)}
}

// unrouted marks an op that tells its caller the routing, or is about the session
// alone.
func unrouted(o op) op {
	o.unrouted = true
	return o
}

// routing is what a leadership knows of the routing of requests.
type routing struct {
	*lead.Term
	epoch atomic.Uint64 // the present one
}
