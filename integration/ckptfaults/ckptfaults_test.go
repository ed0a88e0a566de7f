// Package ckptfaults_test saves checkpoints through the agents of training nodes while faults happen,
// on a whole cluster inside the process. A seed draws the faults and their moments.
//
// One path through it: play draws a schedule (plan_test.go) and makes a world (world_test.go). Each
// fault is one function (faults_test.go, servers_test.go, flips_test.go, bucket_test.go, interval_test.go, rise_test.go,
// claims_test.go) that saves a step by a team of trainers (team_test.go). A trap stops a request at the moment of a
// fault (trap_test.go). Pollers load checkpoints all the time (poller_test.go). The model knows
// what was saved and what must be there (model_test.go). At the end everything acknowledged is read.
package ckptfaults_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/morainefs/moraine/internal/testseed"
)

// roundTime bounds one round, on a machine that is very busy.
const roundTime = 3 * time.Minute

// atOnce is how many schedules run at a time: each mostly waits, for elections and heartbeats. More would
// wait for each other, while their pollers look on.
const atOnce = 4

// play runs the schedule of a seed, and returns what was seen.
func play(t *testing.T, seed uint64, rounds []fault, m mutant) (seen string, err error) {
	w, err := newWorld(t, seed, m)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	p := w.poll()
	for _, f := range rounds {
		w.log("%s", f.name)
		ctx, cancel := context.WithTimeoutCause(t.Context(), roundTime, fmt.Errorf("%s lasted %v", f.name, roundTime))
		err = f.run(ctx, w)
		cancel()
		if err = errors.Join(err, p.wrong()); err != nil {
			return w.story(), fmt.Errorf("%s: %w", f.name, err)
		}
	}
	err = errors.Join(w.atTheEnd(t.Context()), p.stop())
	return fmt.Sprintf("%s; %s", w.story(), p), err
}

// TestCheckpointsSurviveFaults: whatever fails, once there was a loadable checkpoint there always is
// one. What is loaded are the bytes of exactly one step, as its ranks saved it. No step that Wait
// reported at level nvme is missing, unless it was removed by request.
func TestCheckpointsSurviveFaults(t *testing.T) {
	var all errgroup.Group
	all.SetLimit(atOnce)
	for _, seed := range testseed.Seeds(t, 1, 500) {
		all.Go(func() error {
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				seen, err := play(t, seed, plan(seed), mutant{})
				require.NoError(t, err, "seed %d: %s", seed, seen)
				t.Logf("seed %d: %s", seed, seen)
			})
			return nil
		})
	}
	require.NoError(t, all.Wait())
}

// TestTheCheckerHasTeeth plays schedules with one wrong part each: the checker names it.
func TestTheCheckerHasTeeth(t *testing.T) {
	run := testseed.Sample(t, 3)
	for _, m := range []struct {
		name string
		mutant
		rounds []string
		want   string
	}{
		{"a restore that verifies nothing", mutant{unverified: true}, []string{"a bit flips in the arenas"}, "other bytes"},
		{"latest moves before the commit", mutant{early: true}, []string{"nothing", "a rank stops"}, "no loadable checkpoint"},
		{"Wait reports an aborted step", mutant{lies: true}, []string{"a trainer dies while it stages", "nothing"}, "is missing"},
		{"each part stores what it claims", mutant{greedy: true}, []string{"an old launch has claimed"}, "copies of a tensor"},
	} {
		if !run() {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			var rounds []fault
			for _, f := range m.rounds {
				rounds = append(rounds, named(f))
			}
			_, err := play(t, 1, append([]fault{calm}, rounds...), m.mutant)
			require.ErrorContains(t, err, m.want)
		})
	}
}
