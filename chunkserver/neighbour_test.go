package chunkserver_test

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/chunkserver"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// timedService takes some time, and uses a millisecond of processor time, for each
// get.
type timedService struct {
	transport.ChunkService
	used   atomic.Int64
	served atomic.Int64
	bytes  atomic.Int64
}

const quick = 5 * time.Millisecond

func (s *timedService) GetChunk(_ context.Context, req *wire.GetChunk) (*wire.GetChunkReply, [][]byte, func(), error) {
	s.used.Add(int64(time.Millisecond))
	s.served.Add(1)
	s.bytes.Add(int64(req.Length))
	time.Sleep(quick)
	return &wire.GetChunkReply{}, nil, func() {}, nil
}

// load calls a service, n calls at a time, until ctx ends. It returns a function
// that returns the request times since its last call.
func load(ctx context.Context, ended *sync.WaitGroup, s transport.ChunkService, n int, length uint64) func() []time.Duration {
	var mu sync.Mutex
	var took []time.Duration
	for range n {
		ended.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				if _, _, _, err := s.GetChunk(ctx, &wire.GetChunk{Length: length}); err == nil {
					mu.Lock()
					took = append(took, time.Since(began))
					mu.Unlock()
				}
			}
		})
	}
	return func() []time.Duration {
		mu.Lock()
		defer mu.Unlock()
		out := took
		took = nil
		return out
	}
}

func neighbour(t *testing.T, s *timedService, limits chunkserver.Limits) *chunkserver.Neighbour {
	t.Helper()
	n, err := chunkserver.NewNeighbour(s, limits, chunkserver.NeighbourDeps{CPUTime: func() time.Duration { return time.Duration(s.used.Load()) }})
	require.NoError(t, err)
	return n
}

// --bandwidth-limit holds for any number of concurrent requests.
func TestBandwidthLimitHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &timedService{}
		var ended sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		load(ctx, &ended, neighbour(t, s, chunkserver.Limits{BytesPerSecond: 50 << 20}), 64, 1<<20)
		time.Sleep(20 * time.Second)
		sent := s.bytes.Load()
		cancel()
		ended.Wait()
		require.LessOrEqual(t, sent, int64(20*50<<20+64<<20), "20 s at 50 MiB, and what may be saved up")
		require.Greater(t, sent, int64(19*50<<20), "and it uses the limit fully")
	})
}

// --cpus holds: requests use no more processor time per second than the limit.
func TestCPULimitHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &timedService{}
		var ended sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		load(ctx, &ended, neighbour(t, s, chunkserver.Limits{CPUs: 0.5}), 64, 4096)
		time.Sleep(20 * time.Second)
		used := time.Duration(s.used.Load())
		cancel()
		ended.Wait()
		// Requests admitted at the same moment use their time before it is counted.
		require.LessOrEqual(t, used, 10*time.Second+200*time.Millisecond)
		require.Greater(t, used, 9*time.Second)
	})
}

func counted(t *testing.T, c prometheus.Counter) float64 {
	t.Helper()
	var m dto.Metric
	require.NoError(t, c.Write(&m))
	return m.GetCounter().GetValue()
}

// repairing marks requests as those of another chunkserver's mover.
func repairing(ctx context.Context) context.Context {
	return transport.WithPeer(ctx, &transport.Peer{Role: transport.RoleChunkserver})
}

// Repairs get a fixed share while there are no client requests, and an eighth of it
// beside clients. They get the whole share again once clients have been idle for a
// while.
func TestRepairsGetAFixedShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &timedService{}
		var ended sync.WaitGroup
		n := neighbour(t, s, chunkserver.Limits{BackgroundBytesPerSecond: 400 << 20})
		ctx, cancel := context.WithCancel(t.Context())
		load(repairing(ctx), &ended, n, 64, 1<<20)
		rate := func(seconds time.Duration) int64 {
			before := s.bytes.Load()
			time.Sleep(seconds * time.Second)
			return (s.bytes.Load() - before) / int64(seconds)
		}
		time.Sleep(time.Second) // the saved-up budget is used up
		require.InDelta(t, 400<<20, rate(20), 4<<20)

		clients, end := context.WithCancel(ctx)
		load(clients, &ended, n, 1, 0) // its bytes do not count here
		time.Sleep(time.Second)
		require.InDelta(t, 50<<20, rate(20), 4<<20)

		end()
		time.Sleep(11 * time.Second)
		require.InDelta(t, 400<<20, rate(20), 4<<20)
		cancel()
		ended.Wait()
	})
}

// A client never waits for the share of repairs. Nor does a repair of a stripe
// without redundancy left, however many clients there are.
func TestUrgentRepairsAndClientsWaitForNoShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &timedService{}
		var ended sync.WaitGroup
		metrics := chunkserver.NewMetrics(nil)
		n, err := chunkserver.NewNeighbour(s, chunkserver.Limits{BackgroundBytesPerSecond: 4 << 20}, chunkserver.NeighbourDeps{Metrics: metrics})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		load(ctx, &ended, n, 4, 4096)
		load(repairing(ctx), &ended, n, 16, 4<<20) // they fill the share
		time.Sleep(10 * time.Second)
		bytes := func(bound string) float64 { return counted(t, metrics.BackgroundBytes.WithLabelValues(bound)) }
		ordinary := bytes("clients")
		require.Positive(t, ordinary)
		require.Zero(t, bytes("urgent"))

		const urgent = 1000
		for range urgent {
			_, _, _, err := n.GetChunk(repairing(ctx), &wire.GetChunk{Length: 4 << 20, Urgent: true})
			require.NoError(t, err)
		}
		held := counted(t, metrics.HeldBack.WithLabelValues("share"))
		require.EqualValues(t, urgent*4<<20, bytes("urgent"))
		for range 100 {
			_, _, _, err := n.GetChunk(ctx, &wire.GetChunk{Length: 4 << 20, Urgent: true}) // ignored for a client
			require.NoError(t, err)
		}
		require.EqualValues(t, urgent*4<<20, bytes("urgent"))
		require.LessOrEqual(t, counted(t, metrics.HeldBack.WithLabelValues("share"))-held, float64(100), "the ordinary ones alone")
		cancel()
		ended.Wait()
	})
}

// However many repairs there are, they wait for their share no longer than their
// senders wait for them.
func TestRepairsWaitNoLongerThanTheirSenders(t *testing.T) {
	for _, at := range []int{16, 256} {
		synctest.Test(t, func(t *testing.T) {
			s := &timedService{}
			n := neighbour(t, s, chunkserver.Limits{BackgroundBytesPerSecond: 64 << 20}) // 16 MiB/s beside clients
			var ended sync.WaitGroup
			ctx, cancel := context.WithCancel(t.Context())
			load(ctx, &ended, n, 1, 4096)
			var late, done atomic.Int64
			for range at {
				ended.Go(func() {
					for ctx.Err() == nil {
						once, end := context.WithTimeout(repairing(ctx), 10*time.Second)
						_, _, _, err := n.GetChunk(once, &wire.GetChunk{Length: 4 << 20})
						end()
						if err == nil {
							done.Add(1)
						} else if ctx.Err() == nil {
							late.Add(1)
						}
					}
				})
			}
			time.Sleep(120 * time.Second)
			cancel()
			ended.Wait()
			t.Logf("%d at once: %d MiB/s, %d late", at, done.Load()*4/120, late.Load())
			require.Zero(t, late.Load())
			require.Greater(t, done.Load(), int64(120*16/4*9/10), "less than their share")
		})
	}
}

// A repair, and the commit of a checkpoint, do not wait behind earlier requests of
// flushes. Flushes do not starve.
func TestRepairsGoBeforeFlushes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &timedService{}
		n := neighbour(t, s, chunkserver.Limits{BackgroundBytesPerSecond: 64 << 20})
		var ended sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		load(ctx, &ended, n, 1, 4096)
		var flushed atomic.Int64
		for range 48 {
			ended.Go(func() {
				for ctx.Err() == nil {
					if _, _, _, err := n.GetChunk(repairing(ctx), &wire.GetChunk{Length: 4 << 20, LowPriority: true}); err == nil {
						flushed.Add(1)
					}
				}
			})
		}
		time.Sleep(20 * time.Second)
		before := flushed.Load()
		const repairs = 40
		for range repairs {
			began := time.Now()
			_, _, _, err := n.GetChunk(repairing(ctx), &wire.GetChunk{Length: 4 << 20})
			require.NoError(t, err)
			require.Less(t, time.Since(began), time.Second/2, "a chunk is a quarter of a second of the share")
			time.Sleep(time.Second)
		}
		all := flushed.Load() - before
		cancel()
		ended.Wait()
		require.Greater(t, all, int64(repairs), "flushes go on")
	})
}

func TestBadLimitsAreRefused(t *testing.T) {
	for _, l := range []chunkserver.Limits{{CPUs: -1}, {BytesPerSecond: -1}, {CPUs: math.NaN()}, {CPUs: 0.0001}, {BytesPerSecond: 1}} {
		_, err := chunkserver.NewNeighbour(&timedService{}, l, chunkserver.NeighbourDeps{})
		require.ErrorIs(t, err, moraine.InvalidArgument, "%+v", l)
	}
	_, err := chunkserver.NewNeighbour(&timedService{}, chunkserver.Limits{CPUs: chunkserver.LeastCPUs, BytesPerSecond: chunkserver.LeastBandwidth}, chunkserver.NeighbourDeps{})
	require.NoError(t, err)
}

// Data that the process moves without a request counts towards --bandwidth-limit
// too. Neither this work nor clients starve the other.
func TestBandwidthLimitHoldsForBackgroundWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &timedService{}
		var ended sync.WaitGroup
		n := neighbour(t, s, chunkserver.Limits{BytesPerSecond: 10 << 20})
		ctx, cancel := context.WithCancel(t.Context())
		var moved atomic.Int64
		const piece = 16 << 20
		ended.Go(func() {
			for n.Take(ctx, piece) == nil {
				moved.Add(piece)
			}
		})
		load(ctx, &ended, n, 4, 1<<20)
		time.Sleep(40 * time.Second)
		sent, moved40 := s.bytes.Load(), moved.Load()
		cancel()
		ended.Wait()
		t.Logf("%d MiB for clients, %d MiB of its own", sent>>20, moved40>>20)
		require.LessOrEqual(t, sent+moved40, int64(40*10<<20+16<<20+4<<20), "40 s at 10 MiB, and what may be saved up")
		require.Greater(t, sent+moved40, int64(38*10<<20-piece), "and it uses the limit fully")
		require.Greater(t, sent, int64(40*10<<20/2), "of five that ask, clients are four")
		require.Greater(t, moved40, int64(piece))
	})
}

// However many clients wait, repairs of this process and of others get their floor
// of --bandwidth-limit, and the limit holds.
func TestRepairsHaveAFloorOfTheBandwidth(t *testing.T) {
	for name, limit := range map[string]int64{"an eighth": 16 << 20, "the most": 256 << 20, "the least": 1 << 20} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, peers := &timedService{}, &timedService{}
				n := neighbour(t, s, chunkserver.Limits{BytesPerSecond: limit})
				var ended sync.WaitGroup
				ctx, cancel := context.WithCancel(t.Context())
				load(ctx, &ended, n, 256, 4<<20)
				time.Sleep(20 * time.Second) // the saved-up budget is used up
				var own atomic.Int64
				ended.Go(func() {
					for n.TakeForRepair(ctx, 4<<20) == nil {
						own.Add(4 << 20)
					}
				})
				clients := s.bytes.Load()
				time.Sleep(300 * time.Second)
				sent, alone := s.bytes.Load()-clients, own.Load()
				repair := repairing(ctx)
				for range 4 {
					ended.Go(func() {
						for ctx.Err() == nil {
							once, done := context.WithTimeout(repair, 10*time.Second) // as their senders do
							if _, _, _, err := n.GetChunk(once, &wire.GetChunk{Length: 4 << 20}); err == nil {
								peers.bytes.Add(4 << 20)
							}
							done()
						}
					})
				}
				time.Sleep(300 * time.Second)
				own2, theirs := own.Load()-alone, peers.bytes.Load()
				cancel()
				ended.Wait()
				t.Logf("in 300 s: %d MiB for clients, %d MiB of its own repairs; beside others' %d MiB, and theirs %d MiB", sent>>20, alone>>20, own2>>20, theirs>>20)
				floor := min(limit/8, 16<<20) * 300
				require.GreaterOrEqual(t, alone, floor*9/10-4<<20)
				require.GreaterOrEqual(t, own2+theirs, floor*3/4-4<<20, "senders that time out use up part of the others' floor")
				if limit > chunkserver.LeastBandwidth { // a chunk takes 32 s of the smallest floor: which requests succeed is chance
					require.Positive(t, theirs)
				}
				require.LessOrEqual(t, sent+alone, 300*limit+2*16<<20, "the limit holds")
				require.Greater(t, sent, 300*limit*3/4, "and clients have the most")
			})
		})
	}
}

// Work without a request waits for --cpus as requests do. After work that never
// waits has used far more than the limit, requests wait for some seconds only.
func TestCPULimitHoldsForBackgroundWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &timedService{}
		n := neighbour(t, s, chunkserver.Limits{CPUs: 0.5})
		began := time.Now()
		for range 100 {
			require.NoError(t, n.Take(t.Context(), 1<<30)) // no limit on bytes
			s.used.Add(int64(100 * time.Millisecond))
		}
		took := time.Since(began)
		require.Greater(t, took, 19*time.Second, "10 s of a processor, half of one at a time")
		require.Less(t, took, 21*time.Second)

		require.NoError(t, n.Take(t.Context(), 0))
		s.used.Add(int64(time.Hour))
		began = time.Now()
		_, _, _, err := n.GetChunk(t.Context(), &wire.GetChunk{Length: 4096})
		require.NoError(t, err)
		require.InDelta(t, 5*time.Second, time.Since(began), float64(100*time.Millisecond))
		require.NoError(t, (*chunkserver.Neighbour)(nil).Take(t.Context(), 1))
	})
}

// Work that never waits and constantly exceeds --cpus delays no request for longer
// than 5 s.
func TestBackgroundWorkDoesNotBlockRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &timedService{}
		n := neighbour(t, s, chunkserver.Limits{CPUs: 0.5})
		ctx, cancel := context.WithCancel(t.Context())
		var ended sync.WaitGroup
		ended.Go(func() {
			for ctx.Err() == nil { // three quarters of a processor
				s.used.Add(int64(75 * time.Millisecond))
				time.Sleep(100 * time.Millisecond)
			}
		})
		time.Sleep(time.Minute)
		for range 3 {
			began := time.Now()
			_, _, _, err := n.GetChunk(ctx, &wire.GetChunk{Length: 4096})
			require.NoError(t, err)
			require.LessOrEqual(t, time.Since(began), 5*time.Second+quick)
			began = time.Now()
			require.NoError(t, n.Take(ctx, 1))
			require.LessOrEqual(t, time.Since(began), 5*time.Second)
		}
		cancel()
		ended.Wait()
	})
}

// A request that stops waiting uses nothing of --bandwidth-limit. Under overload,
// clients that wait only for a while get the whole limit.
func TestBandwidthIsNotSpentOnCancelledRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &timedService{}
		var ended sync.WaitGroup
		n := neighbour(t, s, chunkserver.Limits{BytesPerSecond: 10 << 20})
		ctx, cancel := context.WithCancel(t.Context())
		for range 64 {
			ended.Go(func() {
				for ctx.Err() == nil {
					once, done := context.WithTimeout(ctx, 2*time.Second)
					_, _, _, _ = n.GetChunk(once, &wire.GetChunk{Length: 4 << 20}) // most find no free bandwidth in time
					done()
				}
			})
		}
		time.Sleep(10 * time.Second) // the saved-up budget is used up
		before := s.bytes.Load()
		time.Sleep(20 * time.Second)
		sent := s.bytes.Load() - before
		cancel()
		ended.Wait()
		require.Greater(t, sent, int64(19*10<<20))
		require.LessOrEqual(t, sent, int64(21*10<<20))
	})
}

// Repairs that stop waiting for clients take nothing from other repairs.
func TestCancelledRepairsDelayNoOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &timedService{}
		var ended sync.WaitGroup
		n := neighbour(t, s, chunkserver.Limits{BackgroundBytesPerSecond: 4 << 20})
		ctx, cancel := context.WithCancel(t.Context())
		repair := repairing(ctx)
		for range 32 {
			ended.Go(func() {
				for ctx.Err() == nil {
					once, done := context.WithTimeout(repair, 500*time.Millisecond)
					_, _, _, _ = n.GetChunk(once, &wire.GetChunk{Length: 4 << 20})
					done()
				}
			})
		}
		time.Sleep(30 * time.Second)
		before := s.bytes.Load()
		time.Sleep(20 * time.Second)
		sent := s.bytes.Load() - before
		cancel()
		ended.Wait()
		require.Greater(t, sent, int64(20*2<<20))
	})
}

// GetCached serves anything from memory.
func (s *timedService) GetCached(context.Context, *wire.GetChunk) (*wire.GetChunkReply, [][]byte, func(), bool) {
	return &wire.GetChunkReply{}, nil, func() {}, true
}

// Under a limit, and for the mover of another host, even what is in memory takes the way on which
// requests wait.
func TestLimitsHoldForChunksInMemory(t *testing.T) {
	for _, c := range []struct {
		limits chunkserver.Limits
		ctx    context.Context
		want   bool
	}{
		{chunkserver.Limits{}, t.Context(), true},
		{chunkserver.Limits{}, repairing(t.Context()), false},
		{chunkserver.Limits{BytesPerSecond: 1 << 30}, t.Context(), false},
		{chunkserver.Limits{CPUs: 8}, t.Context(), false},
	} {
		_, _, _, ok := neighbour(t, &timedService{}, c.limits).GetCached(c.ctx, &wire.GetChunk{Length: 4096})
		require.Equal(t, c.want, ok, "%+v", c.limits)
	}
}
