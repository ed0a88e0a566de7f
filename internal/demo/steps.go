package demo

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/llama"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
)

// saved is the result of a save of all ranks.
type saved struct {
	events []event
	bytes  int64
	wall   time.Duration // from the first copy to the commit, of the slowest rank
	stall  time.Duration // of the slowest rank
	digest string
}

// save makes every rank save a step; progress is called with the durable share.
func (d *demo) save(ctx context.Context, t *team, step uint64, progress func(part float64) error) (*saved, error) {
	if err := t.order(order{Do: "save", Step: step, Seed: step}); err != nil {
		return nil, err
	}
	total := llama.Demo().Bytes()
	acked := make([]uint64, saveRanks)
	stalls := make([]time.Duration, saveRanks)
	events, err := t.collect(ctx, saveRanks, "committed", func(e event) error {
		switch e.Event {
		case "staged":
			stalls[e.Rank] = e.Stall
		case "progress":
			acked[e.Rank] = e.Acked
		default:
			return nil
		}
		var sum uint64
		for _, n := range acked {
			sum += n
		}
		part := min(1, float64(sum)/float64(total))
		d.cfg.Progress(fmt.Sprintf("step %d durable", step), part)
		return progress(part)
	})
	if err != nil {
		return nil, err
	}
	s := &saved{events: events, stall: slices.Max(stalls)}
	var sums []llama.Sum
	for _, e := range events {
		s.bytes += e.Bytes
		s.wall = max(s.wall, e.Wall)
		sums = append(sums, e.Sums...)
	}
	for rank, stall := range stalls {
		d.cfg.Say("  rank %d stood still for %v", rank, stall.Round(time.Millisecond))
	}
	if s.digest, err = llama.Digest(llama.Demo(), sums); err != nil {
		return nil, err
	}
	d.digests[step] = s.digest
	return s, nil
}

// firstSave is step 1: the plain case, with its cost.
func (d *demo) firstSave(ctx context.Context, t *team) error {
	d.cfg.Say("\n1. %d ranks save step 1 while they train on.", saveRanks)
	s, err := d.save(ctx, t, 1, func(float64) error { return nil })
	if err != nil {
		return err
	}
	rate := float64(s.bytes) / s.wall.Seconds()
	trained := 0
	for _, e := range s.events {
		trained += e.Trained
	}
	d.cfg.Say("  %.2f GiB durable, checked and visible after %v: %.2f GB/s, %.0f%% of the ceiling of %.2f GB/s; %d training steps were done meanwhile",
		gib(s.bytes), s.wall.Round(time.Millisecond), rate/1e9, 100*rate/d.ceiling, d.ceiling/1e9, trained)
	attr, err := d.client.Stat(ctx, runPath+"/latest")
	if err != nil {
		return err
	}
	d.claim("1", "a checkpoint of 4 ranks is saved while training goes on", trained > 0 && attr.Inode() != 0,
		"stall %v, %.2f GB/s to durable (ceiling %.2f), %d steps trained meanwhile", s.stall.Round(time.Millisecond), rate/1e9, d.ceiling/1e9, trained)
	return nil
}

// saveWhileServersDie is step 2: the leader and two chunkservers are killed in the
// middle of a save.
func (d *demo) saveWhileServersDie(ctx context.Context, t *team) error {
	d.cfg.Say("\n2. Step 2, and in the middle of it the metadata leader and two chunkservers are killed.")
	leader, err := d.leader(ctx)
	if err != nil {
		return err
	}
	d.killed = []string{leader, "n2", "n5"}
	probe := d.startProbe(ctx)
	killedAt := -1.0
	s, err := d.save(ctx, t, 2, func(part float64) error {
		if killedAt >= 0 || part < killFrom {
			return nil
		}
		killedAt = part
		probe.mark()
		for _, name := range d.killed {
			if err := d.cluster.Node(name).Kill(); err != nil {
				return err
			}
		}
		d.cfg.Say("  SIGKILL to %s with %.0f%% durable", strings.Join(d.killed, ", "), 100*part)
		return nil
	})
	outage := probe.stop()
	if err != nil {
		return err
	}
	protects, degraded := worst(s.events)
	d.cfg.Say("  committed after %v, %d stripes degraded; it survives the loss of %d more host(s); metadata answered nothing for %v",
		s.wall.Round(time.Millisecond), degraded, protects, outage.Round(time.Millisecond))
	d.claim("2", "a save survives SIGKILL of the metadata leader and 2 chunkservers",
		killedAt >= killFrom && killedAt <= killTo && outage > 0,
		"killed at %.0f%%, metadata silent %v, committed in %v", 100*killedAt, outage.Round(time.Millisecond), s.wall.Round(time.Millisecond))
	d.claim("2", "and says that it is degraded, and what it survives", degraded > 0 && protects >= 1,
		"%d degraded stripes, survives %d more host(s)", degraded, protects)
	return nil
}

func worst(events []event) (protects uint32, degraded uint64) {
	protects = events[0].Protects
	for _, e := range events {
		protects, degraded = min(protects, e.Protects), max(degraded, e.Degraded)
	}
	return protects, degraded
}

// leader returns the name of the leading metadata server.
func (d *demo) leader(ctx context.Context) (string, error) {
	resp, err := rawclient.Of(d.client).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: &wire.GetCluster{}}})
	if err != nil {
		return "", err
	}
	for _, m := range resp.GetCluster().GetMetadata() {
		if m.Leader {
			return m.Id, nil
		}
	}
	return "", errors.New("no metadata server leads")
}

// probe measures how long the metadata service does not answer, as a client sees
// it.
type probe struct {
	cancel context.CancelFunc
	ended  chan struct{}

	mu      sync.Mutex
	from    time.Time // time of the kill; zero before
	longest time.Duration
}

// startProbe requests the root from the metadata service continuously.
func (d *demo) startProbe(ctx context.Context) *probe {
	ctx, cancel := context.WithCancel(ctx)
	p := &probe{cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		last := time.Now()
		for ctx.Err() == nil {
			// Sent to the service itself: a Stat may be answered from the cache.
			if _, err := rawclient.Of(d.client).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_Walk{Walk: &wire.Walk{}}}); err == nil {
				p.answered(last)
				last = time.Now()
			}
			select {
			case <-ctx.Done():
			case <-time.After(2 * time.Millisecond):
			}
		}
	}()
	return p
}

// answered records a gap between answers, which ends now. The gap began at last, or at the kill if
// the kill came later.
func (p *probe) answered(last time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.from.IsZero() {
		return
	}
	if last.Before(p.from) {
		last = p.from
	}
	p.longest = max(p.longest, time.Since(last))
}

func (p *probe) mark() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.from = time.Now()
}

// stop ends the probe and returns the longest gap after mark.
func (p *probe) stop() time.Duration {
	p.cancel()
	<-p.ended
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.longest
}

// saveWithDeadRank is step 4: a rank dies before it seals.
func (d *demo) saveWithDeadRank(ctx context.Context, t *team) error {
	const dead = saveRanks - 1
	d.cfg.Say("\n4. Step 3, and rank %d is killed before it has sealed its part.", dead)
	o := order{Do: "save", Step: 3, Seed: 3, SealTimeout: sealTimeout}
	if err := t.order(o, 0, 1, 2); err != nil {
		return err
	}
	o.Hold = true
	if err := t.order(o, dead); err != nil {
		return err
	}
	var failed []event
	note := func(e event) {
		if e.Event == "failed" {
			failed = append(failed, e)
		}
	}
	for holding := false; len(failed) < dead; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e, ok := <-t.events:
			if !ok {
				return fmt.Errorf("the ranks have ended:\n%s", t.complaints())
			}
			if e.Event == "holding" && !holding {
				holding = true
				if err := t.killRank(dead); err != nil {
					return err
				}
			}
			if e.Event == "committed" {
				return fmt.Errorf("rank %d reports that step 3 was committed", e.Rank)
			}
			note(e)
		}
	}
	d.cfg.Say("  rank 0 gets: %s", failed[0].Error)
	named := !slices.ContainsFunc(failed, func(e event) bool { return !slices.Equal(e.Missing, []uint32{dead}) })
	d.claim("4", "a save whose rank died is refused, and the rank is named", named, "missing %v", failed[0].Missing)
	return d.notVisible(ctx)
}

// notVisible checks that step 3 is nowhere, and that latest still names step 2.
func (d *demo) notVisible(ctx context.Context) error {
	var seen []string
	for e, err := range d.client.ReadDir(ctx, runPath) {
		if err != nil {
			return err
		}
		seen = append(seen, e.Name)
	}
	link, err := d.client.Lstat(ctx, runPath+"/latest")
	if err != nil {
		return err
	}
	_, err = d.client.Stat(ctx, runPath+"/step-3")
	hidden := errors.Is(err, moraine.NotFound) && !slices.ContainsFunc(seen, func(n string) bool { return strings.Contains(n, "step-3") })
	d.cfg.Say("  %s holds %s; latest -> %s", runPath, strings.Join(seen, ", "), link.Target())
	d.claim("4", "it is never visible, and latest still names the second", hidden && strings.HasSuffix(link.Target(), "step-2"),
		"latest -> %s", link.Target())
	return nil
}

// healed is step 5: the dead servers restart and everything is whole again.
func (d *demo) healed(ctx context.Context) error {
	d.cfg.Say("\n5. The dead come back.")
	start := time.Now()
	for _, name := range d.killed {
		if err := d.cluster.Node(name).Start(); err != nil {
			return err
		}
	}
	out, err := exec.CommandContext(ctx, d.cfg.Binary, "cluster", "status", "--wait", "90s",
		"--endpoint", d.cluster.Endpoint(), "--certs", d.cluster.Certs(), "--identity", "admin", "--mode", d.cluster.Mode()).CombinedOutput()
	d.cfg.Say("%s", indent(string(out)))
	d.claim("5", "they come back, protection is full again, and status is green", err == nil, "green %v after the restart", time.Since(start).Round(time.Millisecond))
	return nil
}

func indent(s string) string {
	return "  " + strings.ReplaceAll(strings.TrimSpace(s), "\n", "\n  ")
}
