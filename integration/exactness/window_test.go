package exactness_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/metadata/state/session"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/memnet"
	"github.com/morainefs/moraine/transport/wire"
)

// bySession is a session whose numbers a test chooses.
type bySession struct {
	t      *testing.T
	ctx    context.Context
	c      *incluster.Cluster
	dialer transport.Dialer
	id     uint64
	root   uint64
}

// ask sends a request to the current leader until it is answered.
func (s *bySession) ask(req *wire.MetaRequest) (*wire.MetaResponse, error) {
	for {
		ctx, cancel := context.WithTimeout(s.ctx, 2*time.Second)
		leader := s.c.Leader()
		var resp *wire.MetaResponse
		var err error = errLost
		if leader != "" {
			resp, err = s.dialer.Metadata([]string{memnet.Address(leader)}).Do(ctx, proto.Clone(req).(*wire.MetaRequest))
		}
		cancel()
		switch moraine.KindOf(err) {
		case moraine.NotLeader, moraine.Unavailable, moraine.Timeout:
			time.Sleep(20 * time.Millisecond)
			continue
		}
		return resp, err
	}
}

func (s *bySession) numbered(number, ackedBelow uint64, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	req.Session, req.Number, req.AckedBelow, req.RoutingEpoch = s.id, number, ackedBelow, 1
	return s.ask(req)
}

func openBySession(t *testing.T, ctx context.Context, c *incluster.Cluster) *bySession {
	t.Helper()
	s := &bySession{t: t, ctx: ctx, c: c, dialer: c.Dialer(transport.RoleClient, "raw")}
	resp, err := s.ask(&wire.MetaRequest{Op: &wire.MetaRequest_OpenSession{OpenSession: &wire.OpenSession{Nonce: []byte("0123456789abcdef")}}})
	require.NoError(t, err)
	s.id, s.root = resp.GetSession().GetSession(), resp.GetSession().GetRoot()
	return s
}

func (s *bySession) mkdir(name string) *wire.MetaRequest {
	return &wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{
		Parent: s.root, Name: name, Type: wire.FileType_FILE_TYPE_DIRECTORY, Mode: 0o755, Exclusive: true}}}
}

func (s *bySession) rmdir(name string) *wire.MetaRequest {
	return &wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: s.root, Name: name, Directory: true}}}
}

func (s *bySession) there(name string) bool {
	_, err := s.ask(&wire.MetaRequest{Op: &wire.MetaRequest_Lookup{Lookup: &wire.Lookup{Parent: s.root, Name: name}}})
	if !errors.Is(err, moraine.NotFound) {
		require.NoError(s.t, err)
	}
	return err == nil
}

// between is what happens between the first answers and the request of a row.
var between = []struct {
	name string
	do   func(c *incluster.Cluster)
	over bool // the session is over
}{
	{"nothing happened", func(*incluster.Cluster) {}, false},
	{"the leader died", func(c *incluster.Cluster) { c.Kill(c.Leader()) }, false},
	{"the leader was cut off and is back", func(c *incluster.Cluster) {
		old := c.Leader()
		c.Net.Isolate(old)
		for c.Leader() == old || c.Leader() == "" {
			time.Sleep(50 * time.Millisecond)
		}
		c.Net.Rejoin(old, "*")
	}, false},
	{"all servers lost their power", func(c *incluster.Cluster) {
		c.PowerCut()
		if err := c.Restart(); err != nil {
			panic(err)
		}
	}, false},
	{"the client slept past its session", func(*incluster.Cluster) { time.Sleep(sessionTimeout + 3*time.Second) }, true},
}

// asked are requests after which numbers 2, 3, 5 and 6 of a session have answers, 1
// was acknowledged, and 4 was not sent.
var asked = []struct {
	name    string
	number  uint64
	req     func(s *bySession) *wire.MetaRequest
	want    moraine.Kind // 0: success
	makes   string       // a name that exists if it took effect
	applied bool
}{
	{"a repeat of what succeeded", 3, func(s *bySession) *wire.MetaRequest { return s.rmdir("first") }, 0, "", false},
	{"a repeat of what failed, and would not now", 2, func(s *bySession) *wire.MetaRequest { return s.mkdir("first") }, moraine.Exists, "first", false},
	{"an old number", 1, func(s *bySession) *wire.MetaRequest { return s.mkdir("old") }, moraine.Stale, "old", false},
	{"a number that never arrived, below others", 4, func(s *bySession) *wire.MetaRequest { return s.mkdir("late") }, 0, "late", true},
	{"the next number", 7, func(s *bySession) *wire.MetaRequest { return s.mkdir("next") }, 0, "next", true},
	{"the last of the window", 2 + session.AnswerWindow - 1, func(s *bySession) *wire.MetaRequest { return s.mkdir("last") }, 0, "last", true},
	{"the first past the window", 2 + session.AnswerWindow, func(s *bySession) *wire.MetaRequest { return s.mkdir("past") }, moraine.Busy, "past", false},
}

// TestAnswerWindowFaults sends a request under every kind of number after
// everything that may happen in between, twice. Answered requests get the same
// answer, and old ones and those too far ahead are refused. None takes effect
// twice, and a session that is over has no effect.
func TestAnswerWindowFaults(t *testing.T) {
	runs := testseed.Sample(t, 12)
	for _, happens := range between {
		for _, a := range asked {
			if !runs() {
				continue
			}
			t.Run(a.name+" after "+happens.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
					defer cancel()
					c, err := incluster.Start(ctx, incluster.Options{Seed: 1, Chunkservers: -1, SessionTimeout: sessionTimeout, MemTableBytes: 4 << 20})
					require.NoError(t, err)
					defer func() { require.NoError(t, c.Stop()) }()
					require.NoError(t, c.WaitReady(ctx))
					s := openBySession(t, ctx, c)
					defer s.dialer.Close()
					for i, req := range []*wire.MetaRequest{s.mkdir("first"), s.mkdir("first"), s.rmdir("first"), nil, s.mkdir("fifth"), s.mkdir("sixth")} {
						if req == nil {
							continue
						}
						_, err := s.numbered(uint64(i)+1, min(uint64(i)+1, 2), req)
						require.Equal(t, i == 1, errors.Is(err, moraine.Exists), "%v", err)
					}
					happens.do(c)
					want, applied := a.want, a.applied
					if happens.over {
						want, applied = moraine.SessionExpired, false
					}
					first, err := s.numbered(a.number, 2, a.req(s))
					require.Equal(t, want, moraine.KindOf(err), "%v", err)
					again, err := s.numbered(a.number, 2, a.req(s))
					require.Equal(t, want, moraine.KindOf(err), "the second time: %v", err)
					require.True(t, proto.Equal(first.GetEntry(), again.GetEntry()), "answered %v, and then %v", first, again)
					s.id = 0 // a read needs no session
					if a.makes != "" {
						require.Equal(t, applied, s.there(a.makes), a.makes)
					}
					require.False(t, s.there("first"))
					require.True(t, s.there("fifth"))
					require.NoError(t, c.Restart())
					require.NoError(t, c.WaitReady(ctx))
					time.Sleep(2 * time.Second)
					require.NoError(t, c.Check())
				})
			})
		}
	}
}

// TestAClientKeepsToItsWindow delays the answer to one mutation while the client
// makes more of them than a window holds. Those past it wait, and none is refused.
// Each takes effect once when the answer arrives or, if it is lost with everything
// else, after a retry.
func TestAClientKeepsToItsWindow(t *testing.T) {
	for _, lost := range []bool{false, true} {
		t.Run(map[bool]string{false: "the answer is late", true: "the answer is lost, with all servers"}[lost], func(t *testing.T) {
			f := fault{name: "its answer is delayed", sent: true}
			inRow(t, "the first of many", f, is[*wire.MetaRequest_Create], func(r *row) {
				const many = session.AnswerWindow + session.AnswerWindow/4
				var done atomic.Int64
				waited := int64(0)
				r.fault.how = func(r *row) {
					time.Sleep(500 * time.Millisecond) // less than an attempt may take
					waited = done.Load()
					if lost {
						powerCut(r)
					}
				}
				cl := r.open()
				defer cl.Close()
				r.arm()
				var wg sync.WaitGroup
				for i := range many {
					wg.Go(func() {
						if _, err := cl.Inodes().Mkdir(r.ctx, cl.Root(), nameOf(i), exclusive); err != nil {
							r.t.Errorf("%d: %v", i, err)
						}
						done.Add(1)
					})
				}
				wg.Wait()
				require.Less(r.t, waited, int64(session.AnswerWindow), "mutations past an answer that had not come")
				require.Greater(r.t, waited, int64(session.AnswerWindow/2))
				other := r.other()
				defer other.Close()
				require.Len(r.t, r.names(other), many)
			})
		})
	}
}
