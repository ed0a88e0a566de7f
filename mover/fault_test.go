package mover_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/integration/memcluster"
	"github.com/morainefs/moraine/internal/llama"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/mover"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

func status(t *testing.T, c *memcluster.Cluster) *wire.ClusterReply {
	t.Helper()
	resp, err := c.Ask(transport.RoleAdmin, "admin", &wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: &wire.GetCluster{}}})
	require.NoError(t, err)
	return resp.GetCluster()
}

// eventually waits, by the bubble's clock, until ok.
func eventually(t *testing.T, within time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(within); !ok(); time.Sleep(100 * time.Millisecond) {
		require.True(t, time.Now().Before(end), "%s: not within %s", what, within)
	}
}

// soundAgain waits until nothing is left to repair, after something was.
func soundAgain(t *testing.T, c *memcluster.Cluster) {
	t.Helper()
	eventually(t, 5*time.Minute, "repair", func() bool {
		s := status(t, c)
		return s.GetRepairQueued() == 0 && s.GetRepairRunning() == 0 && len(running(t, c)) == 0
	})
}

// running lists the jobs that have not ended.
func running(t *testing.T, c *memcluster.Cluster) []*wire.Job {
	t.Helper()
	resp, err := c.Ask(transport.RoleAdmin, "admin", &wire.MetaRequest{Op: &wire.MetaRequest_ListJobs{ListJobs: &wire.ListJobs{}}})
	require.NoError(t, err)
	return resp.GetJobs().GetJobs()
}

// loseHosts kills hosts and waits until their devices are declared out. From then on the leader
// has their chunks rebuilt.
func loseHosts(t *testing.T, c *memcluster.Cluster, n ...int) {
	t.Helper()
	for _, i := range n {
		c.Hosts[i].Kill()
	}
	eventually(t, 5*time.Minute, "the loss is noticed", func() bool {
		out := 0
		for _, h := range status(t, c).GetTopology().GetHosts() {
			if h.GetDevices()[0].GetState() == wire.DeviceState_DEVICE_STATE_OUT {
				out++
			}
		}
		return out == len(n)
	})
}

var repairing = memcluster.Options{Hosts: 8, RepairGrace: 20 * time.Second}

func TestRepairsWhatLostHostsHeld(t *testing.T) {
	inCluster(t, repairing, func(t *testing.T, c *memcluster.Cluster) {
		for _, h := range []string{"n1", "n2", "n3"} {
			startMover(t, c, h)
		}
		save(t, c, "/runs/a", 1, 5, 2)
		loseHosts(t, c, 6, 7)
		soundAgain(t, c)
		// The cluster now tolerates two more lost hosts.
		c.Hosts[4].Kill()
		c.Hosts[5].Kill()
		restore(t, c, "/runs/a", 5, 1)
	})
}

// TestRepairsADegradedCommit saves while one host too many is down.
func TestRepairsADegradedCommit(t *testing.T) {
	inCluster(t, memcluster.Options{Hosts: 6}, func(t *testing.T, c *memcluster.Cluster) {
		startMover(t, c, "n1")
		c.Hosts[5].Kill()
		time.Sleep(5 * time.Second)
		info := save(t, c, "/runs/a", 1, 5, 2)
		require.NotZero(t, info.Degraded)
		require.Equal(t, uint32(1), info.Protects)
		require.NotZero(t, status(t, c).GetRepairQueued())
		c.Hosts[5].Start()
		soundAgain(t, c)
		require.NotZero(t, c.Hosts[5].Count())
		c.Hosts[0].Before(func(context.Context, any) error { return fail(moraine.IOError) })
		c.Hosts[1].Kill()
		restore(t, c, "/runs/a", 5, 1)
	})
}

func fail(kind moraine.Kind) error {
	return &moraine.Error{Op: "fault", Kind: kind, Err: fmt.Errorf("made to fail")}
}

// opOf names the operation of a request.
func opOf(req *wire.MetaRequest) string {
	return fmt.Sprintf("%T", req.GetOp())[len("*wire.MetaRequest_"):]
}

// once returns a hook that fails the first request of a kind, before it is served or, with
// lost, after it took effect.
func once(op string, kind moraine.Kind, lost bool) (memcluster.MetaHook, *atomic.Bool) {
	var fired atomic.Bool
	return func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
		if opOf(req) != op {
			return nil, nil
		}
		if lost {
			return func(resp *wire.MetaResponse, err error) (*wire.MetaResponse, error) {
				// An empty answer of a long poll has nothing to lose.
				if resp.GetJobs() != nil && len(resp.GetJobs().GetJobs()) == 0 || !fired.CompareAndSwap(false, true) {
					return resp, err
				}
				return nil, fail(kind)
			}, nil
		}
		if !fired.CompareAndSwap(false, true) {
			return nil, nil
		}
		return nil, fail(kind)
	}, &fired
}

// TestCommitStepFaults is the fault table of committing a checkpoint: each request of the mover
// fails once, and each takes effect once with a lost answer. The client retries Unavailable,
// but not Internal.
func TestCommitStepFaults(t *testing.T) {
	for _, op := range []string{"LeaseJobs", "GetStep", "ListParts", "Create", "Grant", "Commit", "CommitStep", "FinishJob"} {
		for _, kind := range []moraine.Kind{moraine.Unavailable, moraine.Internal} {
			for _, lost := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s %s lost=%v", op, kind, lost), func(t *testing.T) {
					inCluster(t, memcluster.Options{}, func(t *testing.T, c *memcluster.Cluster) {
						cl := c.Client("trainer")
						defer cl.Close()
						s := seal(t, c, "/runs/a", 3)
						hook, fired := once(op, kind, lost)
						c.OnMeta(hook)
						startMover(t, c, "n1")
						_, err := s.Wait(t.Context(), moraine.NVMe)
						if op == "GetStep" && err != nil { // the fault hit this client
							_, err = s.Wait(t.Context(), moraine.NVMe)
						}
						require.NoError(t, err)
						eventually(t, time.Minute, "the fault", fired.Load)
						c.OnMeta(nil)
						eventually(t, time.Minute, "jobs end", func() bool { return len(running(t, c)) == 0 })
						restore(t, c, "/runs/a", 3, 1)
					})
				})
			}
		}
	}
}

// seal saves a model from one rank, up to its seal.
func seal(t *testing.T, c *memcluster.Cluster, run string, seed uint64) *ckpt.Part {
	t.Helper()
	ctx := t.Context()
	cl := c.Client("trainer")
	r, err := ckpt.OpenRun(ctx, cl, run, ckpt.RunOptions{Launch: ckpt.Launch{Name: "l1"}, StagingBytes: 64 << 20})
	require.NoError(t, err)
	c.AtStop(func() {
		require.NoError(t, r.Close(context.Background()))
		cl.Close()
	})
	m := llama.NewShard(tiny, 0, 1)
	m.Fill(seed)
	s, err := r.Begin(ctx, 1, ckpt.BeginOptions{})
	require.NoError(t, err)
	require.NoError(t, m.AddTo(ctx, s))
	require.NoError(t, s.Seal(ctx))
	<-s.Done()
	return s
}

// TestRepairFaults is the fault table of a repair.
func TestRepairFaults(t *testing.T) {
	for _, op := range []string{"LeaseJobs", "CommitRepair", "RenewJob", "FinishJob"} {
		for _, kind := range []moraine.Kind{moraine.Unavailable, moraine.Internal} {
			for _, lost := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s %s lost=%v", op, kind, lost), func(t *testing.T) {
					inCluster(t, repairing, func(t *testing.T, c *memcluster.Cluster) {
						stop := startMover(t, c, "n1")
						save(t, c, "/runs/a", 1, 5, 1)
						stop()
						hook, fired := once(op, kind, lost)
						if op == "RenewJob" {
							slow(c, 8*time.Second) // longer than the time to a renewal
						}
						c.OnMeta(hook)
						startMover(t, c, "n1")
						startMover(t, c, "n2")
						loseHosts(t, c, 7)
						eventually(t, 5*time.Minute, "the fault", fired.Load)
						soundAgain(t, c)
						for _, h := range c.Hosts[:7] {
							h.Before(nil)
						}
						restore(t, c, "/runs/a", 5, 1)
					})
				})
			}
		}
	}
}

// slow makes every put of the cluster take d.
func slow(c *memcluster.Cluster, d time.Duration) {
	for _, h := range c.Hosts {
		h.Before(func(_ context.Context, req any) error {
			if p, ok := req.(*wire.PutChunk); ok && p.GetRepair() {
				time.Sleep(d)
			}
			return nil
		})
	}
}

// TestPutFaults fails the first puts of a repair: the leader plans those chunks again, and the
// mover commits the rest of the job.
func TestPutFaults(t *testing.T) {
	for _, kind := range []moraine.Kind{moraine.IOError, moraine.NoSpace, moraine.Stale, moraine.Unavailable} {
		t.Run(kind.String(), func(t *testing.T) {
			inCluster(t, repairing, func(t *testing.T, c *memcluster.Cluster) {
				startMover(t, c, "n1")
				save(t, c, "/runs/a", 1, 5, 1)
				var left atomic.Int32
				left.Store(3)
				for _, h := range c.Hosts { // which of them get repaired chunks is random
					h.Before(func(_ context.Context, req any) error {
						if _, ok := req.(*wire.PutChunk); ok && left.Add(-1) >= 0 {
							return fail(kind)
						}
						return nil
					})
				}
				loseHosts(t, c, 7)
				soundAgain(t, c)
				require.Negative(t, left.Load())
				restore(t, c, "/runs/a", 5, 1)
			})
		})
	}
}

// TestTwoMoversShareTheWork runs all hosts' movers at once while leaders change.
func TestTwoMoversShareTheWork(t *testing.T) {
	inCluster(t, repairing, func(t *testing.T, c *memcluster.Cluster) {
		for _, h := range []string{"n1", "n2", "n3", "n4"} {
			startMover(t, c, h)
		}
		save(t, c, "/runs/a", 1, 5, 4)
		loseHosts(t, c, 7)
		for i := range 6 {
			time.Sleep(300 * time.Millisecond)
			c.Elect(fmt.Sprintf("m%d", i%3+1))
		}
		time.Sleep(2 * time.Second)
		soundAgain(t, c)
		c.Hosts[5].Kill()
		c.Hosts[6].Kill()
		restore(t, c, "/runs/a", 5, 1)
	})
}

// TestLostLeaseStopsTheWork stalls a mover in the middle of a check, and blocks its renewals.
// It must stop by itself before the lease ends, and the other mover commits.
func TestLostLeaseStopsTheWork(t *testing.T) {
	inCluster(t, memcluster.Options{}, func(t *testing.T, c *memcluster.Cluster) {
		s := seal(t, c, "/runs/a", 3)
		cl := c.Mover("n1")
		began, stopped := make(chan struct{}), make(chan time.Duration, 1)
		var first sync.Once
		m, err := mover.New(mover.Config{}, mover.Deps{Client: cl, CheckStep: func(ctx context.Context, _ client.StepKey) (ckpt.IndexFile, error) {
			at := time.Now()
			first.Do(func() { close(began) })
			<-ctx.Done()
			stopped <- time.Since(at)
			return ckpt.IndexFile{}, context.Cause(ctx)
		}})
		require.NoError(t, err)
		c.Run(func(ctx context.Context) error {
			defer cl.Close()
			return m.Run(ctx)
		})
		<-began
		var finished atomic.Int32
		c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
			switch opOf(req) {
			case "RenewJob":
				return nil, fail(moraine.Unavailable)
			case "FinishJob", "CommitStep":
				finished.Add(1)
			case "LeaseJobs":
				return nil, fail(moraine.Unavailable)
			}
			return nil, nil
		})
		require.Less(t, <-stopped, 15*time.Second) // state.JobLease
		time.Sleep(10 * time.Second)
		require.Zero(t, finished.Load(), "a mover without its lease spoke for the job")
		c.OnMeta(nil)
		c.Net.Isolate("n1")
		startMover(t, c, "n2")
		_, err = s.Wait(t.Context(), moraine.NVMe)
		require.NoError(t, err)
	})
}

// TestFencedMoverCannotCommit lets a mover continue after another got its lease: the service
// refuses its commit.
func TestFencedMoverCannotCommit(t *testing.T) {
	inCluster(t, memcluster.Options{}, func(t *testing.T, c *memcluster.Cluster) {
		s := seal(t, c, "/runs/a", 3)
		late := c.Mover("n1")
		defer late.Close()
		resp, err := rawclient.Of(late).Meta(t.Context(), &wire.MetaRequest{Op: &wire.MetaRequest_LeaseJobs{LeaseJobs: &wire.LeaseJobs{Max: 1}}})
		require.NoError(t, err)
		job := resp.GetJobs().GetJobs()[0]
		key := job.GetStep()
		index, err := ckpt.CheckStep(client.ForJob(t.Context(), moraine.JobID(job.GetId())), late,
			client.StepKey{Run: moraine.InodeID(key.Run), Attempt: key.Attempt, Step: key.Step})
		require.NoError(t, err)
		time.Sleep(20 * time.Second) // its lease ends
		startMover(t, c, "n2")
		_, err = s.Wait(t.Context(), moraine.NVMe)
		require.NoError(t, err)
		_, err = rawclient.Of(late).Meta(t.Context(), &wire.MetaRequest{Op: &wire.MetaRequest_FinishJob{FinishJob: &wire.FinishJob{
			Id: job.GetId(), LeaseEpoch: job.GetLeaseEpoch(), Error: "late"}}})
		require.ErrorIs(t, err, moraine.Fenced)
		_, err = rawclient.Of(late).Meta(t.Context(), &wire.MetaRequest{Op: &wire.MetaRequest_CommitStep{CommitStep: &wire.CommitStep{
			Key: job.GetStep(), Job: job.GetId(), LeaseEpoch: job.GetLeaseEpoch(),
			Index: &wire.PartFile{Inode: uint64(index.Inode), Name: index.Name, Crc: index.CRC, Size: uint64(index.Size)}}}})
		require.NoError(t, err) // the other mover committed it
		restore(t, c, "/runs/a", 3, 1)
	})
}

// TestVerdictAbortsTheStep commits nothing if slices do not cover a tensor.
func TestVerdictAbortsTheStep(t *testing.T) {
	inCluster(t, memcluster.Options{}, func(t *testing.T, c *memcluster.Cluster) {
		startMover(t, c, "n1")
		ctx := t.Context()
		cl := c.Client("trainer")
		defer cl.Close()
		r, err := ckpt.OpenRun(ctx, cl, "/runs/a", ckpt.RunOptions{Launch: ckpt.Launch{Name: "l1"}, StagingBytes: 64 << 20})
		require.NoError(t, err)
		defer r.Close(ctx)
		s, err := r.Begin(ctx, 9, ckpt.BeginOptions{})
		require.NoError(t, err)
		require.NoError(t, s.AddTensor(ctx, ckpt.Tensor{Name: "w", DType: 2, Shape: []int64{2}, Global: []int64{4}, Offset: []int64{0}, Data: make([]byte, 8)}))
		require.NoError(t, s.Seal(ctx))
		_, err = s.Wait(ctx, moraine.NVMe)
		require.ErrorIs(t, err, moraine.Aborted)
		require.ErrorContains(t, err, `tensor "w" of shape [4]: [2:4] is in no part (slices came from rank 0)`)
		_, err = r.Resolve(ctx, ckpt.ResolveOptions{})
		require.ErrorIs(t, err, moraine.NotFound)
	})
}
