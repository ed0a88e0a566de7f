package ckptcmd

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
)

// The service records when each rank began and sealed its part. The begin of the first rank makes the step's
// directory. What a rank has sent is what its session has in files without a name: several ranks of one node
// may share a session.

// maxShownRanks bounds the ranks that are named of one step.
const maxShownRanks = 10

// waiting is an open step, and the ranks that have not sealed.
type waiting struct {
	Step    uint64 `json:"step"`
	Attempt uint32 `json:"attempt"`
	World   uint32 `json:"world"`
	Sealed  uint32 `json:"sealed"`
	// Begun is when the first rank began, FirstSeal when the first one sealed. The metadata servers' clocks.
	Begun     time.Time `json:"begun"`
	FirstSeal time.Time `json:"first_seal,omitzero"`
	// SinceBegun and SinceFirstSeal are how long each missing rank has let the others wait.
	SinceBegun     float64 `json:"since_begun_seconds"`
	SinceFirstSeal float64 `json:"since_first_seal_seconds,omitempty"`
	// Missing are the ranks that have not sealed, the slowest first, More how many more there are.
	Missing []uint32      `json:"missing"`
	More    uint32        `json:"more_missing"`
	Ranks   []missingRank `json:"missing_ranks"`
}

// missingRank is a rank that has not sealed its part of an open step.
type missingRank struct {
	Rank uint32 `json:"rank"`
	// Begun is when it began; absent: it has not.
	Begun      time.Time `json:"begun,omitzero"`
	SinceBegun float64   `json:"since_begun_seconds,omitempty"`
	// Sent and Announced are bytes of the ranks of this step that share its session, and have not sealed.
	Sent      uint64 `json:"sent_bytes,omitempty"`
	Announced uint64 `json:"announced_bytes,omitempty"`
	Sharing   int    `json:"ranks_of_session,omitempty"`
}

// slowest is a committed step, and its ranks that sealed last.
type slowest struct {
	Step    uint64    `json:"step"`
	Attempt uint32    `json:"attempt"`
	World   uint32    `json:"world"`
	Begun   time.Time `json:"begun"`
	// Median is when half of the ranks had sealed, in seconds after Begun.
	Median float64    `json:"median_seconds"`
	Ranks  []slowRank `json:"ranks"` // the slowest first
}

// slowRank is a rank of a committed step.
type slowRank struct {
	Rank uint32 `json:"rank"`
	// Began and Sealed are when it began and sealed, in seconds after Begun, and Behind after the first
	// rank's seal.
	Began  float64 `json:"began_seconds"`
	Sealed float64 `json:"sealed_seconds"`
	Behind float64 `json:"behind_first_seconds"`
}

// sealTimes reads when ranks began and sealed. It keeps what cannot change. One goroutine uses it.
type sealTimes struct {
	c    *client.Client
	last *slowest
}

// waitingOf describes an open step; nil if it has been sealed or aborted since.
func (t *sealTimes) waitingOf(ctx context.Context, s ckpt.StepInfo, now time.Time) (*waiting, error) {
	s, err := ckpt.GetStep(ctx, t.c, client.StepKey{Run: s.Run, Attempt: s.Attempt, Step: s.Step})
	if err == nil && s.State == ckpt.StepOpen {
		var w *waiting
		if w, err = t.waits(ctx, s, now); err == nil {
			return w, nil
		}
	}
	if errors.Is(err, moraine.NotFound) {
		return nil, nil
	}
	return nil, err
}

// waits describes an open step.
func (t *sealTimes) waits(ctx context.Context, s ckpt.StepInfo, now time.Time) (*waiting, error) {
	begun, err := t.begun(ctx, s.Dir)
	if err != nil {
		return nil, err
	}
	parts, err := t.partsOf(ctx, s)
	if err != nil {
		return nil, err
	}
	w := missingOf(parts, s.World, now)
	w.Step, w.Attempt, w.World, w.Begun = s.Step, s.Attempt, s.World, begun
	w.SinceBegun = max(now.Sub(w.Begun).Seconds(), 0)
	return w, nil
}

// missingOf says which ranks have not sealed: first those that have not begun, then those that began last.
func missingOf(parts []*wire.Part, world uint32, now time.Time) *waiting {
	w := &waiting{Missing: []uint32{}, Ranks: []missingRank{}}
	at := make([]*wire.Part, world)
	ofSession := map[uint64]*missingRank{} // what its ranks that have not sealed have in common
	for _, p := range parts {
		if p.GetRank() >= world {
			continue
		}
		at[p.GetRank()] = p
		if sealed := p.GetSealedAt(); sealed != 0 {
			w.Sealed++
			if first := time.Unix(0, sealed); w.FirstSeal.IsZero() || first.Before(w.FirstSeal) {
				w.FirstSeal, w.SinceFirstSeal = first, max(now.Sub(first).Seconds(), 0)
			}
			continue
		}
		m := ofSession[p.GetSession()]
		if m == nil {
			m = &missingRank{Sent: p.GetSent()}
			ofSession[p.GetSession()] = m
		}
		m.Announced += p.GetReserved()
		m.Sharing++
	}
	for rank, p := range at {
		m := missingRank{Rank: uint32(rank)}
		switch {
		case p == nil:
		case p.GetSealedAt() != 0:
			continue
		default:
			m = *ofSession[p.GetSession()]
			m.Rank, m.Begun = uint32(rank), time.Unix(0, p.GetBegunAt())
			m.SinceBegun = max(now.Sub(m.Begun).Seconds(), 0)
			if m.Announced > 0 {
				m.Sent = min(m.Sent, m.Announced) // the session may have other files
			}
		}
		w.Ranks = append(w.Ranks, m)
	}
	slices.SortFunc(w.Ranks, func(a, b missingRank) int {
		if a.Begun.IsZero() != b.Begun.IsZero() {
			if a.Begun.IsZero() {
				return -1
			}
			return 1
		}
		return cmp.Or(b.Begun.Compare(a.Begun), cmp.Compare(a.Rank, b.Rank))
	})
	shown := min(len(w.Ranks), maxShownRanks)
	w.More = uint32(len(w.Ranks) - shown)
	w.Ranks = w.Ranks[:shown]
	for _, m := range w.Ranks {
		w.Missing = append(w.Missing, m.Rank)
	}
	return w
}

// begun returns when a step's directory was made: nothing changes its access time.
func (t *sealTimes) begun(ctx context.Context, dir moraine.InodeID) (time.Time, error) {
	attr, err := t.c.Inodes().Stat(ctx, dir)
	if err != nil {
		return time.Time{}, err
	}
	return attr.AccessTime(), nil
}

// slowestOf returns the slowest ranks of a committed step; nil if it has one rank.
func (t *sealTimes) slowestOf(ctx context.Context, s ckpt.StepInfo) (*slowest, error) {
	if s.World < 2 {
		return nil, nil
	}
	if t.last != nil && t.last.Step == s.Step && t.last.Attempt == s.Attempt {
		return t.last, nil
	}
	begun, err := t.begun(ctx, s.Dir)
	if err != nil {
		return nil, err
	}
	parts, err := t.partsOf(ctx, s)
	if err != nil || len(parts) == 0 {
		return nil, err
	}
	t.last = slowestRanks(s, begun, parts)
	return t.last, nil
}

// partsOf returns the parts of a step that its ranks have begun.
func (t *sealTimes) partsOf(ctx context.Context, s ckpt.StepInfo) (out []*wire.Part, err error) {
	for after := uint32(0); ; {
		resp, err := rawclient.Of(t.c).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ListParts{ListParts: &wire.ListParts{
			Key: keyToWire(client.StepKey{Run: s.Run, Attempt: s.Attempt, Step: s.Step}), After: after, Limit: 1000, Begun: true}}})
		if err != nil {
			return nil, err
		}
		page := resp.GetParts().GetParts()
		for _, p := range page {
			after = p.GetRank() + 1
			p.Files = nil // of many ranks they take much memory
		}
		out = append(out, page...)
		if !resp.GetParts().GetMore() || len(page) == 0 {
			return out, nil
		}
	}
}

// slowestRanks sorts the ranks of a step by when they sealed.
func slowestRanks(s ckpt.StepInfo, begun time.Time, parts []*wire.Part) *slowest {
	after := func(at int64) float64 { return max(time.Unix(0, at).Sub(begun).Seconds(), 0) }
	ranks := make([]slowRank, 0, len(parts))
	for _, p := range parts {
		ranks = append(ranks, slowRank{Rank: p.GetRank(), Began: after(p.GetBegunAt()), Sealed: after(p.GetSealedAt())})
	}
	slices.SortFunc(ranks, func(a, b slowRank) int { return cmp.Or(cmp.Compare(b.Sealed, a.Sealed), cmp.Compare(a.Rank, b.Rank)) })
	out := &slowest{Step: s.Step, Attempt: s.Attempt, World: s.World, Begun: begun, Median: ranks[len(ranks)/2].Sealed}
	first := ranks[len(ranks)-1].Sealed
	for _, r := range ranks[:min(len(ranks), maxShownRanks)] {
		r.Behind = r.Sealed - first
		out.Ranks = append(out.Ranks, r)
	}
	return out
}
