package fleet

import (
	"context"

	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/transport/wire"
)

// SetMaintenance announces a host's absence, unless a stripe would have no chunk to spare
// meanwhile. Silent hosts, and those away already, count as missing too. The entry names the hosts
// that were away at the judgement, so that of two simultaneous announcements one is judged again.
func (f *Fleet) SetMaintenance(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	asked := c.Req.GetSetMaintenance()
	if asked.Millis == 0 {
		return f.Mutate(ctx, c)
	}
	var others []string
	err := f.Store.View(func(r kvtx.Reader, _ uint64) (err error) {
		others, err = fleet.HostsAway(f.Machine.View(r), asked.Host)
		return err
	})
	if err != nil {
		return nil, err
	}
	if !asked.Force {
		if err := f.absences.mayBeAway(ctx, asked.Host, others); err != nil {
			return nil, err
		}
	}
	req := proto.CloneOf(c.Req)
	req.GetSetMaintenance().Others = others
	return f.Propose(ctx, c.Caller, req)
}

// maxClaimed bounds the chunks counted on a draining device.
const maxClaimed = 4096

// CountDraining returns a topology in which each device that is draining or out has the number of
// its chunks that stripes still name. It reads the list of such devices from the state: the
// leader's copy is slightly older, and an administrator would trust an empty answer.
func (f *Fleet) CountDraining(r kvtx.Reader, topology *wire.Topology) (*wire.Topology, error) {
	devices, err := fleet.Devices(f.Machine.View(r))
	if err != nil {
		return nil, err
	}
	claimed := make(map[uint32]uint64)
	states := make(map[uint32]wire.DeviceState)
	for _, d := range devices {
		if d.State != deviceDraining && d.State != DeviceOut {
			continue
		}
		page, err := fleet.ExpectedChunks(f.Machine.View(r), moraine.DeviceID(d.Id), 0, 0, maxClaimed)
		if err != nil {
			return nil, err
		}
		claimed[d.Id], states[d.Id] = uint64(len(page)), d.State
	}
	if len(claimed) == 0 {
		return topology, nil
	}
	out := proto.CloneOf(topology)
	for _, h := range out.Hosts {
		for _, d := range h.Devices {
			if n, drained := claimed[d.Id]; drained {
				d.State, d.Claimed = states[d.Id], n
			}
		}
	}
	return out, nil
}

// Repairing reports whether stripes are being repaired, searched for, or moved by jobs of an
// earlier leader's round.
func (f *Fleet) Repairing(r kvtx.Reader) (bool, error) {
	running, err := fleet.RepairHopeful(f.Machine.View(r))
	if err != nil || running > 0 {
		return true, err
	}
	moving, err := fleet.Rebalancing(f.Machine.View(r))
	if err != nil || moving > 0 {
		return true, err
	}
	scans, err := jobs.PendingJobs(f.Machine.View(r), []wire.JobKind{wire.JobKind_JOB_KIND_SCAN_DEVICE}, 1)
	return len(scans) > 0, err
}
