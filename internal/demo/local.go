package demo

import (
	"context"
	"errors"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/llama"
)

const (
	// agentRun is the run whose trainers use an agent, and agentBytes the size of its model.
	agentRun   = "/runs/llama-3-8b-agent"
	agentBytes = 256 << 20
	agentStep  = 7
	// commitPatience limits the wait for the commit of the agent's step.
	commitPatience = time.Minute
)

// trainersDieAtLocal is step 10: every trainer is killed right after Wait(local), and the agent
// commits the step without them.
func (d *demo) trainersDieAtLocal(ctx context.Context) (err error) {
	d.cfg.Say("\n10. %d ranks save through the agent of their node, and each is killed as soon as its part is at level local.", saveRanks)
	a, err := d.startAgent(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.stop()) }()
	j := job{cluster: d.cluster, run: agentRun, launch: "launch-1", world: saveRanks, agent: a.socket(), bytes: agentBytes}
	t, err := d.startTeam(ctx, j)
	if err != nil {
		return err
	}
	defer t.kill()
	digest, open, err := d.killAtLocal(ctx, t)
	if err != nil {
		return err
	}
	died := time.Now()
	if err := d.awaitCommit(ctx, agentRun); err != nil {
		return err
	}
	wall := time.Since(died)
	j.launch, j.agent = "restore", ""
	r, err := d.restoreBy(ctx, j, agentStep, moraine.Memory)
	if err != nil {
		return err
	}
	d.cfg.Say("  all %d trainers are dead, and step %d is committed %v later\n  saved    %s\n  restored %s",
		t.killed(), agentStep, wall.Round(time.Millisecond), digest, r.digest)
	d.claim("10", "a step is committed though its trainers died right after Wait(local)",
		t.killed() == saveRanks && open && r.digest == digest,
		"%d trainers killed, committed %v after the last, digest %s", t.killed(), wall.Round(time.Millisecond), r.digest)
	return nil
}

// killAtLocal makes one rank after the other save, and kills it when it reports level local. So all
// ranks but the last are dead before the step can be committed. It returns the digest of what they
// saved, and whether the step was still open before the last rank saved.
func (d *demo) killAtLocal(ctx context.Context, t *team) (digest string, open bool, err error) {
	var sums []llama.Sum
	for rank := range saveRanks {
		if rank == saveRanks-1 {
			committed, err := d.hasLatest(ctx, agentRun)
			if err != nil {
				return "", false, err
			}
			open = !committed
		}
		if err := t.order(order{Do: "save", Step: agentStep, Seed: agentStep, Level: moraine.Local}, rank); err != nil {
			return "", false, err
		}
		events, err := t.collect(ctx, 1, "local", nil)
		if err != nil {
			return "", false, err
		}
		if err := t.killRank(rank); err != nil {
			return "", false, err
		}
		sums = append(sums, events[0].Sums...)
		d.cfg.Say("  SIGKILL to rank %d, %v after it began to save", rank, events[0].Wall.Round(time.Millisecond))
	}
	digest, err = llama.Digest(modelOf(agentBytes), sums)
	return digest, open, err
}

// awaitCommit waits until a run has a committed step.
func (d *demo) awaitCommit(ctx context.Context, run string) error {
	ctx, cancel := context.WithTimeout(ctx, commitPatience)
	defer cancel()
	return until(ctx, "commit of a step of "+run, poll, func(ctx context.Context) (bool, error) { return d.hasLatest(ctx, run) })
}

// hasLatest reports whether a run has a committed step.
func (d *demo) hasLatest(ctx context.Context, run string) (bool, error) {
	_, err := d.client.Lstat(ctx, run+"/latest")
	if errors.Is(err, moraine.NotFound) {
		return false, nil
	}
	return err == nil, err
}
