package session

import (
	"context"
	"crypto/rand"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/metrics"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// pair is two metadata servers, a and b, one of which leads. The leader may also be c, which
// only answers of a and b name.
type pair struct {
	transport.Dialer
	mu      sync.Mutex
	serving string
	took    map[string]time.Duration // answer time, except for GetLeader; negative: never
	silent  string                   // never answers
	asked   map[string]int           // number of GetLeader requests for each server
}

type half struct {
	p    *pair
	name string
}

func (p *pair) Metadata(addrs []string) transport.Metadata { return half{p, addrs[0]} }

// Do implements transport.Metadata.
func (h half) Do(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	h.p.mu.Lock()
	serving, took, silent := h.p.serving, h.p.took[h.name], h.p.silent == h.name
	who := req.GetGetLeader() != nil
	if who {
		h.p.asked[h.name]++
		took = 0
	}
	h.p.mu.Unlock()
	if silent || took < 0 {
		took = time.Hour
	}
	select {
	case <-time.After(took):
	case <-ctx.Done():
		return nil, &moraine.Error{Kind: moraine.KindOf(ctx.Err()), Err: ctx.Err()}
	}
	switch {
	case who:
		return &wire.MetaResponse{Result: &wire.MetaResponse_Leader{Leader: &wire.LeaderReply{
			Id: serving, Addresses: []string{serving}, Serving: serving == h.name}}}, nil
	case serving != h.name:
		return nil, &moraine.Error{Kind: moraine.NotLeader, Err: &transport.LeaderHint{ID: serving, Addresses: []string{serving}}}
	}
	if req.GetOpenSession() != nil {
		return &wire.MetaResponse{Result: &wire.MetaResponse_Session{Session: &wire.SessionReply{Session: 7, Root: 1, TermMillis: 60_000}}}, nil
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Done{Done: &wire.Done{}}}, nil
}

// conn returns a Conn with two servers, a first.
func (p *pair) conn() *Conn {
	return New(Config{Metadata: [][]string{{"a"}, {"b"}}, AttemptTimeout: 5 * time.Second, Patience: 2 * time.Minute},
		Deps{Dialer: p, Clock: clock.System{}, Log: slog.New(slog.DiscardHandler), Metrics: metrics.NewMetrics(nil), Random: rand.Reader})
}

// request makes a read with two servers, a first, and returns how long it took. before runs
// before it, if given.
func (p *pair) request(t *testing.T, before ...func(ctx context.Context, m *Conn)) (time.Duration, *Conn) {
	p.asked = map[string]int{}
	m := p.conn()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); m.endpointHealth.run(ctx) }()
	defer func() { cancel(); <-ended }()
	for _, fn := range before {
		fn(ctx, m)
	}
	began := time.Now()
	_, _, err := m.exchange(t.Context(), &wire.MetaRequest{Op: &wire.MetaRequest_GetTopology{GetTopology: &wire.GetTopology{}}}, nil, 0)
	require.NoError(t, err)
	return time.Since(began), m
}

// The client leaves a stopped leader with open connections as soon as another one leads, and
// not only when the attempt times out.
func TestALeaderThatStoppedIsLeftForTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pair{serving: "a", silent: "a"}
		time.AfterFunc(660*time.Millisecond, func() { // the time of an election
			p.mu.Lock()
			defer p.mu.Unlock()
			p.serving = "b"
		})
		took, m := p.request(t)
		require.GreaterOrEqual(t, took, 660*time.Millisecond)
		require.LessOrEqual(t, took, 660*time.Millisecond+lookEvery+20*time.Millisecond)
		require.EqualValues(t, 1, metrics.Count(m.metrics.LeadersLeft))
	})
}

// The same holds while the service delays another reply of the client, as it does for recalls
// and watches. The client ends that attempt with the others, and it does not postpone the look.
func TestALeaderThatStoppedIsLeftWhileAQuestionIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pair{serving: "a", silent: "a"}
		var held sync.WaitGroup
		took, m := p.request(t, func(ctx context.Context, m *Conn) {
			held.Go(func() {
				stub, addrs := m.servers.current()
				_, err := m.try(ctx, stub, addrs, &wire.MetaRequest{Op: &wire.MetaRequest_Watch{Watch: &wire.Watch{}}}, 20*time.Second)
				require.True(t, retry.IsTransient(err), "%v", err)
			})
			time.Sleep(time.Second)
			time.AfterFunc(660*time.Millisecond, func() {
				p.mu.Lock()
				defer p.mu.Unlock()
				p.serving = "b"
			})
		})
		held.Wait()
		require.LessOrEqual(t, took, 660*time.Millisecond+lookEvery+20*time.Millisecond)
		require.EqualValues(t, 2, metrics.Count(m.metrics.LeadersLeft))
	})
}

// The first server is down, without any sign of it. A new client opens its session with the
// leader as soon as a running client would find it. The client knows the leader, or one of its
// followers.
func TestAFirstSessionIsOpenedPastAServerThatIsGone(t *testing.T) {
	for _, leader := range []string{"b", "c"} {
		synctest.Test(t, func(t *testing.T) {
			p := &pair{serving: leader, silent: "a", asked: map[string]int{}}
			began := time.Now()
			life, stop := context.WithCancel(t.Context())
			var running sync.WaitGroup
			m := p.conn()
			require.NoError(t, m.Start(t.Context(), life, &running))
			require.Less(t, time.Since(began), lookAfter+50*time.Millisecond, "leader %s", leader)
			require.Zero(t, p.asked["a"])
			require.NoError(t, m.Close(t.Context()))
			stop()
			running.Wait()
		})
	}
}

// Opening a session without an answer ends with the caller's patience, and leaves no goroutine.
func TestAFirstSessionThatNobodyOpens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pair{serving: "b", silent: "b", took: map[string]time.Duration{"a": -1}, asked: map[string]int{}}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		life, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		require.ErrorIs(t, p.conn().Start(ctx, life, &running), moraine.Timeout)
		stop()
		running.Wait()
	})
}

// A leader known by two addresses is one server: the second address is no successor of the
// first.
func TestALeaderIsNotItsOwnSuccessor(t *testing.T) {
	l := &endpointHealth{servers: newServers(noDialer{}, [][]string{{"10.0.0.1:1"}, {"host:1"}}),
		ask: func(context.Context, []string) *wire.LeaderReply {
			return &wire.LeaderReply{Id: "m1", Addresses: []string{"10.0.0.1:1"}, Serving: true}
		}}
	require.Nil(t, l.successor(t.Context(), []string{"10.0.0.1:1"}))
	require.Equal(t, []string{"10.0.0.1:1"}, l.successor(t.Context(), []string{"host:1"}), "once, and then by the address that it gives itself")
}

// The client waits for a slow leader: no other server leads.
func TestALeaderThatIsSlowIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pair{serving: "a", took: map[string]time.Duration{"a": 4900 * time.Millisecond}}
		took, m := p.request(t)
		require.Equal(t, 4900*time.Millisecond, took)
		require.Zero(t, metrics.Count(m.metrics.LeadersLeft))
		require.LessOrEqual(t, p.asked["b"], 25, "others are asked now and then")
		require.Zero(t, p.asked["a"])
	})
}

// An answer in time costs no query.
func TestWhoAnswersIsNotAskedAbout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pair{serving: "a", took: map[string]time.Duration{"a": lookAfter / 2}}
		_, m := p.request(t)
		time.Sleep(10 * time.Second)
		require.Empty(t, p.asked)
		require.Empty(t, m.endpointHealth.attempts)
	})
}

// A client that has met an incarnation of the metadata follows no older one, nor another with
// the same number.
func TestAClientFollowsNoOlderIncarnation(t *testing.T) {
	m := &Conn{}
	mark := make([]byte, 16)
	mark[3] = 7
	require.NoError(t, m.follows(nil))
	require.NoError(t, m.follows(&wire.SessionReply{Incarnation: 1}))
	require.NoError(t, m.follows(&wire.SessionReply{Incarnation: 3, Mark: mark}))
	require.NoError(t, m.follows(&wire.SessionReply{Incarnation: 3, Mark: mark}))
	require.NoError(t, m.follows(&wire.SessionReply{}), "it names no incarnation")
	for _, old := range []*wire.SessionReply{{Incarnation: 1}, {Incarnation: 2, Mark: mark}, {Incarnation: 3}} {
		err := m.follows(old)
		require.ErrorIs(t, err, moraine.Unavailable)
		require.True(t, retry.IsTransient(err), "the client asks another server")
	}
}
