package state_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/transport/wire"
)

// risers is a run whose steps are saved at level memory.
type risers struct {
	*tier
	script *ckptScript
	dice   *rand.Rand
	steps  []uint64
}

func newRisers(t *testing.T, seed uint64) *risers {
	y := newTier(t)
	r := &risers{tier: y, dice: rand.New(rand.NewPCG(seed, 22)), script: &ckptScript{bench: y.bench, sessions: map[string]*client{"a": y.c}}}
	r.script.chunks = func(id, size uint64) *wire.Stripe {
		d := r.dice.Perm(3)
		return y.inRAM(id, size, uint32(d[0]+1), uint32(d[1]+1))
	}
	r.must("a", "open r launch=L1")
	return r
}

func (r *risers) must(who, line string) {
	r.t.Helper()
	if out := r.script.run(who, words(line)); strings.Contains(out, ": ") {
		r.t.Fatalf("%s %s: %s", who, line, out)
	}
}

// save commits a step of two ranks. The chunks of some of its files reach their devices before.
func (r *risers) save() {
	n := uint64(len(r.steps) + 1)
	r.steps = append(r.steps, n)
	for rank := range 2 {
		r.must("a", fmt.Sprintf("begin step=1/%d rank=%d world=2", n, rank))
	}
	for rank := range 2 {
		r.must("a", fmt.Sprintf("seal step=1/%d rank=%d digest=x", n, rank))
		r.check()
		if r.dice.IntN(3) == 0 {
			r.settleSome()
		}
	}
	r.must("m", "lease")
	r.must("m", fmt.Sprintf("commit step=1/%d", n))
}

// settleSome lets one device write what it has in memory, and the leader see it.
func (r *risers) settleSome() {
	d := uint32(r.dice.IntN(3) + 1)
	r.ok(r.tell(d, r.epochOf(d), allHere))
	r.raise()
}

// flushOne lets movers take one step to the bucket, or a part of it.
func (r *risers) flushOne() {
	n := r.steps[r.dice.IntN(len(r.steps))]
	r.queue(flushJob, r.c.walkTo(fmt.Sprintf("/r/attempt-1/step-%d", n)))
	r.runTrees()
	m := r.mover("n1")
	for range 1 + r.dice.IntN(8) {
		m.work()
		r.compare()
	}
	r.drain()
}

// compare holds each step and the links of the run against the levels of the files.
func (r *risers) compare() {
	r.t.Helper()
	newest := map[moraine.Level]uint64{}
	for _, n := range r.steps {
		want := moraine.Object
		dir := r.ok(r.c.read(&wire.MetaRequest{Op: &wire.MetaRequest_ReadDir{ReadDir: &wire.ReadDir{
			Inode: r.c.walkTo(fmt.Sprintf("/r/attempt-1/step-%d", n))}}})).GetReadDir()
		for _, e := range dir.GetEntries() {
			want = min(want, moraine.Level(e.GetAttr().GetLevel()))
		}
		st := r.ok(r.c.read(&wire.MetaRequest{Op: &wire.MetaRequest_GetStep{GetStep: &wire.GetStep{Key: r.script.key(map[string]string{"step": fmt.Sprintf("1/%d", n)})}}})).GetStep().GetStep()
		if have := moraine.Level(st.GetLevel()); have != want || st.GetFiles() != 3 {
			r.t.Fatalf("step %d of %d files is at %s, its files at %s", n, st.GetFiles(), have, want)
		}
		for l := moraine.Memory; l <= want; l++ {
			newest[l] = n
		}
		if reached := st.GetReached(); len(reached) < int(want-moraine.Memory)+1 {
			r.t.Fatalf("step %d is at %s, but has times of %d levels", n, want, len(reached))
		}
	}
	links := " " + r.script.links() + " "
	for l := moraine.Memory; l <= moraine.Object; l++ {
		want := fmt.Sprintf(" latest-%s->attempt-1/step-%d ", l, newest[l])
		if has := strings.Contains(links, " latest-"+l.String()+"->"); has != (newest[l] > 0) || has && !strings.Contains(links, want) {
			r.t.Fatalf("the run has%s, want%s", links, want)
		}
	}
}

// TestAStepRisesWithItsFiles saves steps at level memory. Their chunks reach the devices and their
// files the bucket, in random order. After each command a step is at the level of its least safe
// file, and `latest-<level>` names the newest step at the level.
func TestAStepRisesWithItsFiles(t *testing.T) {
	for _, seed := range testseed.Seeds(t, 10, 300) {
		r := newRisers(t, seed)
		for range 12 {
			switch k := r.dice.IntN(6); {
			case k < 2 || len(r.steps) == 0:
				r.save()
			case k < 5:
				r.settleSome()
			default:
				r.flushOne()
			}
			r.compare()
			r.check()
		}
		r.drain()
		for range 3 {
			r.settleSome()
		}
		r.compare()
		r.replays()
	}
}
