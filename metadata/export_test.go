package metadata

import (
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/transport/wire"
)

// OpName is what the service calls a request; "" where it does not know it.
func OpName(req *wire.MetaRequest) string {
	if op := newOpTable(lead.NewMetrics(nil)).of(req); op != nil {
		return op.name
	}
	return ""
}

// SetMaxMissing sets how many missing chunks one slice of a report queues, and returns what
// sets it back.
func SetMaxMissing(n uint64) (restore func()) {
	was := maxMissing
	maxMissing = n
	return func() { maxMissing = was }
}
