package metadata

import (
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/transport/wire"
)

// OpName is the service's name of a request; "" if it does not know the request.
func OpName(req *wire.MetaRequest) string {
	if op := newOpTable(lead.NewMetrics(nil), moraine.FeatureLevel).of(req); op != nil {
		return op.Name
	}
	return ""
}

// SetMaxMissing sets how many missing chunks one slice of a report queues, and returns a function
// that restores the former value.
func SetMaxMissing(n uint64) (restore func()) {
	was := maxMissing
	maxMissing = n
	return func() { maxMissing = was }
}

// SetJudgeFor sets how long one slice of a report is judged, and returns a function that restores
// the former value.
func SetJudgeFor(d time.Duration) (restore func()) {
	was := judgeFor
	judgeFor = d
	return func() { judgeFor = was }
}
