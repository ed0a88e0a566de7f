package ckpt_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/safetensors"
	"github.com/morainefs/moraine/integration/memcluster"
	"github.com/morainefs/moraine/internal/llama"
	"github.com/morainefs/moraine/mover"
)

// tiny is a model of about 1 MiB.
var tiny = llama.Model{Layers: 1, Divide: 128}

// inCluster runs fn with a cluster, and one mover, under synctest's clock.
func inCluster(t *testing.T, opts memcluster.Options, fn func(t *testing.T, c *memcluster.Cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c, stop := memcluster.Start(t, opts)
		defer stop()
		cl := c.Mover("n1")
		m, err := mover.New(mover.Config{}, mover.Deps{Client: cl})
		require.NoError(t, err)
		c.Run(func(ctx context.Context) error {
			defer cl.Close()
			return m.Run(ctx)
		})
		fn(t, c)
	})
}

// trainer is one rank with a client of its own.
type trainer struct {
	t     *testing.T
	c     *client.Client
	run   *ckpt.Run
	shard *llama.Shard
}

func openTrainer(t *testing.T, c *memcluster.Cluster, launch ckpt.Launch, takeover bool, rank, world uint32) (*trainer, error) {
	t.Helper()
	tr := &trainer{t: t, c: c.Client(fmt.Sprintf("trainer-%d", rank)), shard: llama.NewShard(tiny, rank, world)}
	var err error
	tr.run, err = ckpt.OpenRun(t.Context(), tr.c, "/runs/deep/a", ckpt.RunOptions{Launch: launch, Takeover: takeover,
		Rank: rank, World: world, StagingBytes: 64 << 20})
	if err != nil {
		tr.c.Close()
		return nil, err
	}
	c.AtStop(func() {
		tr.run.Close(context.Background())
		tr.c.Close()
	})
	return tr, nil
}

func team(t *testing.T, c *memcluster.Cluster, launch string, world uint32) []*trainer {
	t.Helper()
	var out []*trainer
	for rank := range world {
		tr, err := openTrainer(t, c, ckpt.Launch{Name: launch}, false, rank, world)
		require.NoError(t, err)
		out = append(out, tr)
	}
	return out
}

// begin stages the content of seed, without sealing.
func (tr *trainer) begin(step, seed uint64, opts ckpt.BeginOptions) *ckpt.Part {
	tr.t.Helper()
	tr.shard.Fill(seed)
	s, err := tr.run.Begin(tr.t.Context(), step, opts)
	require.NoError(tr.t, err)
	require.NoError(tr.t, tr.shard.AddTo(tr.t.Context(), s))
	return s
}

// saveAll saves a step from all ranks and waits for it.
func saveAll(t *testing.T, team []*trainer, step, seed uint64) ckpt.StepInfo {
	t.Helper()
	var saves []*ckpt.Part
	for _, tr := range team {
		s := tr.begin(step, seed, ckpt.BeginOptions{})
		require.NoError(t, s.Seal(t.Context()))
		saves = append(saves, s)
	}
	var info ckpt.StepInfo
	for _, s := range saves {
		var err error
		info, err = s.Wait(t.Context(), moraine.NVMe)
		require.NoError(t, err)
	}
	return info
}

// holds checks that a reader sees as latest step the one of seed, with world ranks, byte by
// byte.
func holds(t *testing.T, c *memcluster.Cluster, step, seed uint64, world uint32) {
	t.Helper()
	for rank := range world {
		cl := c.Client("reader")
		r, err := ckpt.OpenRun(t.Context(), cl, "/runs/deep/a", ckpt.RunOptions{ReadOnly: true, Rank: rank, World: world})
		require.NoError(t, err)
		k, err := r.Resolve(t.Context(), ckpt.ResolveOptions{})
		require.NoError(t, err)
		require.Equal(t, step, k.Info.Step)
		s := llama.NewShard(tiny, rank, world)
		require.NoError(t, s.Restore(t.Context(), k))
		require.NoError(t, s.Check(seed))
		_, err = k.Verify(t.Context())
		require.NoError(t, err)
		require.NoError(t, k.Close())
		require.NoError(t, r.Close(t.Context()))
		require.NoError(t, cl.Close())
	}
}

// TestStagingThatChangedFailsTheSave is TestStagingThatChangedIsNotSealed with real clients:
// for a tensor smaller than a stripe, and for one of several stripes.
func TestStagingThatChangedFailsTheSave(t *testing.T) {
	inCluster(t, memcluster.Options{}, func(t *testing.T, c *memcluster.Cluster) {
		cl := c.Client("trainer")
		defer cl.Close()
		r, err := ckpt.OpenRun(t.Context(), cl, "/runs/b", ckpt.RunOptions{Launch: ckpt.Launch{Name: "l1"}, World: 1, StagingBytes: 64 << 20})
		require.NoError(t, err)
		defer r.Close(context.Background())
		for step, length := range []int64{5000, 20<<20 + 77} {
			for _, flip := range []bool{true, false} {
				s, err := r.Begin(t.Context(), uint64(10*step), ckpt.BeginOptions{})
				require.NoError(t, err)
				data := make([]byte, length)
				for i := range data {
					data[i] = byte(i * i >> 7)
				}
				require.NoError(t, s.AddTensor(t.Context(), ckpt.Tensor{Name: "w", DType: safetensors.U8, Shape: []int64{length}, Data: data}))
				if flip {
					pieces := ckpt.StagedTensor(s, "w")
					last := pieces[len(pieces)-1]
					last[len(last)-1] ^= 0x80
				}
				require.NoError(t, s.Seal(t.Context()))
				if !flip {
					_, err = s.Wait(t.Context(), moraine.NVMe)
					require.NoError(t, err, "the same step may be saved again")
					continue
				}
				_, err = s.Wait(t.Context(), moraine.NVMe)
				require.ErrorIs(t, err, moraine.Corrupt)
				require.ErrorContains(t, err, `"w"`)
			}
		}
	})
}

// TestSaveThroughLossOfServers stops the leader and two chunkservers during a save. The save
// completes, degraded, and can be read without them.
func TestSaveThroughLossOfServers(t *testing.T) {
	inCluster(t, memcluster.Options{}, func(t *testing.T, c *memcluster.Cluster) {
		team := team(t, c, "l1", 4)
		saveAll(t, team, 1, 11)
		var saves []*ckpt.Part
		for rank, tr := range team {
			s := tr.begin(2, 12, ckpt.BeginOptions{})
			require.NoError(t, s.Seal(t.Context()))
			saves = append(saves, s)
			if rank == 1 {
				c.Elect("")
				c.Hosts[3].Kill()
				c.Hosts[4].Kill()
			}
		}
		time.Sleep(2 * time.Second)
		c.Elect("m3")
		for _, s := range saves {
			info, err := s.Wait(t.Context(), moraine.NVMe)
			require.NoError(t, err)
			require.Equal(t, uint64(2), info.Step)
		}
		holds(t, c, 2, 12, 3)
	})
}

// TestDeadRankIsNamed lets one rank die before it seals: the step is never visible, the others
// learn which rank, and the latest step is still the one before.
func TestDeadRankIsNamed(t *testing.T) {
	inCluster(t, memcluster.Options{SessionTimeout: 20 * time.Second}, func(t *testing.T, c *memcluster.Cluster) {
		team := team(t, c, "l1", 4)
		saveAll(t, team, 1, 11)
		var saves []*ckpt.Part
		for rank, tr := range team {
			s := tr.begin(2, 12, ckpt.BeginOptions{})
			if rank == 2 {
				continue
			}
			require.NoError(t, s.Seal(t.Context()))
			saves = append(saves, s)
		}
		time.Sleep(time.Second)
		c.Net.Isolate("trainer-2")
		for _, s := range saves {
			_, err := s.Wait(t.Context(), moraine.NVMe)
			require.ErrorIs(t, err, moraine.Aborted)
			require.ErrorContains(t, err, "rank 2")
			var missing *ckpt.MissingError
			require.ErrorAs(t, err, &missing)
			require.Equal(t, []uint32{2}, missing.Ranks)
		}
		holds(t, c, 1, 11, 1)
		c.Net.Heal()
	})
}

// TestSilentRankIsNamed has a rank that lives and does not seal.
func TestSilentRankIsNamed(t *testing.T) {
	inCluster(t, memcluster.Options{}, func(t *testing.T, c *memcluster.Cluster) {
		team := team(t, c, "l1", 3)
		opts := ckpt.BeginOptions{SealTimeout: 30 * time.Second}
		late := team[1].begin(5, 1, opts)
		for _, rank := range []int{0, 2} {
			s := team[rank].begin(5, 1, opts)
			require.NoError(t, s.Seal(t.Context()))
			<-s.Done()
		}
		began := time.Now()
		time.Sleep(40 * time.Second)
		require.NoError(t, late.Seal(t.Context()))
		_, err := late.Wait(t.Context(), moraine.NVMe)
		require.ErrorIs(t, err, moraine.Aborted)
		var missing *ckpt.MissingError
		require.ErrorAs(t, err, &missing)
		require.Equal(t, []uint32{1}, missing.Ranks)
		require.Less(t, time.Since(began), time.Minute)
	})
}

// TestFailedRankIsNamed changes the staging memory of a rank after it sealed: the others learn
// it long before the step would time out.
func TestFailedRankIsNamed(t *testing.T) {
	inCluster(t, memcluster.Options{}, func(t *testing.T, c *memcluster.Cluster) {
		team := team(t, c, "l1", 3)
		began := time.Now()
		var saves []*ckpt.Part
		for _, tr := range team {
			saves = append(saves, tr.begin(5, 1, ckpt.BeginOptions{SealTimeout: time.Hour}))
		}
		require.NoError(t, saves[1].AddTensor(t.Context(), ckpt.Tensor{Name: "w", DType: safetensors.U8, Shape: []int64{5000}, Data: make([]byte, 5000)}))
		ckpt.StagedTensor(saves[1], "w")[0][77] ^= 1
		for _, rank := range []int{0, 2, 1} {
			require.NoError(t, saves[rank].Seal(t.Context()))
		}
		for rank, s := range saves {
			_, err := s.Wait(t.Context(), moraine.NVMe)
			if rank == 1 {
				require.ErrorIs(t, err, moraine.Corrupt)
				continue
			}
			require.ErrorIs(t, err, moraine.Aborted)
			require.ErrorContains(t, err, "rank 1 could not write its part")
		}
		require.Less(t, time.Since(began), time.Minute)
	})
}

// TestAttempts walks through launches, restarts, takeovers and branches.
func TestAttempts(t *testing.T) {
	inCluster(t, memcluster.Options{SessionTimeout: 20 * time.Second}, func(t *testing.T, c *memcluster.Cluster) {
		open := func(l ckpt.Launch, takeover bool) (*trainer, error) { return openTrainer(t, c, l, takeover, 0, 1) }
		first, err := open(ckpt.Launch{Name: "a", Job: "j", Restart: 0}, false)
		require.NoError(t, err)
		require.Equal(t, uint32(1), first.run.Attempt())
		saveAll(t, []*trainer{first}, 1, 11)
		again, err := open(ckpt.Launch{Name: "a", Job: "j", Restart: 0}, false)
		require.NoError(t, err)
		require.Equal(t, uint32(1), again.run.Attempt(), "a known launch joins its attempt")

		_, err = open(ckpt.Launch{Name: "stranger"}, false)
		require.ErrorIs(t, err, moraine.Busy)
		second, err := open(ckpt.Launch{Name: "b", Job: "j", Restart: 2}, false)
		require.NoError(t, err)
		require.Equal(t, uint32(2), second.run.Attempt(), "a higher restart takes over")
		_, err = open(ckpt.Launch{Name: "c", Job: "j", Restart: 1}, true)
		require.ErrorIs(t, err, moraine.Fenced, "a lower restart is late")

		// The first Resolve with Fix sets the parent; the overtaken attempt can no longer save.
		k, err := second.run.Resolve(t.Context(), ckpt.ResolveOptions{Fix: true})
		require.NoError(t, err)
		require.Equal(t, uint64(1), k.Info.Step)
		require.NoError(t, k.Close())
		s, err := first.run.Begin(t.Context(), 2, ckpt.BeginOptions{})
		require.NoError(t, err)
		_, err = s.Wait(t.Context(), moraine.NVMe)
		require.ErrorIs(t, err, moraine.Fenced)

		k, err = second.run.Resolve(t.Context(), ckpt.ResolveOptions{Fix: true})
		require.NoError(t, err)
		require.Equal(t, uint64(1), k.Info.Step, "the parent of an attempt does not move")
		require.NoError(t, k.Close())
		saveAll(t, []*trainer{second}, 2, 13)
		holds(t, c, 2, 13, 1)

		third, err := open(ckpt.Launch{Name: "d"}, true)
		require.NoError(t, err)
		require.Equal(t, uint32(3), third.run.Attempt())
		k, err = third.run.Resolve(t.Context(), ckpt.ResolveOptions{Exact: true, Step: 1, Fix: true})
		require.NoError(t, err)
		require.NoError(t, k.Close())
		saveAll(t, []*trainer{third}, 2, 14)
		holds(t, c, 2, 14, 2)
		_, err = third.run.Resolve(t.Context(), ckpt.ResolveOptions{Exact: true, Step: 77})
		require.ErrorIs(t, err, moraine.NotFound)
	})
}

// TestSessionLostDuringASave disconnects a rank for longer than its session lives, after it
// sealed and before its part was written. The rank opens another session. Either the save
// completes or the step was aborted naming the rank.
func TestSessionLostDuringASave(t *testing.T) {
	inCluster(t, memcluster.Options{SessionTimeout: 20 * time.Second}, func(t *testing.T, c *memcluster.Cluster) {
		team := team(t, c, "l1", 2)
		s1 := team[1].begin(1, 11, ckpt.BeginOptions{})
		s0 := team[0].begin(1, 11, ckpt.BeginOptions{})
		require.NoError(t, s0.Seal(t.Context()))
		<-s0.Done()
		c.Net.Isolate("trainer-1")
		require.NoError(t, s1.Seal(t.Context()))
		time.Sleep(40 * time.Second)
		c.Net.Heal()
		_, err := s1.Wait(t.Context(), moraine.NVMe)
		require.ErrorIs(t, err, moraine.Aborted)
		require.ErrorContains(t, err, "rank 1")
		// The next step succeeds.
		saveAll(t, team, 2, 12)
		holds(t, c, 2, 12, 1)
	})
}
