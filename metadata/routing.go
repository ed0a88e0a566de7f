package metadata

import (
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/transport/wire"
)

// loadRouting takes the routing epoch over from the state.
func (l *leader) loadRouting() error {
	return l.Store.View(func(r state.Reader, _ uint64) error {
		epoch, err := l.Machine.RoutingEpoch(r)
		if err == nil {
			l.sawRouting(epoch)
		}
		return err
	})
}

// sawRouting notes an epoch that is in the state: it only rises.
func (l *leader) sawRouting(epoch uint64) {
	for {
		have := l.routing.Load()
		if have >= epoch || l.routing.CompareAndSwap(have, epoch) {
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
func (l *leader) routed(o *op, req *wire.MetaRequest) error {
	present := l.routing.Load()
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
