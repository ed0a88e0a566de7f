package ckptfaults_test

import (
	"context"
	"math/rand/v2"

	"github.com/morainefs/moraine/internal/testseed"
)

// fault is one round of a schedule: a step is saved, and something fails meanwhile.
type fault struct {
	name string
	run  func(ctx context.Context, w *world) error
}

var calm = fault{"nothing", func(ctx context.Context, w *world) error { return w.team.commit(ctx, moments{}) }}

// faults are all that a schedule may have.
var faults = []fault{
	{"a trainer dies while it stages", trainerDiesStaging},
	{"a trainer dies after Wait(local)", trainerDiesAfterLocal},
	{"an agent dies while it flushes", agentDies},
	{"the metadata leader dies", leaderDies},
	{"the memory of chunkservers is lost", memoryIsLost},
	{"a rank stops", rankStops},
	{"an old attempt keeps writing", oldAttemptWrites},
	{"an older launch opens late", olderLaunchOpensLate},
	{"a rollback saves the same steps", rollback},
	{"old steps are removed during a restore", removalWhileRestoring},
	{"a policy removes old steps during a restore", retentionWhileRestoring},
	{"a bit flips in the arenas", flipInArenas},
	{"bits flip in the memory of chunkservers", flipInMemory},
	{"bits flip on disks", flipOnDisks},
	{"bits flip in the bucket", flipInBucket},
	{"the wall clock is set back", clockBack},
	{"a policy leaves steps in memory", stepsStayInMemory},
	{"hosts die that have steps in memory", hostsDieWithSteps},
	{"a step rises to nvme", stepRises},
	{"a node dies that stores for others", holderDies},
	{"the answer to a claim is lost", claimIsLost},
	{"an old launch has claimed", oldLaunchHasClaimed},
}

// named returns a fault by name.
func named(name string) fault {
	for _, f := range append(faults, calm) {
		if f.name == name {
			return f
		}
	}
	panic("unknown fault " + name)
}

// roundsOf is how many faults a schedule has. The short form has the first of the long one.
var roundsOf = testseed.Of(3, 5)

// plan draws the rounds of a schedule: the first has no fault.
func plan(seed uint64) []fault {
	rng := rand.New(rand.NewPCG(seed, 0x706c616e))
	rounds := []fault{calm}
	for _, i := range rng.Perm(len(faults))[:roundsOf] {
		rounds = append(rounds, faults[i])
	}
	return rounds
}
