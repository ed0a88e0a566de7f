package raftstore

import (
	"fmt"
	"sync"
	"time"

	"github.com/morainefs/moraine"
)

// gatekeeper decides with which nodes this one communicates.
type gatekeeper struct {
	cfg         *Config
	deps        *Deps
	incarnation *incarnations

	mu      sync.Mutex             // guards refused
	refused map[greeting]time.Time // the nodes whose refusal was logged, and when
}

func (gk *gatekeeper) greeter() *greeter {
	return &greeter{timeout: gk.cfg.RPCTimeout, judge: gk.judge, self: func() greeting {
		return greeting{cluster: gk.cfg.Cluster, node: gk.cfg.Node, incarnation: gk.incarnation.current()}
	}}
}

// judge decides whether this node may communicate with another one. It ends this node if the other
// one has a newer incarnation that outlives it.
func (gk *gatekeeper) judge(other greeting) error {
	own := gk.incarnation.current()
	bad := func(kind moraine.Kind, format string, args ...any) error {
		gk.deps.Metrics.Fenced.Inc()
		err := &moraine.Error{Op: "raftstore.greet", Ref: other.node, Kind: kind, Err: fmt.Errorf(format, args...)}
		if gk.newlyRefused(other) {
			gk.deps.Log.Error("this server refused a replication request of another metadata server", "server", other.node, "err", err)
		}
		return err
	}
	switch {
	case other.cluster != gk.cfg.Cluster:
		return bad(moraine.WrongCluster, "the server belongs to cluster %s, not to %s", other.cluster, gk.cfg.Cluster)
	case own.Number == 0 && gk.incarnation.hadEntries && (other.incarnation.Number > 1 || !other.incarnation.Mark.IsZero()):
		return bad(moraine.Fenced, "the server has incarnation %v, but the --data here is of a cluster that never began: start this server on an empty --data, with --join", other.incarnation)
	case !other.incarnation.Differs(own):
		return nil
	case other.incarnation.Outlives(own):
		err := bad(moraine.Fenced, "the server has incarnation %v, but the --data here has the older %v", other.incarnation, own)
		gk.incarnation.abandon(other.incarnation, "the metadata server "+other.node) //nolint:errcheck // Run returns it
		return err
	case own.Outlives(other.incarnation):
		return bad(moraine.Fenced, "the server has the abandoned incarnation %v, and the current one is %v: do not start it again", other.incarnation, own)
	}
	return bad(moraine.Fenced, "the server has incarnation %v, but this one has %v under the same number: stop the servers of the unwanted one for good", other.incarnation, own)
}

// newlyRefused reports whether no refusal of that node was logged recently.
func (gk *gatekeeper) newlyRefused(other greeting) bool {
	gk.mu.Lock()
	defer gk.mu.Unlock()
	now := gk.deps.Clock.Now()
	if gk.refused == nil || len(gk.refused) > maxNodeName {
		gk.refused = map[greeting]time.Time{}
	}
	last, said := gk.refused[other]
	if said && now.Sub(last) < sayAgain {
		return false
	}
	gk.refused[other] = now
	return true
}
