package metadata

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// applyTimes measures how long commands take to apply. Nothing else is applied meanwhile, so the
// longest time is what other commands may have to wait. Only the goroutine that applies entries
// uses it.
type applyTimes struct {
	metrics *lead.Metrics
	by      map[protoreflect.FieldDescriptor]*applyTime
}

type applyTime struct {
	all     prometheus.Observer
	gauge   prometheus.Gauge
	longest time.Duration
}

func newApplyTimes(m *lead.Metrics) *applyTimes {
	return &applyTimes{metrics: m, by: map[protoreflect.FieldDescriptor]*applyTime{}}
}

// note counts one command.
func (a *applyTimes) note(cmd *statepb.Command, took time.Duration) {
	what := operation(cmd)
	if what == nil {
		return
	}
	t := a.by[what]
	if t == nil {
		name := string(what.Name())
		t = &applyTime{all: a.metrics.Apply.WithLabelValues(name), gauge: a.metrics.ApplyLongest.WithLabelValues(name)}
		a.by[what] = t
	}
	t.all.Observe(took.Seconds())
	if took > t.longest {
		t.longest = took
		t.gauge.Set(took.Seconds())
	}
}

// operation returns the field of a command: of the request in it, or of the leader's own command.
func operation(cmd *statepb.Command) protoreflect.FieldDescriptor {
	if req := cmd.GetRequest(); req != nil {
		return wire.Op(req)
	}
	return wire.Op(cmd)
}
