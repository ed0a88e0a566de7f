package agentproto

import (
	"fmt"
	"math"

	"github.com/morainefs/moraine"
)

// Bounds of the numbers in requests.
const (
	// MaxSealTimeoutMillis bounds Begin.SealTimeoutMillis, a week: an open step takes space until it ends. The
	// service has the same bound.
	MaxSealTimeoutMillis = 7 * 24 * 3600 * 1000
	// MaxWaitMillis bounds the other times: a year and a day.
	MaxWaitMillis = 366 * 24 * 3600 * 1000
	// MaxReserve bounds Begin.Reserve, in bytes. The service has the same bound.
	MaxReserve = 1 << 50
)

// number is a field of a request, and the greatest value that it may have.
type number struct {
	field       string
	value, most int64
}

// Check returns InvalidArgument, and names the field, if a time or a count of the request is negative or past its
// bound. Lengths of slots and places in them are compared with the memory that there is, where they are used.
func (r *Request) Check() error {
	for _, n := range r.numbers() {
		if n.value < 0 || n.value > n.most {
			return &moraine.Error{Op: "agent", Kind: moraine.InvalidArgument, Err: fmt.Errorf("%s is %d: it must be from 0 to %d", n.field, n.value, n.most)}
		}
	}
	return nil
}

func (r *Request) numbers() []number {
	switch {
	case r.Open != nil:
		return []number{{"bytes", r.Open.Bytes, math.MaxInt64}}
	case r.Begin != nil:
		return []number{{"seal_timeout_ms", r.Begin.SealTimeoutMillis, MaxSealTimeoutMillis}, {"reserve", r.Begin.Reserve, MaxReserve}}
	case r.Wait != nil:
		return []number{{"timeout_ms", r.Wait.TimeoutMillis, MaxWaitMillis}}
	case r.Push != nil:
		return []number{{"deadline_ms", r.Push.DeadlineMillis, MaxWaitMillis}}
	case r.Tensors != nil:
		return []number{{"limit", int64(r.Tensors.Limit), math.MaxInt64}}
	case r.List != nil:
		return []number{{"limit", int64(r.List.Limit), math.MaxInt64}}
	}
	return nil
}
