package fleet

import (
	"time"

	"github.com/morainefs/moraine/transport/wire"
)

// Fullness is a leader's knowledge of how full one device of one host is, for tests.
type Fullness struct{ t *topology }

// NewFullness starts with device 1 on host n1.
func NewFullness(suspect time.Duration, now time.Time) *Fullness {
	f := &Fullness{t: NewTopology(1, suspect)}
	f.t.Load([]*wire.Host{{Id: "n1", Devices: []*wire.Device{{Id: 1, State: DeviceIn}}}}, now)
	return f
}

// Seen receives a heartbeat, Deleted an acknowledgement.
func (f *Fullness) Seen(used uint64, now time.Time) {
	f.t.NoteHeartbeat("n1", []*wire.Device{{Id: 1, Capacity: 1000, Used: used}}, f.t.Mark(), now)
}

func (f *Fullness) Deleted(bytes uint64, now time.Time) {
	f.t.deleted("n1", map[uint32]uint64{1: bytes}, now)
}

// Used returns how many bytes the leader assumes on the device, and whether chunks may be moved
// from it.
func (f *Fullness) Used() (bytes uint64, gives bool) {
	_, out, _ := f.t.Fillings()
	return out[0].Used, out[0].Gives
}
