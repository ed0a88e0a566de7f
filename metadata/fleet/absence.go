package fleet

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/internal/limit"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// awayPage is the number of a host's chunks inspected at once before its absence is announced.
	awayPage = 1024
	// maxBare is the number of stripes without redundancy after which a judgement ends.
	maxBare = 100
	// awayKept is how long a judgement waits for the next attempt of the announcement. awayAge is
	// its largest total age: it misses chunks that are moved to a part of the host's index that it
	// has passed.
	awayKept, awayAge = time.Minute, 10 * time.Minute
)

// absences are the judgements of hosts whose absence is to be announced. For a large host one
// attempt of the request is too short; the next attempt continues where it ended.
type absences struct {
	*lead.Term
	topology *topology
	turn     chan struct{} // has room for one: its sender may judge
	waits    limit.Resource
	kept     map[string]*absence
}

func newAbsences(t *lead.Term, topology *topology) *absences {
	return &absences{Term: t, topology: topology, turn: make(chan struct{}, 1), kept: make(map[string]*absence),
		waits: limit.Resource{Name: "turn to check the absence of a host", Reports: limit.NewReporter(t.Log, t.Metrics.WaitsExceeded)}}
}

// wait waits for the turn to judge. The holder of the turn must return it.
func (k *absences) wait(ctx context.Context, c clock.Clock, until time.Time) error {
	select {
	case k.turn <- struct{}{}:
		return nil
	default:
	}
	began := c.Now()
	select {
	case k.turn <- struct{}{}:
		return nil
	case <-c.After(until.Sub(began)):
		k.waits.Reports.Exceeded(k.waits.Name, c.Since(began))
		return &moraine.Error{Kind: moraine.Unavailable, Err: fmt.Errorf("the leader checks another announcement of maintenance: try again in a moment, or give --force")}
	case <-ctx.Done():
		return k.waits.GaveUp(ctx, c.Since(began))
	}
}

// keep stores an unfinished judgement, and drops those that no request continued.
func (k *absences) keep(a *absence, now time.Time) {
	a.left = now
	k.kept[a.host] = a
	maps.DeleteFunc(k.kept, func(_ string, a *absence) bool { return a.stale(now) })
}

// take returns the stored judgement of a host if it has the same other hosts and working devices,
// otherwise a new one.
func (k *absences) take(host string, others []string, works map[uint32]bool, now time.Time) *absence {
	a := k.kept[host]
	delete(k.kept, host)
	if a != nil && !a.stale(now) && slices.Equal(a.others, others) && maps.Equal(a.works, works) {
		return a
	}
	return &absence{host: host, others: others, works: works, began: now}
}

// absence counts the remaining chunks of stripes while some hosts are away. First it inspects all
// chunks of the host's devices, one lookup each. Then it inspects the repair queue for chunks known
// to be bad, so that bad chunks found meanwhile count too.
type absence struct {
	host        string
	others      []string        // hosts that are away already
	works       map[uint32]bool // devices whose hosts are up
	began, left time.Time

	// changes is the state's count of changes of hosts and devices that this judgement uses. If the
	// count changes, the judgement starts again.
	changes uint64
	devices map[uint32]*wire.Device // devices of the state; nil before the first page
	mine    []moraine.DeviceID      // devices of the host
	at      int                     // index in mine of the device in progress; len(mine) means the queue
	from    moraine.StripeID
	ended   bool
	// bare is the number of inspected stripes that would have no chunk to spare. hurt are those of
	// them that miss chunks whichever host is away.
	seen, bare, hurt int
}

func (a *absence) stale(now time.Time) bool {
	return now.Sub(a.left) > awayKept || now.Sub(a.began) > awayAge
}

// mayBeAway returns Conflict if a stripe with redundancy would have none left without host and the
// hosts that are away already. It returns Unavailable if this leader does not know yet whether the
// other hosts are up, or has not finished.
func (k *absences) mayBeAway(ctx context.Context, host string, others []string) error {
	until := k.WaitUntil(ctx, uint64(lead.MaxWait.Milliseconds()))
	if err := k.wait(ctx, k.Clock, until); err != nil {
		return err
	}
	defer func() { <-k.turn }()
	for {
		works, err := k.othersWorking(host, others)
		if err != nil {
			return err
		}
		a := k.take(host, others, works, k.Clock.Now())
		if err := k.judgeAbsence(ctx, a, until); err != nil {
			return err
		}
		// Hosts may have become silent meanwhile.
		if now, _ := k.topology.working(k.Clock.Now()); maps.Equal(now, works) {
			return a.verdict(k.topology.View())
		}
	}
}

// othersWorking returns the devices whose hosts are up.
func (k *absences) othersWorking(host string, others []string) (map[uint32]bool, error) {
	if k.topology.View().Hosts[host] == nil {
		return nil, &moraine.Error{Ref: host, Kind: moraine.NotFound, Err: fmt.Errorf("no host of this name has registered")}
	}
	works, unseen := k.topology.working(k.Clock.Now())
	unseen = slices.DeleteFunc(unseen, func(id string) bool { return id == host || slices.Contains(others, id) })
	if len(unseen) > 0 {
		return nil, &moraine.Error{Ref: host, Kind: moraine.Unavailable,
			Err: fmt.Errorf("the leader is new, and %s may be down: it has received no heartbeat yet. Try again in a moment, or give --force", strings.Join(unseen, ", "))}
	}
	return works, nil
}

// judgeAbsence finishes a judgement, or keeps it for the next attempt.
func (k *absences) judgeAbsence(ctx context.Context, a *absence, until time.Time) error {
	for !a.ended && a.bare < maxBare {
		now := k.Clock.Now()
		if ctx.Err() != nil {
			k.keep(a, now)
			return lead.ContextError("metadata.maintenance", ctx)
		}
		if !now.Before(until) {
			k.keep(a, now)
			return &moraine.Error{Ref: a.host, Kind: moraine.Unavailable,
				Err: fmt.Errorf("the leader has checked %s of the host, and there are more: repeat the command within a minute to continue from there, or give --force", stripes(a.seen))}
		}
		if err := k.Store.View(func(r kvtx.Reader, _ uint64) error { return a.page(k.Machine, r) }); err != nil {
			return err
		}
	}
	return nil
}

// page inspects the next page.
func (a *absence) page(m *state.Machine, r kvtx.Reader) error {
	if err := a.refresh(m, r); err != nil {
		return err
	}
	if a.at == len(a.mine) {
		return a.queued(m, r)
	}
	page, err := fleet.ExpectedChunks(m.View(r), a.mine[a.at], a.from, 0, awayPage)
	if err != nil {
		return err
	}
	for _, e := range page {
		s, err := fleet.StripeByID(m.View(r), e.Chunk.Stripe)
		if err != nil {
			return err
		}
		if s != nil {
			a.judge(s)
		}
	}
	if len(page) == awayPage {
		a.from = page[awayPage-1].Chunk.Stripe + 1
	} else {
		a.at, a.from = a.at+1, 0
	}
	return nil
}

// refresh reads the devices again if they changed, and restarts the judgement.
func (a *absence) refresh(m *state.Machine, r kvtx.Reader) error {
	n, err := kvtx.ReadCounters(m.View(r))
	if err != nil || a.devices != nil && n.Topology == a.changes {
		return err
	}
	all, err := fleet.Devices(m.View(r))
	if err != nil {
		return err
	}
	*a = absence{host: a.host, others: a.others, works: a.works, began: a.began, left: a.left,
		changes: n.Topology, devices: make(map[uint32]*wire.Device, len(all))}
	for _, d := range all {
		a.devices[d.Id] = d
		if d.Host == a.host {
			a.mine = append(a.mine, moraine.DeviceID(d.Id))
		}
	}
	return nil
}

// queued inspects the next queued stripes of the host with chunks known to be bad.
func (a *absence) queued(m *state.Machine, r kvtx.Reader) error {
	page, next, err := fleet.BadChunks(m.View(r), a.from, awayPage)
	if err != nil {
		return err
	}
	for _, bad := range page {
		s, err := fleet.StripeByID(m.View(r), bad.Stripe)
		if err != nil {
			return err
		}
		if s != nil && slices.ContainsFunc(s.Chunks, func(c moraine.ChunkState) bool { return slices.Contains(a.mine, c.Device) }) {
			a.judgeBad(s, bad.Chunks)
		}
	}
	a.from, a.ended = next, next == 0
	return nil
}

// judge counts a stripe that would have no chunk to spare. A stripe without redundancy has none to
// lose.
func (a *absence) judge(s *moraine.Stripe) {
	a.seen++
	if spare, whole := a.spare(s, 0); s.Scheme.M > 0 && spare <= 0 {
		a.bare++
		if !whole {
			a.hurt++
		}
	}
}

// judgeBad counts a stripe that was inspected before and has chunks known to be bad.
func (a *absence) judgeBad(s *moraine.Stripe, bad uint32) {
	before, whole := a.spare(s, 0)
	if spare, _ := a.spare(s, bad); s.Scheme.M == 0 || spare > 0 {
		return
	}
	if before > 0 {
		a.bare++
	}
	if before > 0 || whole {
		a.hurt++
	}
}

// spare returns how many more chunks of a stripe would be left than it needs. whole says that none
// is missing whichever host is away: out of service, gone with its host's memory, or bad. bad is a
// bit mask.
func (a *absence) spare(s *moraine.Stripe, bad uint32) (spare int, whole bool) {
	left, whole := 0, true
	for i, c := range s.Chunks {
		d := a.devices[uint32(c.Device)]
		switch {
		case bad&(1<<i) != 0, d == nil, !holds(d), c.Level == moraine.Memory && uint64(c.Epoch) != d.Epoch:
			whole = false
		case a.works[d.Id] && d.Host != a.host && !slices.Contains(a.others, d.Host):
			left++
		}
	}
	return left - int(s.Scheme.K), whole
}

// verdict returns the result.
func (a *absence) verdict(v *View) error {
	if a.bare == 0 {
		return nil
	}
	what, of := stripes(a.bare), fmt.Sprintf("of %d that it has chunks of", a.seen)
	if !a.ended {
		what, of = "at least "+what, fmt.Sprintf("of the first %d that it has chunks of", a.seen)
	}
	return &moraine.Error{Ref: a.host, Kind: moraine.Conflict,
		Err: fmt.Errorf("%s would be left without redundancy (%s)%s: wait for repairs (`moraine cluster status --wait`), drain the host, or give --force",
			what, of, a.why(v))}
}

// why names what counts as missing besides the departing host: other hosts, and chunks.
func (a *absence) why(v *View) string {
	var out []string
	for id, h := range v.Hosts {
		if !h.Alive {
			out = append(out, id+" is down")
		} else if slices.Contains(a.others, id) {
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

func stripes(n int) string {
	if n == 1 {
		return "1 stripe"
	}
	return fmt.Sprintf("%d stripes", n)
}
