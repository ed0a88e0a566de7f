package chunkserver_test

import (
	"context"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/chunkserver"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// timedService takes a while for each get: longer, the more of repairs there was
// in the last tenth of a second. It uses a millisecond of processor a request.
type timedService struct {
	transport.ChunkService
	mu      sync.Mutex
	repairs []time.Time
	used    atomic.Int64
	served  atomic.Int64
	bytes   atomic.Int64
	felt    int // how many times as much as usually a repair is felt; 0: once
}

const quick = 5 * time.Millisecond

func (s *timedService) GetChunk(ctx context.Context, req *wire.GetChunk) (*wire.GetChunkReply, [][]byte, func(), error) {
	s.used.Add(int64(time.Millisecond))
	s.served.Add(1)
	s.bytes.Add(int64(req.Length))
	now := time.Now()
	s.mu.Lock()
	for len(s.repairs) > 0 && now.Sub(s.repairs[0]) > 100*time.Millisecond {
		s.repairs = s.repairs[1:]
	}
	busy := len(s.repairs)
	if transport.PeerFrom(ctx) != nil {
		s.repairs = append(s.repairs, now)
	}
	s.mu.Unlock()
	// A request of a repair has 1 MiB: at 100 MiB/s of them others take three times
	// as long.
	time.Sleep(quick + quick*time.Duration(busy*max(s.felt, 1))/5)
	return &wire.GetChunkReply{}, nil, func() {}, nil
}

// load asks a service, n at a time, until ctx ends, and returns what gives the times
// of the requests since it was asked last.
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

// --bandwidth-limit holds, however many ask at once.
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
		require.Greater(t, sent, int64(19*50<<20), "and it is not held below it")
	})
}

// --cpus holds: of the processor time that requests use, no more than so much a
// second.
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
		// Those that are let in at one moment use what they use before it is seen.
		require.LessOrEqual(t, used, 10*time.Second+200*time.Millisecond)
		require.Greater(t, used, 9*time.Second)
	})
}

// Repairs get what is there where no client asks, and so much less where clients
// do that these do not take twice as long as alone.
func TestRepairsYieldToClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &timedService{}
		var ended sync.WaitGroup
		n := neighbour(t, s, chunkserver.Limits{BackgroundBytesPerSecond: 400 << 20})
		ctx, cancel := context.WithCancel(t.Context())
		repair := transport.WithPeer(ctx, &transport.Peer{Role: transport.RoleChunkserver})
		load(repair, &ended, n, 16, 1<<20)
		time.Sleep(20 * time.Second)
		alone := s.bytes.Load() / 20
		require.Greater(t, alone, int64(100<<20), "nobody minds")

		times := load(ctx, &ended, n, 4, 4096)
		time.Sleep(30 * time.Second) // it finds what clients bear
		times()
		before := s.bytes.Load()
		time.Sleep(60 * time.Second)
		took := times()
		with := (s.bytes.Load() - before) / 60
		cancel()
		ended.Wait()
		over := 0
		for _, d := range took {
			if d > 2*quick {
				over++
			}
		}
		t.Logf("repairs: %d MiB/s alone, %d MiB/s beside clients; %d of %d of their requests took twice as long", alone>>20, with>>20, over, len(took))
		require.Less(t, over, len(took)/100, "the 99th percentile does not double")
		require.Greater(t, with, int64(15<<20), "repairs are never starved")
		require.Less(t, with, alone)
	})
}

// chanceService takes as long for a get as chance has it, whatever else it does: of one in
// twenty more than five times as long as of half of them.
type chanceService struct {
	timedService
	mu  sync.Mutex
	rng *rand.Rand
}

func (s *chanceService) GetChunk(_ context.Context, req *wire.GetChunk) (*wire.GetChunkReply, [][]byte, func(), error) {
	s.bytes.Add(int64(req.Length))
	s.mu.Lock()
	took := time.Duration(float64(quick) * math.Exp(s.rng.NormFloat64()))
	s.mu.Unlock()
	time.Sleep(took)
	return &wire.GetChunkReply{}, nil, func() {}, nil
}

// Clients whose requests take long by chance, and no longer for repairs, do not hold these
// back.
func TestRepairsDoNotYieldToChance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &chanceService{rng: rand.New(rand.NewPCG(1, 1))}
		n, err := chunkserver.NewNeighbour(s, chunkserver.Limits{BackgroundBytesPerSecond: 400 << 20}, chunkserver.NeighbourDeps{})
		require.NoError(t, err)
		var ended sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		load(ctx, &ended, n, 1, 4096) // 120 a second
		time.Sleep(10 * time.Second)
		load(transport.WithPeer(ctx, &transport.Peer{Role: transport.RoleChunkserver}), &ended, n, 64, 1<<20)
		time.Sleep(30 * time.Second)
		before := s.bytes.Load()
		time.Sleep(120 * time.Second)
		with := (s.bytes.Load() - before) / 120
		cancel()
		ended.Wait()
		t.Logf("repairs: %d MiB/s", with>>20)
		require.Greater(t, with, int64(200<<20))
	})
}

// Repairs that clients feel at any rate wait no longer than their senders do, however many
// they are, also while it is learned what requests take without them.
func TestRepairsWaitNoLongerThanTheirSenders(t *testing.T) {
	for _, at := range []int{16, 64} {
		synctest.Test(t, func(t *testing.T) {
			s := &timedService{felt: 20} // of 4 MiB/s
			n := neighbour(t, s, chunkserver.Limits{})
			var ended sync.WaitGroup
			ctx, cancel := context.WithCancel(t.Context())
			load(ctx, &ended, n, 1, 4096)
			time.Sleep(20 * time.Second)
			repair := transport.WithPeer(ctx, &transport.Peer{Role: transport.RoleChunkserver})
			var late, done atomic.Int64
			for range at {
				ended.Go(func() {
					for ctx.Err() == nil {
						once, end := context.WithTimeout(repair, 10*time.Second)
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
			require.Greater(t, done.Load(), int64(120*16/4*3/4), "less than their floor")
		})
	}
}

// A repair, and the commit of a checkpoint, wait for little of what flushes have asked for
// before them, and those are not starved.
func TestRepairsGoBeforeFlushes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &timedService{felt: 20}
		n := neighbour(t, s, chunkserver.Limits{})
		var ended sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		load(ctx, &ended, n, 1, 4096)
		time.Sleep(20 * time.Second)
		mover := transport.WithPeer(ctx, &transport.Peer{Role: transport.RoleChunkserver})
		var flushed atomic.Int64
		for range 48 {
			ended.Go(func() {
				for ctx.Err() == nil {
					if _, _, _, err := n.GetChunk(mover, &wire.GetChunk{Length: 4 << 20, LowPriority: true}); err == nil {
						flushed.Add(1)
					}
				}
			})
		}
		time.Sleep(20 * time.Second)
		before, passed := flushed.Load(), int64(0)
		const repairs = 40
		for range repairs {
			at := flushed.Load()
			_, _, _, err := n.GetChunk(mover, &wire.GetChunk{Length: 4 << 20})
			require.NoError(t, err)
			passed += flushed.Load() - at
			time.Sleep(time.Second)
		}
		all := flushed.Load() - before
		cancel()
		ended.Wait()
		t.Logf("%d chunks of flushes in all, %d while %d repairs waited", all, passed, repairs)
		require.Less(t, passed, int64(repairs*8), "a repair waits for what 48 flushes ask for")
		require.Greater(t, all, int64(repairs*4), "flushes go on")
	})
}

// Clients that ask now and then are left room too, and clients that come back find no more
// of repairs than those begin with.
func TestRepairsYieldToFewClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &timedService{}
		n := neighbour(t, s, chunkserver.Limits{BackgroundBytesPerSecond: 400 << 20})
		var ended sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		load(transport.WithPeer(ctx, &transport.Peer{Role: transport.RoleChunkserver}), &ended, n, 16, 1<<20)
		time.Sleep(60 * time.Second)
		before := s.bytes.Load()
		time.Sleep(10 * time.Second)
		alone := (s.bytes.Load() - before) / 10
		require.Greater(t, alone, int64(200<<20))

		var took []time.Duration
		ask := func() {
			began := time.Now()
			_, _, _, err := n.GetChunk(ctx, &wire.GetChunk{Length: 4096})
			require.NoError(t, err)
			took = append(took, time.Since(began))
			time.Sleep(time.Second / 3)
		}
		ask()
		time.Sleep(time.Second)
		ask()
		before = s.bytes.Load()
		for range 6 {
			ask()
		}
		back := (s.bytes.Load() - before) / 2
		for range 180 {
			ask()
		}
		took = nil
		before = s.bytes.Load()
		for range 180 {
			ask()
		}
		with := (s.bytes.Load() - before) / 60
		cancel()
		ended.Wait()
		over := 0
		for _, d := range took {
			if d > 2*quick {
				over++
			}
		}
		t.Logf("repairs: %d MiB/s alone, %d as clients come, %d beside them; %d of %d of their requests took twice as long", alone>>20, back>>20, with>>20, over, len(took))
		require.LessOrEqual(t, back, int64(40<<20))
		require.Greater(t, with, int64(15<<20), "repairs are never starved")
		require.Less(t, over, len(took)/10)
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

// What the process moves unasked is of --bandwidth-limit too, and neither that nor what
// clients ask for starves the other.
func TestBandwidthLimitHoldsForUnaskedWork(t *testing.T) {
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
		require.Greater(t, sent+moved40, int64(38*10<<20-piece), "and it is not held below it")
		require.Greater(t, sent, int64(40*10<<20/2), "of five that ask, clients are four")
		require.Greater(t, moved40, int64(piece))
	})
}

// Repairs get their floor of --bandwidth-limit however many clients wait, those that this
// process does and those of others, and the limit holds.
func TestRepairsHaveAFloorOfTheBandwidth(t *testing.T) {
	for name, limit := range map[string]int64{"an eighth": 16 << 20, "the most": 256 << 20, "the least": 1 << 20} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, peers := &timedService{}, &timedService{}
				n := neighbour(t, s, chunkserver.Limits{BytesPerSecond: limit})
				var ended sync.WaitGroup
				ctx, cancel := context.WithCancel(t.Context())
				load(ctx, &ended, n, 256, 4<<20)
				time.Sleep(20 * time.Second) // what was saved up is gone
				var own atomic.Int64
				ended.Go(func() {
					for n.TakeForRepair(ctx, 4<<20) == nil {
						own.Add(4 << 20)
					}
				})
				clients := s.bytes.Load()
				time.Sleep(300 * time.Second)
				sent, alone := s.bytes.Load()-clients, own.Load()
				repair := transport.WithPeer(ctx, &transport.Peer{Role: transport.RoleChunkserver})
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
				require.GreaterOrEqual(t, own2+theirs, floor*3/4-4<<20, "some of others' is taken as they give up")
				if limit > chunkserver.LeastBandwidth { // a chunk is 32 s of the least floor: who comes through is chance
					require.Positive(t, theirs)
				}
				require.LessOrEqual(t, sent+alone, 300*limit+2*16<<20, "the limit holds")
				require.Greater(t, sent, 300*limit*3/4, "and clients have the most")
			})
		})
	}
}

// Unasked work waits for --cpus as requests do, and work that waits for nothing, and used
// far more than there was, keeps the door shut for some seconds only.
func TestCPULimitHoldsForUnaskedWork(t *testing.T) {
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

// Work that asks for nothing and uses more than --cpus all the time keeps nobody out for
// longer than 5 s.
func TestUnaskedWorkDoesNotShutTheDoor(t *testing.T) {
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

// Who gives up while it waits takes nothing of --bandwidth-limit: clients that ask
// for more than there is, and wait for a while only, get all that there is.
func TestBandwidthIsNotSpentOnWhoGaveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &timedService{}
		var ended sync.WaitGroup
		n := neighbour(t, s, chunkserver.Limits{BytesPerSecond: 10 << 20})
		ctx, cancel := context.WithCancel(t.Context())
		for range 64 {
			ended.Go(func() {
				for ctx.Err() == nil {
					once, done := context.WithTimeout(ctx, 2*time.Second)
					_, _, _, _ = n.GetChunk(once, &wire.GetChunk{Length: 4 << 20}) // most find no room in time
					done()
				}
			})
		}
		time.Sleep(10 * time.Second) // what was saved up is gone
		before := s.bytes.Load()
		time.Sleep(20 * time.Second)
		sent := s.bytes.Load() - before
		cancel()
		ended.Wait()
		require.Greater(t, sent, int64(19*10<<20))
		require.LessOrEqual(t, sent, int64(21*10<<20))
	})
}

// Repairs that give up while they wait for clients take nothing from other repairs.
func TestRepairsThatGaveUpHoldNobodyBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &timedService{}
		var ended sync.WaitGroup
		n := neighbour(t, s, chunkserver.Limits{BackgroundBytesPerSecond: 4 << 20})
		ctx, cancel := context.WithCancel(t.Context())
		repair := transport.WithPeer(ctx, &transport.Peer{Role: transport.RoleChunkserver})
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
