package transport_test

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/leakcheck"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// leakWait limits a request that waits for an event, such as watch.
	leakWait = 100 * time.Millisecond
	// leakCrowd is how many of those wait concurrently.
	leakCrowd = 50
	// leakGroup is how many requests the short form sends between two looks at what is
	// kept: a look costs more than a request.
	leakGroup = 25
	// leakSlack is how many goroutines, connections and descriptors come and go by
	// themselves. It is less than a third of the number of times that each request is sent.
	leakSlack = 4
)

// answer sends a request and waits for its answer, at most for leakWait.
func (s *leakServers) answer(q *leakRequest) { _ = s.call(q, leakWait) } // any outcome is allowed

// cancel cancels a running request.
func (s *leakServers) cancel(q *leakRequest) { _ = s.call(q, s.chance(time.Millisecond)) }

func (s *leakServers) call(q *leakRequest, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	call := &transport.Call{Kind: q.kind, Class: q.class, Message: q.message, Dst: make([]byte, q.reply)}
	if q.payload != nil {
		call.Payload = [][]byte{q.payload}
	}
	_, err := s.callers[q.kind == transport.KindMeta].Call(ctx, call)
	return err
}

// chance is a random number below n.
func (s *leakServers) chance(n time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Duration(s.random.Int64N(int64(n)))
}

// dial opens a connection of its own, and returns the bytes of a request without
// its payload.
func (s *leakServers) dial(q *leakRequest) (nc *net.TCPConn, frame []byte) {
	c, err := net.Dial("tcp", s.addrs[q.kind == transport.KindMeta])
	require.NoError(s.t, err)
	nc = c.(*net.TCPConn)
	_, err = transport.RawHello(nc, &wire.Hello{MinVersion: 1, MaxVersion: 1, Class: uint32(q.class),
		Role: string(transport.RoleChunkserver), Node: "n8", Scope: "/"})
	require.NoError(s.t, err)
	return nc, transport.EncodeFrame(transport.Header{Class: q.class, Kind: q.kind, ID: 1, PayloadLen: uint32(len(q.payload))}, q.message)
}

// abort sends a request with a part of its payload, and closes the connection.
func (s *leakServers) abort(q *leakRequest) {
	nc, frame := s.dial(q)
	defer nc.Close() //nolint:errcheck // a failed close loses nothing
	_, _ = nc.Write(append(frame, q.payload[:s.chance(time.Duration(len(q.payload)+1))]...))
}

// half sends a part of a request's frame, and closes the connection.
func (s *leakServers) half(q *leakRequest) {
	nc, frame := s.dial(q)
	defer nc.Close() //nolint:errcheck // a failed close loses nothing
	_, _ = nc.Write(frame[:s.chance(time.Duration(len(frame)))])
}

// leave closes the connection when the answer has begun. An answer longer than the
// sockets' buffers is then in flight.
func (s *leakServers) leave(q *leakRequest) {
	nc, frame := s.dial(q)
	defer nc.Close() //nolint:errcheck // a failed close loses nothing
	_ = nc.SetReadBuffer(4096)
	_ = nc.SetReadDeadline(time.Now().Add(leakWait))
	_, _ = nc.Write(append(frame, q.payload...))
	_, _ = nc.Read(make([]byte, 1))
}

// serverKept is what requests could leave behind.
type serverKept struct {
	inFlight, connections, panics float64
	// use is what the servers report of themselves.
	use map[string]int64
	leakcheck.Kept
}

// idleWorkers wait for the next request; a server keeps at most 128.
var idleWorkers = []string{"transport.(*workers).work", "!transport.(*request).serve", "!transport.(*serverConn).readLoop"}

func (s *leakServers) kept() serverKept {
	k := serverKept{use: s.cluster.InUse("m1"), Kept: leakcheck.Now(idleWorkers)}
	maps.Copy(k.use, s.cluster.InUse("n1"))
	families, err := s.reg.Gather()
	require.NoError(s.t, err)
	for _, f := range families {
		for _, m := range f.Metric {
			switch f.GetName() {
			case "moraine_transport_in_flight_requests":
				k.inFlight += m.GetGauge().GetValue()
			case "moraine_transport_connections":
				k.connections += m.GetGauge().GetValue()
			case "moraine_transport_handler_panics_total":
				k.panics += m.GetCounter().GetValue()
			}
		}
	}
	return k
}

// A request leaves no goroutine, descriptor, slot, memory, or entry of a server's
// table or queue behind, however it ends: answered, cancelled by its caller, or
// with its connection, which breaks in the middle of the request, of its payload or
// of the answer. The requests are generated from the proto and from the kinds that
// a server decodes, so that a new one is always covered. No handler panics.
func TestNoRequestKeepsAnything(t *testing.T) {
	s := startLeakServers(t)
	requests := s.requests()
	require.Greater(t, len(requests), 300)
	for _, q := range requests {
		if q.ok {
			require.NoError(t, s.call(&q, time.Minute), q.name)
		}
	}
	for outcome, end := range map[string]func(*leakRequest){
		"answer": s.answer, "cancel": s.cancel, "abort": s.abort, "half": s.half, "leave": s.leave} {
		t.Run(outcome, func(t *testing.T) {
			s.t = t
			began, calls := time.Now(), 0
			for group := range slices.Chunk(requests, testseed.Of(leakGroup, 1)) {
				calls += s.run(group, outcome, end)
			}
			t.Logf("%d calls of %d requests took %v", calls, len(requests), time.Since(began).Round(time.Millisecond))
		})
	}
	require.NoError(t, s.cluster.Err())
}

// run ends each request of a group in one way, repeatedly, and then looks at what is kept.
func (s *leakServers) run(group []leakRequest, outcome string, end func(*leakRequest)) (calls int) {
	began, crowds := time.Now(), make([]int, len(group))
	for i := range group {
		crowds[i] = s.crowdOf(&group[i], end)
	}
	before := s.kept()
	for i := range group {
		calls += s.times(&group[i])
		s.crowd(&group[i], end, s.times(&group[i]), crowds[i])
	}
	what := fmt.Sprintf("%d requests, from %s to %s, that end by %s", calls, group[0].name, group[len(group)-1].name, outcome)
	s.requireKept(before, what)
	if testing.Verbose() { // a long run that is cut off says what it has done
		s.t.Logf("%s took %v", what, time.Since(began).Round(time.Millisecond))
	}
	return calls
}

// times is how often a request is sent.
func (s *leakServers) times(q *leakRequest) int {
	n := testseed.Runs(s.t, 15, 10_000)
	if q.heavy {
		n = min(n, max(10, n/10))
	}
	return n
}

// crowdOf sends a request, so that one-time allocations happen here, and returns how many of it
// are sent at a time: requests that wait are sent many at a time, so that each is sent as often.
func (s *leakServers) crowdOf(q *leakRequest, end func(*leakRequest)) int {
	began := time.Now()
	end(q)
	if time.Since(began) <= leakWait/2 {
		return 1
	}
	crowd := min(leakCrowd, s.times(q))
	s.crowd(q, end, crowd, crowd) // each of them may allocate once, too
	return crowd
}

func (s *leakServers) crowd(q *leakRequest, end func(*leakRequest), times, crowd int) {
	var callers sync.WaitGroup
	defer callers.Wait()
	for n := range crowd {
		callers.Go(func() {
			for i := n; i < times; i += crowd {
				end(q)
			}
		})
	}
}

// caches keep the most recent reads, within limits of their own.
var caches = []string{"chunks kept in memory", "memory of chunks kept", "pieces kept", "memory of pieces kept", "leases recalled lately"}

// grown returns which of the servers' own numbers have grown.
func (k serverKept) grown(before serverKept) (names []string) {
	for name, n := range k.use {
		if n > before.use[name] && !slices.Contains(caches, name) {
			names = append(names, fmt.Sprintf("%s: %d, then %d", name, before.use[name], n))
		}
	}
	return names
}

// requireKept waits until nothing is kept that was not kept before. Some goroutines
// come and go by themselves.
func (s *leakServers) requireKept(before serverKept, what string) {
	s.t.Helper()
	var now serverKept
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		now = s.kept()
		require.Zero(s.t, now.panics, what)
		if now.inFlight == 0 && len(now.grown(before)) == 0 && now.connections <= before.connections+leakSlack &&
			now.Descriptors <= before.Descriptors+leakSlack && now.Count() <= before.Count()+leakSlack {
			return
		}
	}
	s.t.Fatalf("%s keep something: %v requests in flight, %v; %v and %v connections, %d and %d descriptors, %d and %d goroutines:\n%s", what, now.inFlight,
		now.grown(before), before.connections, now.connections, before.Descriptors, now.Descriptors, before.Count(), now.Count(), now.Grown(before.Kept))
}
