package metadatatest

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state/kvtx"
)

// store is one member of a group, as the metadata service sees it.
type store struct {
	g       *Group
	id      string
	fsm     metadata.FSM
	changes chan bool
}

func (s *store) Run(ctx context.Context) error { <-ctx.Done(); return nil }

// Propose implements metadata.Store. An entry that the FSM cannot apply panics:
// a real store would stop its server.
func (s *store) Propose(ctx context.Context, entry []byte) (any, error) {
	if err := s.wait(ctx); err != nil {
		return nil, err
	}
	s.g.state.Lock()
	defer s.g.state.Unlock()
	if s.g.Leader() != s.id {
		return nil, &moraine.Error{Op: "propose", Kind: moraine.NotLeader}
	}
	lost := &moraine.Error{Op: "propose", Kind: moraine.Unavailable}
	if s.g.take(&s.g.faults.Refuse) {
		return nil, lost
	}
	if s.g.take(&s.g.faults.Late) {
		s.g.late = append(s.g.late, slices.Clone(entry))
		return nil, lost
	}
	for _, earlier := range s.g.late {
		s.apply(earlier)
	}
	s.g.late = nil
	result := s.apply(entry)
	if s.g.take(&s.g.faults.LoseReplies) {
		return nil, lost
	}
	return result, nil
}

// apply applies an entry; the group's state is locked.
func (s *store) apply(entry []byte) any {
	s.g.applied++
	result, err := s.fsm.ApplyEntry(s.g.kv, s.g.applied, entry)
	if err != nil {
		panic(err)
	}
	s.g.mu.Lock()
	defer s.g.mu.Unlock()
	s.g.entries++
	return result
}

// wait waits as long as a proposal takes.
func (s *store) wait(ctx context.Context) error {
	s.g.mu.Lock()
	slow := s.g.faults.Slow
	s.g.mu.Unlock()
	if slow == 0 {
		return nil
	}
	select {
	case <-time.After(slow):
		return nil
	case <-ctx.Done():
		return &moraine.Error{Op: "propose", Kind: moraine.Unavailable, Err: ctx.Err()}
	}
}

// take takes one of a number of faults, and reports whether there was one.
func (g *Group) take(faults *int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if *faults == 0 {
		return false
	}
	*faults--
	return true
}

func (s *store) ReadBarrier(context.Context) error {
	if s.g.Leader() != s.id {
		return &moraine.Error{Op: "read barrier", Kind: moraine.NotLeader}
	}
	return nil
}

func (s *store) View(fn func(kvtx.Reader, uint64) error) error {
	s.g.state.Lock()
	defer s.g.state.Unlock()
	return fn(s.g.kv, s.g.applied)
}

func (s *store) Leader() (string, bool) {
	leader := s.g.Leader()
	return leader, leader == s.id
}

func (s *store) LeadershipChanges() <-chan bool { return s.changes }

func (s *store) Term() uint64 {
	s.g.mu.Lock()
	defer s.g.mu.Unlock()
	return s.g.term
}

// Members implements metadata.Store; they are in the order of their ids.
func (s *store) Members() []lead.Member {
	s.g.mu.Lock()
	defer s.g.mu.Unlock()
	var out []lead.Member
	for id := range s.g.members {
		out = append(out, lead.Member{ID: id, Voter: true, Leader: id == s.g.leader, Alive: true, Match: uint64(s.g.entries)})
	}
	slices.SortFunc(out, func(a, b lead.Member) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

func (s *store) LowSpace() bool {
	s.g.mu.Lock()
	defer s.g.mu.Unlock()
	return s.g.faults.LowSpace
}

func (s *store) Healthy() error { return nil }
