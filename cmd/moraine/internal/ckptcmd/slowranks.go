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

// When the ranks of a step sealed their parts, as far as the metadata has it: its entry that makes the
// step's directory is the begin of the first rank, and the entry of a seal sets the change time of the
// part's files, which nothing changes afterwards. When each rank began is not recorded.

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
	// Missing are the first ranks that have not sealed, More how many more there are.
	Missing []uint32 `json:"missing"`
	More    uint32   `json:"more_missing"`
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
	// Sealed is when it sealed, in seconds after Begun, and Behind after the first rank's seal.
	Sealed float64 `json:"sealed_seconds"`
	Behind float64 `json:"behind_first_seconds"`
}

// sealTimes reads when ranks sealed. It keeps what cannot change. One goroutine uses it.
type sealTimes struct {
	c *client.Client
	// first has the first seal of open steps, by the inode of the step's directory.
	first map[moraine.InodeID]time.Time
	last  *slowest
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
func (t *sealTimes) waits(ctx context.Context, s ckpt.StepInfo, now time.Time) (w *waiting, err error) {
	w = &waiting{Step: s.Step, Attempt: s.Attempt, World: s.World, Sealed: s.Sealed, Missing: s.Missing[:min(len(s.Missing), maxShownRanks)]}
	w.More = s.World - s.Sealed - uint32(len(w.Missing))
	if w.Begun, err = t.begun(ctx, s.Dir); err != nil {
		return w, err
	}
	w.SinceBegun = max(now.Sub(w.Begun).Seconds(), 0)
	if s.Sealed == 0 {
		return w, nil
	}
	first, known := t.first[s.Dir]
	if !known {
		for e, err := range t.c.Inodes().ReadDir(ctx, s.Dir) {
			if err != nil {
				return w, err
			}
			if at := e.Attr.ChangeTime(); first.IsZero() || at.Before(first) {
				first = at
			}
		}
		t.first[s.Dir] = first
	}
	if !first.IsZero() { // the parts may have no files
		w.FirstSeal, w.SinceFirstSeal = first, max(now.Sub(first).Seconds(), 0)
	}
	return w, nil
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
	sealed, err := t.sealsOf(ctx, s)
	if err != nil || len(sealed) == 0 {
		return nil, err
	}
	t.last = slowestRanks(s, begun, sealed)
	return t.last, nil
}

// sealsOf returns when each rank of a step sealed. A part without files has no time.
func (t *sealTimes) sealsOf(ctx context.Context, s ckpt.StepInfo) (map[uint32]time.Time, error) {
	at := map[moraine.InodeID]time.Time{}
	for e, err := range t.c.Inodes().ReadDir(ctx, s.Dir) {
		if err != nil {
			return nil, err
		}
		at[e.Attr.Inode()] = e.Attr.ChangeTime()
	}
	out := map[uint32]time.Time{}
	for after := uint32(0); ; {
		resp, err := rawclient.Of(t.c).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ListParts{ListParts: &wire.ListParts{
			Key: keyToWire(client.StepKey{Run: s.Run, Attempt: s.Attempt, Step: s.Step}), After: after, Limit: 1000}}})
		if err != nil {
			return nil, err
		}
		for _, p := range resp.GetParts().GetParts() {
			after = p.GetRank() + 1
			if files := p.GetFiles(); len(files) > 0 {
				out[p.GetRank()] = at[moraine.InodeID(files[0].GetInode())]
			}
		}
		if !resp.GetParts().GetMore() || len(resp.GetParts().GetParts()) == 0 {
			return out, nil
		}
	}
}

// slowestRanks sorts the ranks of a step by when they sealed.
func slowestRanks(s ckpt.StepInfo, begun time.Time, sealed map[uint32]time.Time) *slowest {
	ranks := make([]slowRank, 0, len(sealed))
	for rank, at := range sealed {
		ranks = append(ranks, slowRank{Rank: rank, Sealed: max(at.Sub(begun).Seconds(), 0)})
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
