package state_test

import (
	"strings"
	"testing"
)

// TestARunIsRemovedDuringASave: the unfinished steps of a removed run end as others do: when their
// session ends, when they time out, or when their job is refused. Nothing of them is left.
func TestARunIsRemovedDuringASave(t *testing.T) {
	for end, lines := range map[string]string{
		"a session ends": "expire a",
		"time passes":    "tick 700000|silent",
	} {
		t.Run(end, func(t *testing.T) {
			s := &ckptScript{bench: newCluster(t, 3), sessions: map[string]*client{}}
			for line := range strings.SplitSeq("a open r launch=L1|a begin step=1/10 rank=0 world=2|a begin step=1/10 rank=1 world=2|a seal step=1/10 rank=0|a begin step=1/11 rank=0 world=1|a seal step=1/11 rank=0", "|") {
				who, rest, _ := strings.Cut(line, " ")
				s.run(who, words(rest))
			}
			c := s.open(nil)
			s.ok(c.removeTree(c.root, "r"))
			s.settleJobs()
			s.check()
			for line := range strings.SplitSeq(lines, "|") {
				who, rest, _ := strings.Cut(line, " ")
				s.run(who, words(rest))
				s.check()
			}
			if got := s.run("w", words("lease")); !strings.Contains(got, "step-11") {
				t.Fatalf("the sealed step is not there to check: %s", got)
			}
			s.run("w", words("finish error=gone final=yes"))
			s.settleJobs()
			s.check()
			if got := s.leaderJobs(); got != "1 inodes, 0 stripes" {
				t.Errorf("left behind: %s", got)
			}
		})
	}
}
