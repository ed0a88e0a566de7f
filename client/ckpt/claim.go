package ckpt

import (
	"context"
	"errors"
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// MaxClaims is how many groups of slices one rank may claim in a step.
const MaxClaims = 16

// GroupID names a group of slices together with their bytes: a hash of both.
type GroupID [16]byte

// They are the bounds of the service.
var (
	_ = [1]struct{}{}[MaxClaims-wire.MaxClaims]
	_ = [1]struct{}{}[len(GroupID{})-wire.ClaimBytes]
)

// Claim asks the service which rank of the step stores groups of slices, MaxClaims at most, and
// returns a rank for each. The first rank that claims a group stores it: if that is this rank, the part
// must have the slices, and other ranks may leave them to it (ShareTensor). A later request for the same
// groups gets the same answer. With an error nothing is known: the rank may have become the one
// that stores a group, so the part must store all of them. Claim waits until the rank has begun the
// step, or ctx ends. It is for agents, which see the sums of a part before a byte is written.
func (s *Part) Claim(ctx context.Context, groups []GroupID) ([]uint32, error) {
	if s.run.agent != nil {
		return nil, &moraine.Error{Op: "ckpt.Claim", Ref: s.ref(), Kind: moraine.Unimplemented,
			Err: errors.New("with an agent, add the tensors in each rank: the agent claims them")}
	}
	if err := wait(ctx, s.announced); err != nil {
		return nil, s.wrap(err)
	}
	if err := s.open(); err != nil {
		return nil, err
	}
	op := &wire.ClaimSlices{Key: s.key(), Rank: s.run.opts.Rank}
	for i := range groups {
		op.Groups = append(op.Groups, groups[i][:])
	}
	resp, err := s.run.c.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ClaimSlices{ClaimSlices: op}})
	if err != nil {
		return nil, s.wrap(err)
	}
	ranks := resp.GetClaims().GetRanks()
	if len(ranks) != len(groups) {
		return nil, s.wrap(fmt.Errorf("the service answered %d ranks for %d groups", len(ranks), len(groups)))
	}
	for _, rank := range ranks {
		if rank >= s.run.opts.World {
			return nil, s.wrap(fmt.Errorf("the service answered rank %d of %d", rank, s.run.opts.World))
		}
	}
	return ranks, nil
}
