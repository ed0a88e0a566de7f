// Package retention decides which steps of a run stay, and where, by the policy of its checkpoints. It is
// pure: the metadata service and the command line use the same rules.
//
// A Judge gets the steps of a run one after the other, newest first (Next). It counts for each level
// what the rules of the level need, and returns what should happen to the step. When the counts
// cannot change a verdict any more (Settled), the judge needs no further steps: a caller that asks
// about one old step then skips those between.
package retention

import (
	"fmt"
	"slices"

	"github.com/morainefs/moraine"
)

// Rule says which steps belong to a level, and which of them stay there.
type Rule struct {
	Level moraine.Level
	// The steps whose number Every divides belong to the level. 0 is every step for memory and nvme.
	// A step that is in the bucket always belongs to level object.
	Every uint64
	// A step stays while any of these fields keeps it. If none is set all steps of the level stay.
	KeepLast   uint32 // so many newest
	KeepEvery  uint64 // those whose number it divides
	KeepMillis uint64 // those that are not older
	KeepBytes  uint64 // the newest that have so many bytes together
	KeepTags   []string
}

// keeps reports whether the rule says which steps stay.
func (r *Rule) keeps() bool {
	return r.KeepLast > 0 || r.KeepEvery > 0 || r.KeepMillis > 0 || r.KeepBytes > 0 || len(r.KeepTags) > 0
}

// selects reports whether a step of a number goes to the level of the rule by itself.
func (r *Rule) selects(number uint64) bool {
	if r.Every == 0 {
		return r.Level < moraine.Object
	}
	return number%r.Every == 0
}

// Selects reports whether the rules bring a step of a number to a level.
func Selects(rules []Rule, level moraine.Level, number uint64) bool {
	return slices.ContainsFunc(rules, func(r Rule) bool { return r.Level == level && r.selects(number) })
}

// StaysInMemory reports whether the rules leave a step of a number at level memory: they bring only some steps
// to nvme, and this one neither there nor to the bucket.
func StaysInMemory(rules []Rule, number uint64) bool {
	some := slices.ContainsFunc(rules, func(r Rule) bool { return r.Level == moraine.NVMe && r.Every > 1 })
	return some && !Selects(rules, moraine.NVMe, number) && !Selects(rules, moraine.Object, number)
}

// Step is what the rules look at.
type Step struct {
	Number uint64
	Level  moraine.Level // that all of its files have
	Bytes  uint64
	Age    uint64 // milliseconds
	Tags   []string
	Good   bool // neither lost nor quarantined
	Pinned bool
	// Protected says why the step stays whatever the rules say; empty: it is not protected.
	Protected string
}

// Action is what should happen to a step.
type Action uint8

// The actions.
const (
	Stay   Action = iota
	Evict         // it stays in the bucket, and leaves the devices
	Remove        // it is removed everywhere
)

// String returns a word for the action.
func (a Action) String() string { return [...]string{"stay", "evict", "remove"}[a] }

// Verdict is an action and its reason.
type Verdict struct {
	Action Action
	Why    string
}

// levels are the levels that a committed step may have.
const levels = moraine.Object - moraine.Memory + 1

// Judge judges the steps of one run. The zero value is not usable: see NewJudge.
type Judge struct {
	rules   []ruleCount
	hasGood bool
	seen    [levels]bool // the newest good step of a level was there
}

// ruleCount counts the good steps of a level so far.
type ruleCount struct {
	Rule
	steps uint32
	bytes uint64
}

// NewJudge returns a judge by rules, at most one for each level. hasGood says whether the run has a good step
// from which its next launch can continue: before that no bad step is removed.
func NewJudge(rules []Rule, hasGood bool) *Judge {
	j := &Judge{hasGood: hasGood}
	object := false
	for _, r := range rules {
		j.rules = append(j.rules, ruleCount{Rule: r})
		object = object || r.Level == moraine.Object
	}
	if !object { // steps leave the bucket only by a rule of level object
		j.rules = append(j.rules, ruleCount{Rule: Rule{Level: moraine.Object}})
	}
	return j
}

// belongs reports whether a step is one of those that the rule counts and keeps.
func (r *ruleCount) belongs(s *Step) bool {
	return r.selects(s.Number) || r.Level == moraine.Object && s.Level >= moraine.Object
}

// holds says why the rule keeps a step that belongs to its level; empty: it does not.
func (r *ruleCount) holds(s *Step) string {
	switch {
	case !r.keeps():
		return fmt.Sprintf("level %s keeps all its steps", r.Level)
	case r.steps < r.KeepLast:
		return fmt.Sprintf("level %s keeps the last %d", r.Level, r.KeepLast)
	case r.KeepEvery > 0 && s.Number%r.KeepEvery == 0:
		return fmt.Sprintf("level %s keeps every %dth step", r.Level, r.KeepEvery)
	case s.Age < r.KeepMillis:
		return fmt.Sprintf("level %s keeps steps of this age", r.Level)
	case r.KeepBytes > 0 && r.bytes+s.Bytes <= r.KeepBytes:
		return fmt.Sprintf("level %s keeps the newest %d bytes", r.Level, r.KeepBytes)
	}
	for _, tag := range s.Tags {
		if slices.Contains(r.KeepTags, tag) {
			return fmt.Sprintf("level %s keeps tag %s", r.Level, tag)
		}
	}
	return ""
}

// Next judges the next older step of the run.
func (j *Judge) Next(s Step) Verdict {
	protected := s.Protected
	for l := range levels {
		if s.Good && s.Level >= moraine.Memory+l && !j.seen[l] {
			j.seen[l] = true
			if protected == "" {
				protected = fmt.Sprintf("it is the newest good step at level %s", moraine.Memory+l)
			}
		}
	}
	held, local := "", false // local: a level below object keeps it, or none has a rule
	ruled, ruledBelow := false, false
	for n := range j.rules {
		r := &j.rules[n]
		below := r.Level < moraine.Object
		ruledBelow = ruledBelow || below && r.keeps()
		if !r.belongs(&s) {
			continue
		}
		ruled = ruled || r.keeps()
		if why := r.holds(&s); why != "" {
			local = local || below
			if held == "" || !below { // object's reason says why an evicted step stays
				held = why
			}
		}
		if s.Good && s.Level >= r.Level {
			r.steps++
			r.bytes += s.Bytes
		}
	}
	return j.verdict(&s, protected, held, ruled, ruledBelow && !local)
}

// verdict combines what the rules say of a step. leaves says that the levels below object do not keep it.
func (j *Judge) verdict(s *Step, protected, held string, ruled, leaves bool) Verdict {
	switch {
	case protected != "":
		return Verdict{Stay, protected}
	case !s.Good && !j.hasGood:
		return Verdict{Stay, "the run has no good step"}
	case s.Pinned:
		held = "it is pinned"
	case held == "" && !ruled:
		held = "no level has a rule for it"
	case held == "":
		return Verdict{Remove, "no level keeps it"}
	}
	if leaves && s.Level >= moraine.Object {
		return Verdict{Evict, held + "; the levels below do not"}
	}
	return Verdict{Stay, held}
}

// Settled reports whether the steps judged so far decide the verdicts of all older steps. has
// reports whether the run has a step at a level.
func (j *Judge) Settled(has func(moraine.Level) bool) bool {
	for l := range levels {
		if !j.seen[l] && has(moraine.Memory+l) {
			return false
		}
	}
	for n := range j.rules {
		if r := &j.rules[n]; r.steps < r.KeepLast || r.KeepBytes > 0 && r.bytes <= r.KeepBytes {
			return false
		}
	}
	return true
}
