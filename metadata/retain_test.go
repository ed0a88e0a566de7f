package metadata_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// saver saves steps without files, and a mover that commits them.
type saver struct {
	*client
	run   *wire.Run
	mover *client
}

func (c *cluster) saver() *saver {
	k := c.open(peer(transport.RoleClient, "c1"))
	return &saver{client: k, run: k.openRun("r"), mover: c.open(peer(transport.RoleChunkserver, "n1"))}
}

// save commits some steps.
func (s *saver) save(steps ...uint64) {
	s.c.t.Helper()
	for _, n := range steps {
		key := &wire.StepKey{Run: s.run.Id, Attempt: 1, Step: n}
		for _, op := range []*wire.MetaRequest{
			{Op: &wire.MetaRequest_BeginStep{BeginStep: &wire.BeginStep{Key: key, World: 1}}},
			{Op: &wire.MetaRequest_SealPart{SealPart: &wire.SealPart{Key: key, Digest: make([]byte, 32)}}},
		} {
			_, err := s.do(op)
			require.NoError(s.c.t, err)
		}
		resp, err := s.mover.do(&wire.MetaRequest{Op: &wire.MetaRequest_LeaseJobs{LeaseJobs: &wire.LeaseJobs{Host: "n1", Kinds: []wire.JobKind{wire.JobKind_JOB_KIND_COMMIT_STEP}, Max: 1}}})
		require.NoError(s.c.t, err)
		j := resp.GetJobs().GetJobs()[0]
		_, err = s.mover.do(&wire.MetaRequest{Op: &wire.MetaRequest_CommitStep{CommitStep: &wire.CommitStep{Key: key, Job: j.Id, LeaseEpoch: j.LeaseEpoch}}})
		require.NoError(s.c.t, err)
	}
}

// keep sets that the run keeps its last n steps.
func (s *saver) keep(n uint32) {
	s.c.t.Helper()
	_, err := s.do(&wire.MetaRequest{Op: &wire.MetaRequest_SetPolicy{SetPolicy: &wire.SetPolicy{Inode: s.run.Id, Policy: &wire.Policy{
		Checkpoint: &wire.CheckpointPolicy{Levels: []*wire.LevelPolicy{{Level: uint32(moraine.Object), KeepLast: n}}}}}}})
	require.NoError(s.c.t, err)
}

// has lists the steps.
func (s *saver) has() (out string) {
	s.c.t.Helper()
	resp, err := s.ask(&wire.MetaRequest{Op: &wire.MetaRequest_ListSteps{ListSteps: &wire.ListSteps{Run: s.run.Id}}})
	require.NoError(s.c.t, err)
	for _, st := range resp.GetSteps().GetSteps() {
		out += fmt.Sprint(st.Key.Step, " ")
	}
	return out
}

// rest lets time pass, with the sessions renewed.
func (s *saver) rest(d time.Duration) {
	s.c.t.Helper()
	for ; d > 0; d -= time.Second {
		require.NoError(s.c.t, s.renew())
		require.NoError(s.c.t, s.mover.renew())
		time.Sleep(time.Second)
	}
	synctest.Wait()
}

// TestTheLeaderAppliesThePolicyOfCheckpoints: the leader removes what the policy does not keep after each
// commit, after a change of the policy, and after a reader has closed a step.
func TestTheLeaderAppliesThePolicyOfCheckpoints(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		s := c.saver()
		s.save(1, 2, 3)
		s.rest(2 * time.Minute)
		require.Equal(t, "1 2 3 ", s.has(), "there is no policy")
		s.keep(2)
		s.rest(2 * time.Minute)
		require.Equal(t, "2 3 ", s.has(), "the policy has changed")
		two := &wire.StepKey{Run: s.run.Id, Attempt: 1, Step: 2}
		_, err := s.do(&wire.MetaRequest{Op: &wire.MetaRequest_LeaseStep{LeaseStep: &wire.LeaseStep{Key: two}}})
		require.NoError(t, err)
		s.save(4, 5)
		s.rest(10 * time.Second)
		require.Equal(t, "2 4 5 ", s.has(), "a session reads step 2")
		_, err = s.do(&wire.MetaRequest{Op: &wire.MetaRequest_ReleaseStep{ReleaseStep: &wire.ReleaseStep{Key: two}}})
		require.NoError(t, err)
		s.rest(2 * time.Minute)
		require.Equal(t, "4 5 ", s.has(), "nobody reads step 2 any more")
	})
}

// TestTheNextLeaderAppliesThePolicyOfCheckpoints: the leader changes right after the commits.
func TestTheNextLeaderAppliesThePolicyOfCheckpoints(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		s := c.saver()
		s.keep(1)
		s.save(1, 2, 3)
		require.Equal(t, "1 2 3 ", s.has())
		c.elect("m2")
		s.rest(10 * time.Second)
		require.Equal(t, "3 ", s.has())
	})
}
