package state_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/morainefs/moraine/metadata/state/statetest"
	"github.com/morainefs/moraine/transport/wire"
)

// checkpoint is a save by two ranks, from the first request to the last.
var checkpoint = []string{
	"a open r launch=L1",
	"b open r launch=L1",
	"a fix attempt=1",
	"a begin step=1/10 rank=0 world=2 timeout=60000",
	"b begin step=1/10 rank=1 world=2",
	"a claim step=1/10 rank=0 groups=same,a",
	"b claim step=1/10 rank=1 groups=b,same",
	"a seal step=1/10 rank=0 digest=x",
	"b seal step=1/10 rank=1 digest=y",
	"m lease",
	"m commit step=1/10",
	"m finish",
}

// claimed has the answers to the claims: rank 0 was the first with the group that both have.
var claimed = map[string]string{
	"a claim step=1/10 rank=0 groups=same,a": "ranks [0 0]",
	"b claim step=1/10 rank=1 groups=b,same": "ranks [1 0]",
}

// TestCheckpointFaults injects one fault after each request of a save. A retried request, as after
// a lost reply, changes nothing. After any other fault the step is whole or absent.
func TestCheckpointFaults(t *testing.T) {
	faults := []struct {
		name string
		fail func(s *ckptScript, line string)
		// saved reports whether the step must exist in the end, by the number of requests before
		// the fault.
		saved func(after int) bool
	}{
		{"none", func(*ckptScript, string) {}, always},
		{"the reply is lost, and the request sent again", func(s *ckptScript, line string) {
			if s.last == nil || strings.Contains(line, "lease") {
				return
			}
			first := s.show(s.lastBy.send(s.last).Response)
			if again := s.show(s.lastBy.send(s.last).Response); again != first {
				s.t.Errorf("%s: %q, and again %q", line, first, again)
			}
		}, always},
		{"the request is made again, under another number", func(s *ckptScript, line string) {
			if s.last == nil {
				return
			}
			op := &wire.MetaRequest{Op: s.last.Op}
			again := s.show(s.lastBy.send(s.lastBy.request(op)).Response)
			if want := claimed[line]; want != "" && again != want {
				s.t.Errorf("%s: again %q, want %q", line, again, want)
			}
		}, always},
		{"rank 0's session ends", func(s *ckptScript, _ string) { s.run("expire", words("a")) }, func(after int) bool { return after >= 8 }},
		{"rank 1's session ends", func(s *ckptScript, _ string) {
			if s.sessions["b"] != nil {
				s.run("expire", words("b"))
			}
		}, func(after int) bool { return after < 2 || after >= 9 }},
		{"another attempt takes over", func(s *ckptScript, _ string) { s.run("z", words("open r launch=Z takeover=1")) }, func(after int) bool { return after >= 9 }},
		{"time passes without a seal", func(s *ckptScript, _ string) {
			s.run("tick", words("60000"))
			s.run("silent", nil)
		}, func(after int) bool { return after < 4 || after >= 9 }},
		{"the worker falls silent", func(s *ckptScript, _ string) {
			s.run("tick", words("15001"))
			s.run("w", words("lease"))
		}, always},
		{"the worker's session ends", func(s *ckptScript, _ string) {
			if s.sessions["m"] != nil {
				s.run("expire", words("m"))
				delete(s.sessions, "m")
			}
		}, always},
		{"the step is aborted", func(s *ckptScript, _ string) {
			if s.sessions["a"] != nil {
				s.run("a", words("abort step=1/10"))
			}
		}, func(after int) bool { return after < 4 || after >= 11 }},
	}
	for _, f := range faults {
		for after := 1; after <= len(checkpoint); after++ {
			t.Run(fmt.Sprintf("%s/after %d", f.name, after), func(t *testing.T) {
				s := &ckptScript{bench: newCluster(t, 3), sessions: map[string]*client{}}
				for n, line := range checkpoint {
					who, rest, _ := strings.Cut(line, " ")
					s.last = nil
					out := s.run(who, words(rest))
					if want := claimed[line]; want != "" && n < after && out != want {
						t.Errorf("%s: %s, want %s", line, out, want)
					}
					if n+1 == after {
						f.fail(s, line)
					}
				}
				s.check()
				s.wholeOrNothing(f.saved(after))
				s.replays()
			})
		}
	}
}

func always(int) bool { return true }

// wholeOrNothing checks that the step is visible with all its files, or that no part of it is.
func (s *ckptScript) wholeOrNothing(saved bool) {
	s.t.Helper()
	c := s.session("reader")
	resp := c.walk("/r/latest/part-1")
	visible := resp.GetError() == nil && resp.GetWalk().GetFound()
	if visible != saved {
		s.t.Errorf("the step is there: %t, want %t (%s)", visible, saved, s.query(c, "get", words("step=1/10")))
	}
	if !visible {
		if links := s.links(); links != "nothing" {
			s.t.Errorf("left behind: %s", links)
		}
		s.gone()
		return
	}
	for _, name := range []string{"part-0", "part-1", "index"} {
		for _, dir := range []string{"latest", "latest-memory", "latest-nvme", "step-10", "attempt-1/step-10"} {
			if w := c.walk("/r/" + dir + "/" + name); w.GetError() != nil || !w.GetWalk().GetFound() {
				s.t.Errorf("%s/%s is not there: %s", dir, name, outcome(w))
			}
		}
	}
	s.gone()
}

// gone ends a step that is still open, and checks that the leader's jobs then leave no claim.
func (s *ckptScript) gone() {
	s.t.Helper()
	s.run("tick", words("700000"))
	s.run("silent", nil)
	s.run("run", nil)
	if n := s.claims(); n > 0 {
		s.t.Errorf("%d claims are left", n)
	}
	s.check()
}

// replays applies the whole log to an empty store and compares the bytes.
func (b *bench) replays() {
	b.t.Helper()
	kv := statetest.NewKV()
	for i, entry := range b.entries {
		if _, err := applyEntry(b.m, kv, uint64(i+1), entry); err != nil {
			b.t.Fatalf("replay of entry %d: %v", i+1, err)
		}
	}
	if diff := statetest.Diff(b.kv, kv); diff != "" {
		b.t.Errorf("a replay differs: %s", diff)
	}
}
