package repair

import (
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/fleet"
	"github.com/morainefs/moraine/transport/wire"
)

// PlanRepair is planRepair over hosts, for tests.
func PlanRepair(hosts []*wire.Host, s *moraine.Stripe, bad uint32) []*wire.Intent {
	t := fleet.NewTopology(1, time.Second)
	now := time.Now()
	t.Load(hosts, now)
	for _, h := range hosts {
		if h.Alive {
			t.NoteHeartbeat(h.Id, nil, t.Mark(), now.Add(time.Minute))
		}
	}
	t.Judge(now.Add(time.Minute), time.Hour, 0)
	return planRepair(t.View(), s, bad)
}

// Balanced is a plan of moves between devices, and their distance from the mean.
type Balanced struct {
	Moves              []*wire.Intent
	Outside            int
	LeftBytes          uint64
	Mean, Most, Least  float64
	FromAfter, ToAfter []float64 // planned fill of the two devices of each move
}

// PlanBalance runs a balancer over hosts and stripes, for tests, with budget bytes to and from each
// host.
func PlanBalance(hosts []*wire.Host, stripes []*moraine.Stripe, band float64, budget int64) Balanced {
	t := fleet.NewTopology(1, time.Second)
	now := time.Now()
	t.Load(hosts, now)
	for _, h := range hosts {
		if h.Alive {
			t.NoteHeartbeat(h.Id, h.Devices, t.Mark(), now.Add(time.Minute))
		}
	}
	t.Judge(now.Add(time.Minute), time.Hour, 0)
	v, disks, _ := t.Fillings()
	b := newBalancer(v, disks, band, budget)
	var out Balanced
	for _, b.within = range []bool{false, true} {
		if len(b.sources()) == 0 || len(out.Moves) > 0 {
			continue
		}
		for _, s := range stripes {
			if in := b.move(s); in != nil {
				out.Moves = append(out.Moves, in)
				out.FromAfter = append(out.FromAfter, b.disks[uint32(s.Chunks[in.Index].Device)].Fill())
				out.ToAfter = append(out.ToAfter, b.disks[in.Device].Fill())
			}
		}
	}
	s := b.spread()
	out.Outside, out.LeftBytes, out.Mean, out.Most, out.Least = s.outside, s.left, s.mean, s.most, s.least
	return out
}

// Sampled reports whether a stripe is in the sample of a scrub's slice.
func Sampled(stripe uint64, slice *wire.ReportChunks) bool { return sampled(stripe, slice) }
