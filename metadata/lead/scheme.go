package lead

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// SchemeToWire returns the wire form of a scheme.
func SchemeToWire(s moraine.Scheme) *wire.Scheme {
	return &wire.Scheme{K: uint32(s.K), M: uint32(s.M)}
}
