package metadata

import (
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// OpName is what the service calls a request; "" where it does not know it.
func OpName(req *wire.MetaRequest) string {
	if op := newOpTable(NewMetrics(nil)).of(req); op != nil {
		return op.name
	}
	return ""
}

// PlanRepair is planRepair over hosts, for tests.
func PlanRepair(hosts []*wire.Host, s *moraine.Stripe, bad uint32) []*wire.Intent {
	t := newTopology(1, time.Second)
	now := time.Now()
	t.load(hosts, now)
	for _, h := range hosts {
		if h.Alive {
			t.heard(h.Id, nil, now.Add(time.Minute))
		}
	}
	t.judge(now.Add(time.Minute), time.Hour, 0)
	return planRepair(t.view(), s, bad)
}
