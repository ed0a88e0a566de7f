package state_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/metadata/state/ckpt"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// levelPolicy makes a level's policy of words: "every:10,last:2,nth:100,bytes:300,millis:5000,tag:best".
func levelPolicy(l moraine.Level, text string) *wire.LevelPolicy {
	p := &wire.LevelPolicy{Level: uint32(l)}
	for _, word := range strings.FieldsFunc(text, comma) {
		what, value, _ := strings.Cut(word, ":")
		switch what {
		case "every":
			p.Every = num(value)
		case "last":
			p.KeepLast = uint32(num(value))
		case "nth":
			p.KeepEvery = num(value)
		case "bytes":
			p.KeepBytes = num(value)
		case "millis":
			p.KeepMillis = num(value)
		case "tag":
			p.KeepTags = append(p.KeepTags, value)
		}
	}
	return p
}

// lookDue inspects the run as the leader does, a few steps at a time.
func (s *ckptScript) lookDue() []*wire.StepKey {
	s.t.Helper()
	look := ckpt.NewRetainLook(moraine.RunID(s.run1))
	for !look.Done {
		if err := ckpt.FindRetained(s.m.View(s.kv), look, 2); err != nil {
			s.t.Fatal(err)
		}
	}
	return look.Due
}

// propose applies the policy to some steps, and returns those that it changed.
func (s *ckptScript) propose(steps []*wire.StepKey) []*wire.Step {
	s.t.Helper()
	return s.ok(s.apply(&statepb.Command{Op: &statepb.Command_RetainSteps{RetainSteps: &statepb.RetainSteps{Steps: steps}}}).Response).GetSteps().GetSteps()
}

// retain does a pass of the leader over the run.
func (s *ckptScript) retain() string {
	var out []string
	for chunk := range slices.Chunk(s.lookDue(), ckpt.MaxRetained) {
		for _, st := range s.propose(chunk) {
			out = append(out, fmt.Sprintf("%d/%d %s", st.Key.Attempt, st.Key.Step, stepState(st)))
		}
	}
	return orNothing(out)
}

// keepers is a run under a policy, with a bucket.
type keepers struct {
	*tier
	script *ckptScript
	dice   *rand.Rand
	steps  []string // saved: "attempt/step"
	next   uint64
}

func newKeepers(t *testing.T, seed uint64) *keepers {
	y := newTier(t)
	k := &keepers{tier: y, dice: rand.New(rand.NewPCG(seed, 9)), script: &ckptScript{bench: y.bench, sessions: map[string]*client{"a": y.c}}}
	k.must("a", "open r launch=L1")
	return k
}

func (k *keepers) must(who, line string) string {
	k.t.Helper()
	out := k.script.run(who, words(line))
	if strings.Contains(out, ": ") {
		k.t.Fatalf("%s %s: %s", who, line, out)
	}
	return out
}

// commit saves a step.
func (k *keepers) commit(attempt int, number uint64) {
	k.t.Helper()
	step := fmt.Sprintf("%d/%d", attempt, number)
	k.must("a", "begin step="+step+" rank=0 world=1")
	k.must("a", "seal step="+step+" rank=0 digest=x")
	k.must("m", "lease")
	k.must("m", "commit step="+step)
	k.steps = append(k.steps, step)
}

// flushAll lets the movers work until no job is left.
func (k *keepers) flushAll() { k.runTrees(); k.drain() }

// at returns the levels of the committed steps, and for those in the bucket whether they left the devices:
// "1/10:nvme 1/20:object 1/30:object-".
func (k *keepers) at() string {
	k.t.Helper()
	resp := k.ok(k.c.read(&wire.MetaRequest{Op: &wire.MetaRequest_ListSteps{ListSteps: &wire.ListSteps{Run: k.script.run1}}}))
	var out []string
	for _, st := range resp.GetSteps().GetSteps() {
		text := fmt.Sprintf("%d/%d:%s", st.Key.Attempt, st.Key.Step, moraine.Level(st.Level))
		if k.evicted(st.Path) {
			text += "-"
		}
		out = append(out, text)
	}
	return orNothing(out)
}

// evicted reports whether no file of a step has stripes.
func (k *keepers) evicted(path string) bool {
	dir := k.ok(k.c.read(&wire.MetaRequest{Op: &wire.MetaRequest_ReadDir{ReadDir: &wire.ReadDir{Inode: k.c.walkTo("/r/" + path)}}})).GetReadDir()
	for _, e := range dir.GetEntries() {
		for _, x := range k.ok(k.c.extents(e.GetAttr().GetInode(), 0, 0)).GetExtents().GetExtents() {
			if x.GetStripe() != 0 {
				return false
			}
		}
	}
	return len(dir.GetEntries()) > 0
}

func (k *keepers) want(what, want string) {
	k.t.Helper()
	if have := k.at(); have != want {
		k.t.Fatalf("%s: the run has %s, want %s", what, have, want)
	}
	k.check()
}

// TestAnIntervalBringsStepsToTheBucket sets that every 10th step goes to the bucket, before and after steps are
// saved.
func TestAnIntervalBringsStepsToTheBucket(t *testing.T) {
	k := newKeepers(t, 1)
	k.commit(1, 5)
	k.commit(1, 10)
	k.must("a", "policy object=every:10")
	for _, n := range []uint64{15, 20, 25, 30} {
		k.commit(1, n) // steps 20 and 30 are queued in the entry that commits them
	}
	k.flushAll()
	k.want("the commits", "1/5:nvme 1/10:nvme 1/15:nvme 1/20:object 1/25:nvme 1/30:object")
	if out := k.script.retain(); out != "1/10 committed" {
		t.Fatalf("the pass after the policy: %s", out)
	}
	if out := k.script.retain(); out != "nothing" {
		t.Fatalf("a step is queued once; again: %s", out)
	}
	k.flushAll()
	k.want("the pass", "1/5:nvme 1/10:object 1/15:nvme 1/20:object 1/25:nvme 1/30:object")
	k.replays()
}

// TestAFlushThatEndedIsQueuedAgain cancels the flush of a step: the leader queues it again after 10 minutes.
func TestAFlushThatEndedIsQueuedAgain(t *testing.T) {
	k := newKeepers(t, 1)
	k.must("a", "policy object=every:10")
	k.commit(1, 10)
	for _, j := range k.ok(k.c.read(&wire.MetaRequest{Op: &wire.MetaRequest_ListJobs{ListJobs: &wire.ListJobs{}}})).GetJobs().GetJobs() {
		if j.Kind == wire.JobKind_JOB_KIND_MOVE_TREE {
			k.ok(k.c.do(&wire.MetaRequest{Op: &wire.MetaRequest_CancelJob{CancelJob: &wire.CancelJob{Id: j.Id}}}))
		}
	}
	k.flushAll()
	k.want("the job was canceled", "1/10:nvme")
	if out := k.script.retain(); out != "nothing" {
		t.Fatalf("at once: %s", out)
	}
	k.wait(600)
	if out := k.script.retain(); out != "1/10 committed" {
		t.Fatalf("after 10 minutes: %s", out)
	}
	k.flushAll()
	k.want("queued again", "1/10:object")
}

// TestStepsLeaveEachLevel: nvme keeps two steps, the bucket each 20th; the others go whole.
func TestStepsLeaveEachLevel(t *testing.T) {
	k := newKeepers(t, 1)
	k.must("a", "policy memory=last:1 nvme=every:10,last:2 object=every:10,nth:20,last:1")
	for _, n := range []uint64{9, 10, 19, 20, 30, 40, 50, 51} {
		k.commit(1, n)
		k.flushAll()
	}
	k.want("before", "1/9:nvme 1/10:object 1/19:nvme 1/20:object 1/30:object 1/40:object 1/50:object 1/51:nvme")
	if out := k.script.retain(); out != "1/30 deleted 1/20 committed 1/19 deleted 1/10 deleted 1/9 deleted" {
		t.Fatalf("the pass: %s", out)
	}
	k.flushAll()
	k.want("after", "1/20:object- 1/40:object 1/50:object 1/51:nvme")
	if out := k.script.retain(); out != "nothing" {
		t.Fatalf("a second pass: %s", out)
	}
	k.replays()
}

// TestAnEvictionIsRepeatedUntilItIsDone: the leader queues an eviction again that was canceled, also if the
// row of the job is gone, and never one that was done.
func TestAnEvictionIsRepeatedUntilItIsDone(t *testing.T) {
	k := newKeepers(t, 1)
	forget := func() { // the rows of ended jobs
		for n := range record.MaxEndedJobs {
			name := fmt.Sprint("d", n)
			k.c.mkdir(k.c.mkdir(k.c.root, name), "x")
			k.ok(k.c.removeTree(k.c.root, name))
		}
		k.settleJobs()
	}
	k.must("a", "policy nvme=last:1 object=every:10,last:9")
	for _, n := range []uint64{10, 20} {
		k.commit(1, n)
		k.flushAll()
	}
	if out := k.script.retain(); out != "1/10 committed" {
		t.Fatalf("the pass: %s", out)
	}
	for _, j := range k.ok(k.c.read(&wire.MetaRequest{Op: &wire.MetaRequest_ListJobs{ListJobs: &wire.ListJobs{}}})).GetJobs().GetJobs() {
		k.ok(k.c.do(&wire.MetaRequest{Op: &wire.MetaRequest_CancelJob{CancelJob: &wire.CancelJob{Id: j.Id}}}))
	}
	k.flushAll()
	k.want("the job was canceled", "1/10:object 1/20:object")
	forget()
	if out := k.script.retain(); out != "1/10 committed" {
		t.Fatalf("the row of the job is gone: %s", out)
	}
	k.flushAll()
	k.want("queued again", "1/10:object- 1/20:object")
	forget()
	if out := k.script.retain(); out != "nothing" {
		t.Fatalf("it was done: %s", out)
	}
	k.replays()
}

// TestRetentionNeverRacesAReader changes the state between the inspection of the leader and its command.
func TestRetentionNeverRacesAReader(t *testing.T) {
	for _, c := range []struct {
		name, who, line string
		stays           bool
		undo            string
	}{
		{"nothing", "", "", false, ""},
		{"a reader leases the step", "a", "hold step=1/10", true, "done step=1/10"},
		{"the step is pinned", "a", "mark step=1/10 pin=yes", true, "mark step=1/10 pin=no"},
		{"a new attempt continues from it", "z", "open r launch=L2 takeover=1\nfix attempt=2 exact=10", true, ""},
		{"the newer ones are quarantined", "a", "mark step=1/20 as=quarantined\nmark step=1/30 as=quarantined", true, "mark step=1/30 as=none"},
		{"the policy keeps more", "a", "policy nvme=last:3", true, "policy nvme=last:1"},
		{"the policy is removed", "a", "policy", true, "policy nvme=last:1"},
		{"the step gets a tag that the policy keeps", "a", "policy nvme=last:1,tag:best\nmark step=1/10 tag=best", true, "mark step=1/10 untag=best"},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := newKeepers(t, 1)
			k.must("a", "policy nvme=last:1")
			for _, n := range []uint64{10, 20, 30} {
				k.commit(1, n)
			}
			due := k.script.lookDue()
			if len(due) != 2 {
				t.Fatalf("the leader finds %v", due)
			}
			if c.line != "" {
				for line := range strings.SplitSeq(c.line, "\n") {
					k.must(c.who, line)
				}
			}
			k.script.propose(due)
			k.check()
			if has := strings.Contains(k.at(), "1/10:"); has != c.stays {
				t.Fatalf("the step is there: %t, want %t: %s", has, c.stays, k.at())
			}
			if c.undo != "" {
				k.must("a", c.undo)
				k.script.retain()
				if has := strings.Contains(k.at(), "1/10:"); has {
					t.Fatalf("after %q it is there: %s", c.undo, k.at())
				}
			}
			k.check()
			k.replays()
		})
	}
}

// TestRetentionFaults crashes a mover at each of its operations while steps go to the bucket and leave the
// devices, and repeats each command of the leader, as a new leader does.
func TestRetentionFaults(t *testing.T) {
	for _, how := range []string{"before", "after", "twice"} {
		for at := 0; ; at += 5 {
			k := newKeepers(t, 1)
			k.must("a", "policy nvme=last:1 object=every:10,last:2")
			k.crash = &crash{at: at, how: how}
			for _, n := range []uint64{10, 15, 20, 30, 35} {
				k.commit(1, n)
				k.flushAll()
				due := k.script.lookDue()
				for range 2 {
					for chunk := range slices.Chunk(due, ckpt.MaxRetained) {
						k.script.propose(chunk)
					}
					k.check()
				}
				k.flushAll()
			}
			k.wait(700) // a flush that ended with its mover is queued again
			k.script.retain()
			k.flushAll()
			k.want(fmt.Sprintf("crash %s operation %d (%s)", how, at, k.crash.hit), "1/20:object- 1/30:object 1/35:nvme")
			k.replays()
			if k.crash.hit == "" {
				break // the movers had fewer operations
			}
		}
	}
}

// TestRandomRetention saves, marks, pins, leases and relaunches at random, under random policies. A pass of the
// leader never moves a link, and never removes a step that is pinned, leased, or the parent of the attempt. A step that
// the run then has is one that the rules keep.
func TestRandomRetention(t *testing.T) {
	removed := 0
	for _, seed := range testseed.Seeds(t, 12, 1000) {
		k := newKeepers(t, seed)
		attempt, leased, pinned, parent := 1, map[string]bool{}, map[string]bool{}, ""
		some := func() string { return k.steps[k.dice.IntN(len(k.steps))] }
		for range 40 {
			switch d := k.dice.IntN(20); {
			case d < 7 || len(k.steps) == 0:
				k.next += uint64(1 + k.dice.IntN(3))
				k.commit(attempt, k.next)
			case d < 9:
				k.must("a", k.randomPolicy())
			case d < 10:
				if s := some(); k.there(s) {
					k.must("a", "hold step="+s)
					leased[s] = true
				}
			case d < 11:
				for s := range leased {
					k.must("a", "done step="+s)
					delete(leased, s)
				}
			case d < 12:
				if s := some(); k.there(s) {
					pinned[s] = !pinned[s]
					k.must("a", fmt.Sprintf("mark step=%s pin=%s", s, map[bool]string{true: "yes", false: "no"}[pinned[s]]))
				}
			case d < 14:
				if s := some(); k.there(s) {
					k.must("a", "mark step="+s+" as="+[]string{"healthy", "quarantined", "none"}[k.dice.IntN(3)])
				}
			case d < 15:
				attempt++
				parent = ""
				k.must("a", fmt.Sprintf("open r launch=L%d takeover=1", attempt))
				if out := k.script.run("a", words(fmt.Sprintf("fix attempt=%d", attempt))); !strings.Contains(out, ": ") {
					parent, _, _ = strings.Cut(out, " ")
				}
			case d < 16:
				k.wait(k.dice.IntN(5))
			default:
				k.flushAll()
			}
			before, links := k.at(), k.levelLinks()
			for chunk := range slices.Chunk(k.script.lookDue(), 1+k.dice.IntN(ckpt.MaxRetained)) {
				removed += len(k.script.propose(chunk))
			}
			if now := k.levelLinks(); now != links {
				t.Fatalf("seed %d: the links were %s, and are %s", seed, links, now)
			}
			for _, s := range k.steps {
				if strings.Contains(" "+before, " "+s+":") && !k.there(s) && (leased[s] || pinned[s] || s == parent) {
					t.Fatalf("seed %d: step %s is gone: leased %t, pinned %t, parent %s", seed, s, leased[s], pinned[s], parent)
				}
			}
			if due := k.script.lookDue(); len(due) > 0 {
				t.Fatalf("seed %d: after a pass the leader finds %v", seed, due)
			}
			k.check()
		}
		k.replays()
	}
	if removed == 0 {
		t.Fatal("no pass ever changed a step")
	}
}

// there reports whether a step is committed.
func (k *keepers) there(step string) bool { return strings.Contains(" "+k.at(), " "+step+":") }

// levelLinks returns the links of levels.
func (k *keepers) levelLinks() string {
	return orNothing(slices.DeleteFunc(strings.Fields(k.script.links()), func(s string) bool { return !strings.HasPrefix(s, "latest") }))
}

// randomPolicy draws a line that sets a policy.
func (k *keepers) randomPolicy() string {
	line := "policy"
	for l := moraine.Memory; l <= moraine.Object; l++ {
		if k.dice.IntN(3) == 0 {
			continue
		}
		var rule []string
		for _, w := range []string{"every:%d", "last:%d", "nth:%d", "bytes:%d00", "millis:%d000"} {
			if k.dice.IntN(3) == 0 {
				rule = append(rule, fmt.Sprintf(w, 1+k.dice.IntN(5)))
			}
		}
		line += " " + l.String() + "=" + strings.Join(rule, ",")
	}
	return line
}
