package state_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/morainefs/moraine/transport/wire"
)

// TestRemovalFaults removes the latest checkpoint in each way and injects one fault. The links
// never point to a missing step, and the list agrees with them.
func TestRemovalFaults(t *testing.T) {
	doors := []string{"a rm step=1/20", "a rmtree attempt-1/step-20", "a unlink attempt-1/step-20:index"}
	faults := map[string]func(s *ckptScript, door string) (removed bool){
		"none": func(s *ckptScript, door string) bool { s.line(door); return true },
		"it fails, since the step is read": func(s *ckptScript, door string) bool {
			s.line("x hold step=1/20")
			if out := s.line(door); !strings.HasPrefix(out, "busy: ") {
				s.t.Errorf("while it is read: %s", out)
			}
			return false
		},
		"the reply is lost, and the request sent again": func(s *ckptScript, door string) bool {
			first := s.line(door)
			if again := s.line("again"); again != first {
				s.t.Errorf("%q, and again %q", first, again)
			}
			return true
		},
		"the request is made again, under another number": func(s *ckptScript, door string) bool {
			s.line(door)
			s.lastBy.send(s.lastBy.request(&wire.MetaRequest{Op: s.last.Op}))
			return true
		},
		"another door comes after it": func(s *ckptScript, door string) bool {
			s.line(door)
			s.line("b rm step=1/20")
			return true
		},
		"a reader comes after it": func(s *ckptScript, door string) bool {
			s.line(door)
			if out := s.line("x hold step=1/20"); out != "not found" {
				s.t.Errorf("a lease on what is removed: %s", out)
			}
			return true
		},
		"the session ends after it": func(s *ckptScript, door string) bool {
			s.line(door)
			s.line("expire a")
			return true
		},
		"the same step is saved by another attempt": func(s *ckptScript, door string) bool {
			s.line(door)
			for _, l := range []string{"z open r launch=Z takeover=1", "z begin step=2/20 rank=0 world=1", "z seal step=2/20 rank=0", "m lease", "m commit step=2/20"} {
				s.line(l)
			}
			return false
		},
	}
	for name, fault := range faults {
		for n, door := range doors {
			t.Run(fmt.Sprintf("%s/%d", name, n), func(t *testing.T) {
				s := &ckptScript{bench: newCluster(t, 3), sessions: map[string]*client{}}
				s.line("a open r launch=L1")
				for _, step := range []int{10, 20} {
					s.line(fmt.Sprintf("a begin step=1/%d rank=0 world=1", step))
					s.line(fmt.Sprintf("a seal step=1/%d rank=0", step))
					s.line("m lease")
					s.line(fmt.Sprintf("m commit step=1/%d", step))
				}
				latest := map[bool]string{true: "step-10", false: "step-20"}[fault(s, door)]
				for range 2 { // before and after the space is freed
					s.agrees(latest)
					s.check()
					s.line("run")
				}
				s.replays()
			})
		}
	}
}

func (s *ckptScript) line(line string) string {
	s.t.Helper()
	who, rest, _ := strings.Cut(line, " ")
	return s.run(who, words(rest))
}

// agrees checks that `latest` is a step, that each link of the run leads to a whole checkpoint, and
// that the list has exactly those.
func (s *ckptScript) agrees(latest string) {
	s.t.Helper()
	links := s.links()
	if !strings.Contains(links, "latest->attempt-") || !strings.Contains(links, "/"+latest+" ") {
		s.t.Errorf("latest is not %s: %s", latest, links)
	}
	c := s.session("reader")
	steps := 0
	for _, l := range strings.Fields(links) {
		name, target, ok := strings.Cut(l, "->")
		if !ok {
			continue
		}
		if strings.HasPrefix(name, "step-") {
			steps++
		}
		for _, file := range []string{"index", "part-0"} {
			if w := c.walk("/r/" + target + "/" + file); w.GetError() != nil || !w.GetWalk().GetFound() {
				s.t.Errorf("%s dangles: %s has no %s", name, target, file)
			}
		}
	}
	if list := s.query(c, "steps", map[string]string{}); strings.Count(list, ":committed") != steps {
		s.t.Errorf("the list has %s, the links %s", list, links)
	}
}
