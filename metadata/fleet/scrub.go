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

// scrubs are the devices that are to be scrubbed ahead of their schedule, until
// their server says that it has begun. A leader that is lost takes them with it:
// whoever asked sees by the status that nothing has begun, and asks again.
type scrubs struct {
	mu sync.Mutex
	// wanted has when the device had last ended a scrub as it was asked for: one
	// that has ended since, however quickly, was begun.
	wanted map[uint32]int64
}

// StartScrub notes the devices that are to be scrubbed.
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
			return nil, &moraine.Error{Ref: fmt.Sprintf("device %d", id), Kind: moraine.InvalidArgument, Err: errors.New("it is retired: nothing of it is read any more")}
		case asked.Host != "" && d.Host != asked.Host:
			return nil, &moraine.Error{Ref: fmt.Sprintf("device %d", id), Kind: moraine.InvalidArgument, Err: fmt.Errorf("it is not of host %s, but of %s", asked.Host, d.Host)}
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

// tell returns those of a heartbeat's devices that are to begin, and forgets the
// ones that have.
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
