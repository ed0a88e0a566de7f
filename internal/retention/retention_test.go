package retention

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/testseed"
)

const (
	memory = moraine.Memory
	nvme   = moraine.NVMe
	object = moraine.Object
)

// list makes steps from words, newest first: "NUMBER[levels and marks]". The marks are m, n and o for the level, ! for a
// bad step, p for a pin, P for a protection, #TAG for a tag. A step has 10 bytes and is as many milliseconds old as
// its place in the list.
func list(t *testing.T, text string) (steps []Step) {
	t.Helper()
	for n, word := range strings.Fields(text) {
		s := Step{Level: nvme, Bytes: 10, Age: uint64(n), Good: true}
		word, tag, tagged := strings.Cut(word, "#")
		if tagged {
			s.Tags = []string{tag}
		}
		marks := strings.TrimLeft(word, "0123456789")
		if _, err := fmt.Sscan(strings.TrimSuffix(word, marks), &s.Number); err != nil {
			t.Fatal(err)
		}
		for _, m := range marks {
			switch m {
			case 'm':
				s.Level = memory
			case 'n':
				s.Level = nvme
			case 'o':
				s.Level = object
			case '!':
				s.Good = false
			case 'p':
				s.Pinned = true
			case 'P':
				s.Protected = "it is protected"
			default:
				t.Fatalf("mark %c of %s", m, word)
			}
		}
		steps = append(steps, s)
	}
	return steps
}

// verdicts writes what happens to steps: a letter each.
func verdicts(rules []Rule, steps []Step) string {
	j := NewJudge(rules, slices.ContainsFunc(steps, func(s Step) bool { return s.Good }))
	var out strings.Builder
	for _, s := range steps {
		out.WriteByte("ser"[j.Next(s).Action])
	}
	return out.String()
}

// TestRules compares the verdicts for some runs with what their policies say.
func TestRules(t *testing.T) {
	for _, c := range []struct {
		name  string
		rules []Rule
		steps string // newest first
		want  string // s: stays, e: evicted, r: removed
	}{
		{"no rule", nil, "5 4 3o 2 1m", "sssss"},
		{"a level that keeps all", []Rule{{Level: nvme, Every: 10}, {Level: memory, KeepLast: 1}}, "31 30 29 20 10", "ssrss"},
		{"the last three", []Rule{{Level: nvme, KeepLast: 3}}, "5 4 3 2 1", "sssrr"},
		{"memory has no say in steps of nvme", []Rule{{Level: memory, KeepLast: 2}, {Level: nvme, Every: 10, KeepLast: 1}}, "32 31 30 29 20 10", "sssrrr"},
		{"nothing asks for a step", []Rule{{Level: nvme, Every: 10, KeepLast: 1}}, "31 30 29 20", "sssr"},
		{"every second", []Rule{{Level: nvme, KeepLast: 1, KeepEvery: 2}}, "5 4 3 2 1", "ssrsr"},
		{"young ones", []Rule{{Level: nvme, KeepMillis: 3}}, "9 8 7 6 5", "sssrr"},
		{"bytes", []Rule{{Level: nvme, KeepBytes: 35}}, "9 8 7 6 5", "sssrr"},
		{"tags", []Rule{{Level: nvme, KeepLast: 1, KeepTags: []string{"best"}}}, "9 8#best 7#other 6", "ssrr"},
		{"a pin", []Rule{{Level: nvme, KeepLast: 1}}, "9 8p 7", "ssr"},
		{"a protected step", []Rule{{Level: nvme, KeepLast: 1}}, "9 8P 7", "ssr"},
		{"bad steps do not count", []Rule{{Level: nvme, KeepLast: 2}}, "9! 8 7! 6 5! 4", "ssssrr"},
		{"bad steps stay while there is no good one", []Rule{{Level: nvme, KeepLast: 1, KeepEvery: 100}}, "9! 8! 7!", "sss"},
		{"the newest of each level", []Rule{{Level: memory, KeepLast: 1}}, "9m 8m 7 6 5o 4o", "srsrse"},
		{"the bucket keeps what left nvme", []Rule{{Level: nvme, KeepLast: 2}}, "9o 8o 7o 6 5o", "ssere"},
		{"the bucket's own rule", []Rule{{Level: nvme, KeepLast: 1}, {Level: object, Every: 10, KeepLast: 2}}, "40o 30o 20o 15o 10o", "serrr"},
		{"a step waits for the bucket", []Rule{{Level: nvme, KeepLast: 1}, {Level: object, Every: 10, KeepLast: 1}}, "50 40 30 20o 10o", "ssssr"},
		{"memory's rule evicts too", []Rule{{Level: memory, KeepLast: 2}, {Level: object, Every: 10}}, "40o 30o 20o 15", "sser"},
		{"a pinned step leaves the devices", []Rule{{Level: nvme, KeepLast: 1}}, "9o 8op 7op", "see"},
		{"a protected step leaves nothing", []Rule{{Level: nvme, KeepLast: 1}}, "9o 8oP", "ss"},
		{"no rule below the bucket", []Rule{{Level: object, Every: 10, KeepLast: 1}}, "30o 20o 15", "srs"},
		{"step 0", []Rule{{Level: nvme, KeepLast: 1, KeepEvery: 5}}, "6 3 0", "srs"},
	} {
		if got := verdicts(c.rules, list(t, c.steps)); got != c.want {
			t.Errorf("%s: the steps %s: %s, want %s", c.name, c.steps, got, c.want)
		}
	}
}

// TestAStepThatRoseBelongsToTheSameLevels: every step to memory, which keeps the last two, and every 10th to nvme. Step 32
// rose because somebody asked. It counts as one of the last two, and goes when two newer ones are there, as if it had not
// risen. The newest step at nvme stays, whether it rose or not.
func TestAStepThatRoseBelongsToTheSameLevels(t *testing.T) {
	rules := []Rule{{Level: memory, KeepLast: 2}, {Level: nvme, Every: 10, KeepLast: 3}}
	for _, c := range []struct{ steps, want string }{
		{"32m 31m 30n 20n", "ssss"},
		{"32n 31m 30n 20n", "ssss"},
		{"33m 32n 31m 30n 20n", "ssrss"},
		{"35m 34m 33m 32n 31m 30n 20n", "ssrsrss"},
		{"35m 34m 33m 32np 31m 30n 20n", "ssrsrss"},
		{"40n 39m 38m 32n 30n 20n", "ssrrss"},
		{"40n 39m 38m 32m 30n 20n", "ssrrss"},
		{"40n 39m 38m 32np 30n 20n", "ssrsss"},
		{"50n 49m 40n 32np 30n 20n", "sssssr"},
	} {
		if got := verdicts(rules, list(t, c.steps)); got != c.want {
			t.Errorf("the steps %s: %s, want %s", c.steps, got, c.want)
		}
	}
}

// TestEachVerdictHasAReason requires a sentence for every verdict.
func TestEachVerdictHasAReason(t *testing.T) {
	j := NewJudge([]Rule{{Level: nvme, KeepLast: 1}}, true)
	for _, c := range []struct{ step, want string }{
		{"9", "it is the newest good step at level memory"}, {"8p", "it is pinned"}, {"7P", "it is protected"},
		{"6", "no level keeps it"}, {"5o", "it is the newest good step at level object"},
		{"4o", "level object keeps all its steps; the levels below do not"},
	} {
		if got := j.Next(list(t, c.step)[0]).Why; got != c.want {
			t.Errorf("step %s: %q, want %q", c.step, got, c.want)
		}
	}
}

// randomRules draws a policy.
func randomRules(dice *rand.Rand) (rules []Rule) {
	for l := memory; l <= object; l++ {
		if dice.IntN(3) == 0 {
			continue
		}
		r := Rule{Level: l, Every: uint64(dice.IntN(5))}
		if dice.IntN(2) == 0 {
			r.KeepLast = uint32(dice.IntN(4))
		}
		if dice.IntN(4) == 0 {
			r.KeepEvery = uint64(dice.IntN(7))
		}
		if dice.IntN(4) == 0 {
			r.KeepMillis = uint64(dice.IntN(20))
		}
		if dice.IntN(4) == 0 {
			r.KeepBytes = uint64(dice.IntN(100))
		}
		if dice.IntN(4) == 0 {
			r.KeepTags = []string{"best"}
		}
		rules = append(rules, r)
	}
	return rules
}

// randomSteps draws the steps of a run, newest first.
func randomSteps(dice *rand.Rand) []Step {
	steps := make([]Step, dice.IntN(25))
	for n := range steps {
		s := Step{Number: uint64(40 - n - dice.IntN(2)), Level: memory + moraine.Level(dice.IntN(3)), Bytes: uint64(dice.IntN(20)), Age: uint64(n), Good: dice.IntN(4) > 0}
		s.Pinned = dice.IntN(10) == 0
		if dice.IntN(8) == 0 {
			s.Tags = []string{[]string{"best", "other"}[dice.IntN(2)]}
		}
		if dice.IntN(10) == 0 {
			s.Protected = "protected"
		}
		steps[n] = s
	}
	return steps
}

// slowAction is the rules again, step by step over the whole list.
func slowAction(rules []Rule, steps []Step, at int) Action {
	s := steps[at]
	anyGood := false
	for _, o := range steps {
		anyGood = anyGood || o.Good
	}
	if s.Protected != "" || !s.Good && !anyGood {
		return Stay
	}
	for l := memory; s.Good && l <= s.Level; l++ {
		newest := true
		for _, o := range steps[:at] {
			newest = newest && (!o.Good || o.Level < l)
		}
		if newest {
			return Stay
		}
	}
	inBucket := s.Level == object
	bucketRule, ruledBelow := false, false
	heldBelow, heldInBucket, ruled := false, false, false
	for _, r := range rules {
		some := r.KeepLast > 0 || r.KeepEvery > 0 || r.KeepMillis > 0 || r.KeepBytes > 0 || r.KeepTags != nil
		of := func(o Step) bool {
			if r.Level == object && o.Level == object {
				return true
			}
			return r.Every > 0 && o.Number%r.Every == 0 || r.Every == 0 && r.Level != object
		}
		if r.Level == object {
			bucketRule = true
		} else if some {
			ruledBelow = true
		}
		if !of(s) {
			continue
		}
		newer, bytes := uint32(0), s.Bytes
		for _, o := range steps[:at] {
			if of(o) && o.Good && o.Level >= r.Level {
				newer++
				bytes += o.Bytes
			}
		}
		held := !some || newer < r.KeepLast || r.KeepEvery > 0 && s.Number%r.KeepEvery == 0 || s.Age < r.KeepMillis ||
			r.KeepBytes > 0 && bytes <= r.KeepBytes
		for _, tag := range s.Tags {
			held = held || slices.Contains(r.KeepTags, tag)
		}
		ruled = ruled || some
		if r.Level == object {
			heldInBucket = heldInBucket || held
		} else {
			heldBelow = heldBelow || held
		}
	}
	if inBucket && !bucketRule {
		heldInBucket = true
	}
	if !heldBelow && !heldInBucket && !s.Pinned && ruled {
		return Remove
	}
	if inBucket && ruledBelow && !heldBelow {
		return Evict
	}
	return Stay
}

// TestVerdictsAreThoseOfASlowModel judges random runs by random policies.
func TestVerdictsAreThoseOfASlowModel(t *testing.T) {
	var seen [3]int
	for _, seed := range testseed.Seeds(t, 2000, 100_000) {
		dice := rand.New(rand.NewPCG(seed, 5))
		rules, steps := randomRules(dice), randomSteps(dice)
		got := verdicts(rules, steps)
		for n := range steps {
			want := slowAction(rules, steps, n)
			seen[want]++
			if got[n] != "ser"[want] {
				t.Fatalf("seed %d: rules %+v, steps %+v: step %d: %c, want %s", seed, rules, steps, n, got[n], want)
			}
		}
	}
	if seen[Stay] == 0 || seen[Evict] == 0 || seen[Remove] == 0 {
		t.Fatalf("the dice never made one of the actions: %v", seen)
	}
}

// TestASettledJudgeNeedsNoStepsBetween judges each step alone: the newer ones until the judge is settled, and then it.
func TestASettledJudgeNeedsNoStepsBetween(t *testing.T) {
	skipped := 0
	for _, seed := range testseed.Seeds(t, 2000, 100_000) {
		dice := rand.New(rand.NewPCG(seed, 6))
		rules, steps := randomRules(dice), randomSteps(dice)
		whole := verdicts(rules, steps)
		good := slices.ContainsFunc(steps, func(s Step) bool { return s.Good })
		has := func(l moraine.Level) bool {
			return slices.ContainsFunc(steps, func(s Step) bool { return s.Level >= l })
		}
		for n := range steps {
			j := NewJudge(rules, good)
			for at := 0; at < n; at++ {
				if j.Settled(has) {
					skipped += n - at
					break
				}
				j.Next(steps[at])
			}
			if got := j.Next(steps[n]).Action; "ser"[got] != whole[n] {
				t.Fatalf("seed %d: rules %+v, steps %+v: step %d alone: %s, want %c", seed, rules, steps, n, got, whole[n])
			}
		}
	}
	if skipped == 0 {
		t.Fatal("no judge was ever settled")
	}
}

// TestStaysInMemory: a step stays in memory if nvme has an interval, and neither that nor the one of the bucket
// has the step.
func TestStaysInMemory(t *testing.T) {
	nvme10, object25 := Rule{Level: nvme, Every: 10}, Rule{Level: object, Every: 25}
	for _, row := range []struct {
		rules  []Rule
		number uint64
		stays  bool
	}{
		{nil, 3, false},
		{[]Rule{{Level: memory, Every: 2, KeepLast: 2}}, 3, false},
		{[]Rule{{Level: nvme, KeepLast: 2}}, 3, false},
		{[]Rule{{Level: nvme, Every: 1}}, 3, false},
		{[]Rule{object25}, 3, false},
		{[]Rule{nvme10}, 3, true},
		{[]Rule{nvme10}, 20, false},
		{[]Rule{nvme10, object25}, 25, false},
		{[]Rule{nvme10, object25}, 26, true},
		{[]Rule{nvme10, {Level: object, KeepLast: 3}}, 26, true},
	} {
		if got := StaysInMemory(row.rules, row.number); got != row.stays {
			t.Errorf("step %d under %+v: %v", row.number, row.rules, got)
		}
	}
}
