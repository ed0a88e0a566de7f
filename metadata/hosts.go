package metadata

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/transport/wire"
)

// awayPage is how many chunks of a host are looked at at once before it is
// announced to be away.
const awayPage = 1024

// speaks fails while the state is below a feature level: what is of that level
// must not be proposed, since a server of an earlier build would stop.
func (l *leader) speaks(ctx context.Context, level uint64) error {
	if eager || level <= l.level.Load() { // it never falls
		return nil
	}
	if err := l.store.ReadBarrier(ctx); err != nil {
		return err
	}
	return l.store.View(func(r state.Reader, _ uint64) error {
		info, err := l.machine.Cluster(r)
		l.level.Store(max(l.level.Load(), info.FeatureLevel))
		if err == nil && info.FeatureLevel < level {
			err = &moraine.Error{Kind: moraine.Unimplemented,
				Err: fmt.Errorf("the cluster has feature level %d, and this needs %d: finish the upgrade first (`moraine cluster upgrade --finish`)", info.FeatureLevel, level)}
		}
		return err
	})
}

// setMaintenance announces that a host will be away, unless a stripe would be left
// without a chunk to spare meanwhile: hosts that are silent, and those that are away
// already, count as missing too. The entry names the hosts that were away when this
// was judged, so that of two announcements at once one is judged anew.
func (l *leader) setMaintenance(ctx context.Context, c *call) (*wire.MetaResponse, error) {
	asked := c.req.GetSetMaintenance()
	if asked.Millis == 0 {
		return l.mutate(ctx, c)
	}
	var others []string
	err := l.store.View(func(r state.Reader, _ uint64) (err error) {
		others, err = l.machine.HostsAway(r, asked.Host)
		return err
	})
	if err != nil {
		return nil, err
	}
	if !asked.Force {
		if err := l.mayBeAway(ctx, asked.Host, others); err != nil {
			return nil, err
		}
	}
	req := proto.CloneOf(c.req)
	req.GetSetMaintenance().Others = others
	return l.propose(ctx, c.caller, req)
}

// mayBeAway returns Conflict where a stripe that has redundancy would have none
// left without host and those that are away already, and Unavailable where this leader
// does not know yet whether the other hosts are there.
func (l *leader) mayBeAway(ctx context.Context, host string, others []string) error {
	v := l.topology.view()
	if v.hosts[host] == nil {
		return &moraine.Error{Ref: host, Kind: moraine.NotFound, Err: fmt.Errorf("no such host has registered")}
	}
	a := absence{view: v, gone: map[string]bool{host: true}}
	for _, id := range others {
		a.gone[id] = true
	}
	var unheard []string
	if a.works, unheard = l.topology.working(l.deps.Clock.Now()); len(unheard) > 0 {
		if unheard = slices.DeleteFunc(unheard, func(id string) bool { return a.gone[id] }); len(unheard) > 0 {
			return &moraine.Error{Ref: host, Kind: moraine.Unavailable,
				Err: fmt.Errorf("this metadata server leads since a moment ago and has not heard of %s yet, which may be down: try again in a moment; --force goes ahead", strings.Join(unheard, ", "))}
		}
	}
	for _, d := range v.hosts[host].Devices {
		for from := moraine.StripeID(0); ; {
			if err := ctx.Err(); err != nil {
				return err
			}
			next, err := l.lookAway(&a, moraine.DeviceID(d.Id), from)
			if err != nil {
				return err
			}
			if next == 0 {
				break
			}
			from = next
		}
	}
	if a.bare == 0 {
		return nil
	}
	return &moraine.Error{Ref: host, Kind: moraine.Conflict,
		Err: fmt.Errorf("%s would be left without redundancy (of %d that it has chunks of)%s: wait for repairs (`moraine cluster status --wait`), or drain the host; --force goes ahead",
			stripes(a.bare), a.seen, a.why())}
}

func stripes(n int) string {
	if n == 1 {
		return "1 stripe"
	}
	return fmt.Sprintf("%d stripes", n)
}

// lookAway judges one page of a device's chunks; next is where to go on, 0 at the
// end.
func (l *leader) lookAway(a *absence, device moraine.DeviceID, from moraine.StripeID) (next moraine.StripeID, err error) {
	err = l.store.View(func(r state.Reader, _ uint64) error {
		page, err := l.machine.ExpectedChunks(r, device, from, 0, awayPage)
		if err != nil {
			return err
		}
		for _, e := range page {
			s, err := l.machine.StripeByID(r, e.Chunk.Stripe)
			if err != nil {
				return err
			}
			if s == nil {
				continue
			}
			missing, err := l.machine.MissingChunks(r, s)
			if err != nil {
				return err
			}
			a.judge(s, missing)
		}
		if len(page) == awayPage {
			next = page[awayPage-1].Chunk.Stripe + 1
		}
		return nil
	})
	return next, err
}

// absence counts what is left of stripes while some hosts are away.
type absence struct {
	view  *topologyView
	works map[uint32]bool // the devices whose hosts answer
	gone  map[string]bool
	// bare are the stripes of those seen that would have no chunk to spare, hurt those of
	// them that miss chunks whoever is away.
	seen, bare, hurt int
}

// judge counts a stripe that would be left with no chunk to spare; missing has a bit for
// each chunk that the state knows to be gone. One without redundancy has none to lose.
func (a *absence) judge(s *moraine.Stripe, missing uint32) {
	a.seen++
	left := 0
	for i, c := range s.Chunks {
		d := a.view.devices[uint32(c.Device)]
		if missing&(1<<i) == 0 && d != nil && a.works[d.Id] && !a.gone[d.Host] {
			left++
		}
	}
	if s.Scheme.M == 0 || left > int(s.Scheme.K) {
		return
	}
	a.bare++
	if missing != 0 {
		a.hurt++
	}
}

// why names what counts as missing beside the host that is to go: other hosts, and
// chunks.
func (a *absence) why() string {
	var out []string
	for id, h := range a.view.hosts {
		if !h.Alive {
			out = append(out, id+" is down")
		} else if a.gone[id] && len(a.gone) > 1 {
			out = append(out, id+" is away")
		}
	}
	slices.Sort(out)
	if a.hurt > 0 {
		out = append(out, fmt.Sprintf("chunks of %s are lost or corrupt and wait for repair", stripes(a.hurt)))
	}
	if len(out) == 0 {
		return ""
	}
	return ", as " + strings.Join(out, ", ")
}

// maxClaimed bounds the chunks that are counted on a device that is drained.
const maxClaimed = 4096

// countDraining returns a topology in which each device that is being drained, or is
// out, says how many chunks stripes still have on it. Which are is the state's to say:
// what a leader keeps of it comes a moment later, and an empty answer would be
// believed.
func (l *leader) countDraining(r state.Reader, topology *wire.Topology) (*wire.Topology, error) {
	devices, err := l.machine.Devices(r)
	if err != nil {
		return nil, err
	}
	claimed := make(map[uint32]uint64)
	states := make(map[uint32]wire.DeviceState)
	for _, d := range devices {
		if d.State != deviceDraining && d.State != deviceOut {
			continue
		}
		page, err := l.machine.ExpectedChunks(r, moraine.DeviceID(d.Id), 0, 0, maxClaimed)
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
