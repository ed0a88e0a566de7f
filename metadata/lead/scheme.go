package lead

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// SchemeToWire is a scheme as messages have it.
func SchemeToWire(s moraine.Scheme) *wire.Scheme {
	return &wire.Scheme{K: uint32(s.K), M: uint32(s.M)}
}
