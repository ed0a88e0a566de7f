package metadata_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// refusing is a store whose state refuses each piece of some jobs.
type refusing struct {
	metadata.Store
	mu   sync.Mutex
	all  bool           // each job run from now on becomes one of them
	jobs map[uint64]int // number of refusals
}

func (s *refusing) Propose(ctx context.Context, entry []byte) (any, error) {
	cmds, err := state.DecodeEntry(entry)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if id := cmds[0].GetRunJob().GetId(); len(cmds) == 1 {
		if _, is := s.jobs[id]; is || s.all && id != 0 {
			s.jobs[id]++
			refused := &moraine.Error{Op: "run job", Kind: moraine.TooLarge}
			return []state.Result{{Response: &wire.MetaResponse{Error: kvtx.WireError(refused)}}}, nil
		}
	}
	return s.Store.Propose(ctx, entry)
}

// Jobs whose pieces are always refused do not keep others of their kind from their turn, and are
// not retried at once.
func TestRefusedJobsDoNotStarveOthers(t *testing.T) {
	stores := map[string]*refusing{}
	bubbleWith(t, func(cfg *metadata.Config, deps *metadata.Deps) {
		inner, id := deps.NewStore, cfg.Node
		deps.NewStore = func(fsm metadata.FSM) (metadata.Store, error) {
			s, err := inner(fsm)
			stores[id] = &refusing{Store: s, jobs: map[uint64]int{}}
			return stores[id], err
		}
	}, func(c *cluster) {
		s := stores["m1"]
		k := c.open(peer(transport.RoleClient, "c1"))
		made, err := k.do(mkdir(root, "src"))
		require.NoError(t, err)
		clone := func(name string) uint64 {
			resp, err := k.do(&wire.MetaRequest{Op: &wire.MetaRequest_CloneTree{CloneTree: &wire.CloneTree{
				Inode: made.GetEntry().Attr.Inode, Parent: root, Name: name}}})
			require.NoError(t, err)
			return resp.GetJobs().Jobs[0].Id
		}
		refuse := func(all bool) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.all = all
		}
		refuse(true)
		for n := range 6 {
			clone(fmt.Sprint("bad", n))
		}
		time.Sleep(5 * time.Second)
		refuse(false)
		good := clone("good")
		time.Sleep(10 * time.Second)
		resp, err := k.ask(&wire.MetaRequest{Op: &wire.MetaRequest_ListJobs{ListJobs: &wire.ListJobs{Id: good, Ended: true}}})
		require.NoError(t, err)
		require.Equal(t, wire.JobState_JOB_STATE_DONE, resp.GetJobs().Jobs[0].State)

		for range 60 {
			require.NoError(t, k.renew())
			time.Sleep(10 * time.Second)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		require.Greater(t, len(s.jobs), 4, "more than the jobs of a kind that are run in turn")
		for id, times := range s.jobs {
			require.Less(t, times, 25, "pieces of job %x in ten minutes", id)
		}
	})
}
