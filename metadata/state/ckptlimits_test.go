package state_test

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

func partDigest(rank uint32) []byte {
	d := sha256.Sum256(binary.BigEndian.AppendUint32(nil, rank))
	return d[:]
}

// TestManyRanks saves a checkpoint with more ranks than one block counts. The record of a part
// stays small, the missing ranks are named, and the digest matches the wire format.
func TestManyRanks(t *testing.T) {
	const world = 1100 // more than a block of digests has
	s := &ckptScript{bench: newCluster(t, 3), sessions: map[string]*client{}}
	c := s.session("a")
	s.run("a", words("open r launch=L1"))
	key := &wire.StepKey{Run: s.run1, Attempt: 1, Step: 7}
	for rank := range uint32(world) {
		c.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_BeginStep{BeginStep: &wire.BeginStep{Key: key, Rank: rank, World: world}}}))
	}
	seal := func(rank uint32) *wire.Step {
		return c.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_SealPart{SealPart: &wire.SealPart{Key: key, Rank: rank, Digest: partDigest(rank), Protects: 2,
			Files: []*wire.PartFile{s.unlinked(c, fmt.Sprintf("model-%05d-of-%05d.safetensors", rank, world))}}}})).GetStep().GetStep()
	}
	for rank := range uint32(world) {
		if rank != 3 && rank != 1090 {
			seal(rank)
		}
	}
	get := func() *wire.Step {
		return c.ok(c.read(&wire.MetaRequest{Op: &wire.MetaRequest_GetStep{GetStep: &wire.GetStep{Key: key}}})).GetStep().GetStep()
	}
	require.Equal(t, []uint32{3, 1090}, get().Missing)
	s.checkedEarly(key)
	seal(1090)
	s.check()
	step := seal(3)
	require.Equal(t, wire.StepState_STEP_STATE_SEALED, step.State)
	require.Equal(t, "attempt-1/step-7 epoch 1 attempts 1", s.run("a", words("lease")))
	require.Empty(t, get().Missing)

	blocks := sha256.New()
	for first := uint32(0); first < world; first += 1024 {
		block := sha256.New()
		for rank := first; rank < min(first+1024, world); rank++ {
			block.Write(partDigest(rank))
		}
		blocks.Write(block.Sum(nil))
	}
	require.Equal(t, blocks.Sum(nil), step.Digest)

	perPart := 0
	for _, p := range s.kv.Pairs() {
		if p.Key[2] == 0x45 || p.Key[2] == 0x4b { // parts and their blocks
			perPart += len(p.Key) + len(p.Value)
		}
	}
	require.Less(t, perPart/world, 200)
	s.check()
}

// checkedEarly leases the job that checks an open step, which cannot be committed yet. The job then fails,
// and the next seal queues another.
func (s *ckptScript) checkedEarly(key *wire.StepKey) {
	s.check()
	require.Equal(s.t, "attempt-1/step-7 epoch 1 attempts 1", s.run("a", words("lease")))
	commit := &wire.CommitStep{Key: key, Job: s.job.GetId(), LeaseEpoch: s.job.GetLeaseEpoch()}
	require.Equal(s.t, moraine.InvalidArgument.String(), kind(s.session("a").do(&wire.MetaRequest{Op: &wire.MetaRequest_CommitStep{CommitStep: commit}})))
	s.run("a", words("finish error=bad final=yes"))
	require.Equal(s.t, "ok: none", s.run("a", words("lease")))
	s.check()
}

// unlinked makes an empty unlinked file of the session.
func (s *ckptScript) unlinked(c *client, name string) *wire.PartFile {
	attr := s.ok(c.create(&wire.Create{Parent: s.run1, Type: wire.FileType_FILE_TYPE_REGULAR, Unlinked: true})).GetEntry().GetAttr()
	return &wire.PartFile{Inode: attr.Inode, Name: name}
}

// TestManyMissingRanks: an abort names at most MaxMissing ranks and says how many more are missing.
func TestManyMissingRanks(t *testing.T) {
	s := &ckptScript{bench: newCluster(t, 3), sessions: map[string]*client{}}
	s.run("a", words("open r launch=L1"))
	s.run("a", words("begin step=1/1 rank=0 world=65536"))
	require.Equal(t, "invalid argument: rank 0 of 65537 is invalid: a step has 1 to 65536 ranks", s.run("a", words("begin step=1/2 rank=0 world=65537")))
	s.run("a", words("abort step=1/1 reason=enough"))
	st := s.ok(s.session("a").read(&wire.MetaRequest{Op: &wire.MetaRequest_GetStep{GetStep: &wire.GetStep{Key: &wire.StepKey{Run: s.run1, Attempt: 1, Step: 1}}}})).GetStep().GetStep()
	require.Len(t, st.Missing, 1000)
	require.Equal(t, "enough; missing: ranks 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 and 65520 more", st.Reason)
	s.check()
}

// TestConfinedSessionSaves: a session confined to a directory saves into a run
// there, and nowhere else.
func TestConfinedSessionSaves(t *testing.T) {
	s := &ckptScript{bench: newCluster(t, 3), sessions: map[string]*client{}}
	root := s.session("root")
	home := root.mkdir(root.root, "home")
	s.sessions["a"] = s.open(func(op *wire.OpenSession) { op.Scope = "/home" })
	a := s.sessions["a"]
	require.Equal(t, home, a.root)
	require.Equal(t, "attempt 1 of r attempt 1 launch L1 committed 0", s.run("a", words("open r launch=L1")))
	step := a.ok(a.do(&wire.MetaRequest{Op: &wire.MetaRequest_BeginStep{BeginStep: &wire.BeginStep{
		Key: &wire.StepKey{Run: s.run1, Attempt: 1, Step: 5}, World: 1}}})).GetStep().GetStep()
	attr := a.ok(a.create(&wire.Create{Parent: step.Dir, Type: wire.FileType_FILE_TYPE_REGULAR, Unlinked: true})).GetEntry().GetAttr()
	a.ok(a.do(&wire.MetaRequest{Op: &wire.MetaRequest_SealPart{SealPart: &wire.SealPart{Key: step.Key, Digest: partDigest(0),
		Files: []*wire.PartFile{{Inode: attr.Inode, Name: "part"}}}}}))
	run := s.run1

	s.run("root", words("open outside launch=L1"))
	for _, req := range []*wire.MetaRequest{
		{Op: &wire.MetaRequest_OpenRun{OpenRun: &wire.OpenRun{Parent: root.root, Name: "outside", Launch: "x"}}},
		{Op: &wire.MetaRequest_BeginStep{BeginStep: &wire.BeginStep{Key: &wire.StepKey{Run: s.run1, Attempt: 1, Step: 5}, World: 1}}},
		{Op: &wire.MetaRequest_ResolveStep{ResolveStep: &wire.ResolveStep{Run: s.run1, Attempt: 1, Fix: true}}},
		{Op: &wire.MetaRequest_RemoveStep{RemoveStep: &wire.RemoveStep{Key: &wire.StepKey{Run: s.run1, Attempt: 1, Step: 5}}}},
	} {
		require.Equal(t, moraine.NotFound.String(), kind(a.do(req)))
	}
	for _, req := range []*wire.MetaRequest{
		{Op: &wire.MetaRequest_ListSteps{ListSteps: &wire.ListSteps{Run: s.run1}}},
		{Op: &wire.MetaRequest_ListRuns{ListRuns: &wire.ListRuns{Parent: root.root}}},
		{Op: &wire.MetaRequest_ResolveStep{ResolveStep: &wire.ResolveStep{Run: s.run1}}},
	} {
		require.Equal(t, moraine.NotFound.String(), kind(a.read(req)))
	}
	require.Equal(t, "ok", kind(a.read(&wire.MetaRequest{Op: &wire.MetaRequest_ListSteps{ListSteps: &wire.ListSteps{Run: run}}})))
	require.Equal(t, "ok r attempt 1 launch L1 committed 0", s.run("a", words("runs")))
	s.check()
}
