package ckpt

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// Ranks of several nodes may have slices in common. The first rank that claims a group of them stores it,
// and the others leave it out. The state knows a group only by its hash: the check of the step compares
// the slices themselves. Claims are of use until the last rank has sealed. A job drops them
// once the step is committed or ends otherwise.

// ClaimSlices answers which rank stores each group: the one that claimed it first. The caller claims
// those that no rank has.
func ClaimSlices(t *kvtx.Tx, op *wire.ClaimSlices) (*wire.MetaResponse, error) {
	id, rank := stepFromWire(op.GetKey()), op.GetRank()
	s, p, err := begunPart(t, "claim slices", id, rank)
	if err != nil {
		return nil, err
	}
	switch n := len(op.GetGroups()); {
	case s.State != record.StepOpen || p.Sealed:
		return nil, kvtx.Fail(moraine.Conflict, "claim slices", id.String(), "rank %d has already sealed its part", rank)
	case p.Session != t.Session.Id:
		return nil, begunAgain("claim slices", id, rank)
	case n == 0 || n > wire.MaxClaims:
		return nil, kvtx.Fail(moraine.InvalidArgument, "claim slices", id.String(), "the request has %d groups, but must have 1 to %d", n, wire.MaxClaims)
	}
	reply, before := &wire.ClaimsReply{}, p.Claims
	for _, group := range op.GetGroups() {
		by, err := claim(t, id, group, rank, p)
		if err != nil {
			return nil, err
		}
		reply.Ranks = append(reply.Ranks, by)
	}
	if p.Claims != before {
		t.Put(t.K.Part(id, rank), p.Encode())
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Claims{Claims: reply}}, nil
}

// claim returns the rank that has a group; without one, the caller gets it. The caller writes the part.
func claim(t *kvtx.Tx, id record.StepID, group []byte, rank uint32, p *record.Part) (by uint32, err error) {
	if len(group) != wire.ClaimBytes {
		return 0, kvtx.Fail(moraine.InvalidArgument, "claim slices", id.String(), "a group has %d bytes, but must have %d", len(group), wire.ClaimBytes)
	}
	key := t.K.Claim(id, group)
	b, taken, err := t.Get(key)
	switch {
	case err != nil:
		return 0, err
	case taken:
		return record.DecodeNumber[uint32](record.StepVersion, b, "claim")
	case p.Claims >= wire.MaxClaims:
		return 0, kvtx.Fail(moraine.TooLarge, "claim slices", id.String(), "rank %d has claimed %d groups already, the most for one rank: store the slices in its part", rank, wire.MaxClaims)
	}
	p.Claims++
	t.Put(key, record.EncodeNumber(record.StepVersion, rank))
	return rank, nil
}

// dropClaims queues a job that removes the claims of a step that is being committed, if there are any.
func dropClaims(t *kvtx.Tx, id record.StepID) error {
	keys, err := t.KeysUnder(t.K.Claims(id), 1)
	if err != nil || len(keys) == 0 {
		return err
	}
	_, err = jobs.AddJob(t, jobs.JobSpec{Kind: wire.JobKind_JOB_KIND_REMOVE_TREE, Subject: id.String() + " claims", Step: id})
	return err
}
