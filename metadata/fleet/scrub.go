package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/transport/wire"
)

// scrubs are the devices that must be scrubbed ahead of their schedule, until their server reports
// that the scrub began. A new leader does not know them. The administrator then sees in the status
// that no scrub began, and requests it again.
type scrubs struct {
	mu sync.Mutex
	// wanted has, for each device, the end of its last scrub at the request. If a scrub has ended
	// since, however quickly, the requested one began.
	wanted map[uint32]int64
}

// StartScrub records the devices that must be scrubbed.
func (f *Fleet) StartScrub(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	if err := f.Store.ReadBarrier(ctx); err != nil {
		return nil, err
	}
	asked := c.Req.GetStartScrub()
	v := f.Topology.View()
	if asked.Host != "" && v.Hosts[asked.Host] == nil {
		return nil, &moraine.Error{Ref: asked.Host, Kind: moraine.NotFound}
	}
	for _, id := range asked.Devices {
		d, ok := v.Devices[id]
		switch {
		case !ok:
			return nil, &moraine.Error{Ref: fmt.Sprintf("device %d", id), Kind: moraine.NotFound}
		case d.State == DeviceRetired:
			return nil, &moraine.Error{Ref: fmt.Sprintf("device %d", id), Kind: moraine.InvalidArgument, Err: errors.New("the device is retired, so that no server reads it")}
		case asked.Host != "" && d.Host != asked.Host:
			return nil, &moraine.Error{Ref: fmt.Sprintf("device %d", id), Kind: moraine.InvalidArgument, Err: fmt.Errorf("the device belongs to host %s, not to host %s", d.Host, asked.Host)}
		}
	}
	f.scrubs.mu.Lock()
	defer f.scrubs.mu.Unlock()
	if f.scrubs.wanted == nil {
		f.scrubs.wanted = make(map[uint32]int64)
	}
	for id, d := range v.Devices {
		if d.State == DeviceRetired || (asked.Host != "" && d.Host != asked.Host) ||
			(len(asked.Devices) > 0 && !slices.Contains(asked.Devices, id)) {
			continue
		}
		f.scrubs.wanted[id] = d.Scrub.GetLastDone()
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Done{Done: &wire.Done{}}}, nil
}

// tell returns the heartbeat's devices that must begin a scrub, and forgets those that have begun.
func (s *scrubs) tell(devices []*wire.Device) (begin []uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range devices {
		last, wanted := s.wanted[d.Id]
		if !wanted {
			continue
		}
		if d.Scrub.GetRunning() || d.Scrub.GetLastDone() != last {
			delete(s.wanted, d.Id)
			continue
		}
		begin = append(begin, d.Id)
	}
	return begin
}
