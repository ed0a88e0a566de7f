package metadata_test

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/metadatatest"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/session"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// lostEntries are the ways in which an entry and its answer can be separated.
var lostEntries = []struct {
	name   string
	faults metadatatest.Faults
	// elect is the next leader; "" for the same server.
	elect string
	// effect says whether the entry takes effect.
	effect bool
}{
	{name: "it fails", faults: metadatatest.Faults{Refuse: 1}},
	{name: "its answer is lost", faults: metadatatest.Faults{LoseReplies: 1}, effect: true},
	{name: "it takes effect after it failed", faults: metadatatest.Faults{Late: 1}, effect: true},
	{name: "its answer is lost with the leader", faults: metadatatest.Faults{LoseReplies: 1}, elect: "m2", effect: true},
	{name: "it fails, and the leader falls", faults: metadatatest.Faults{Refuse: 1}, elect: "m2"},
}

// afterLost runs fn for each way in which an entry can be lost. lose sends the request whose entry
// is lost; the request must fail.
func afterLost(t *testing.T, fn func(c *cluster, effect bool, lose func(request func() error))) {
	for _, row := range lostEntries {
		t.Run(row.name, func(t *testing.T) {
			bubble(t, nil, func(c *cluster) {
				fn(c, row.effect, func(request func() error) {
					c.group.Fail(row.faults)
					require.ErrorIs(t, request(), moraine.Unavailable)
					if row.elect != "" {
						c.elect(row.elect)
					}
				})
			})
		})
	}
}

// sessionsOf returns the number of sessions in the state and in the leader's memory.
func (c *cluster) sessionsOf() (recorded, live int) {
	c.group.View(func(r kvtx.Reader) {
		require.NoError(c.t, session.Sessions(state.New(0).View(r), func(*record.Session) error { recorded++; return nil }))
	})
	return recorded, c.leader().Status().Sessions
}

// A client that died while it opened a session leaves one that nobody knows. It must expire like
// any other.
func TestSessionWhoseOpeningWasLostExpires(t *testing.T) {
	afterLost(t, func(c *cluster, effect bool, lose func(func() error)) {
		open := &wire.MetaRequest{Op: &wire.MetaRequest_OpenSession{OpenSession: &wire.OpenSession{Nonce: make([]byte, 16)}}}
		lose(func() error { _, err := c.do(peer(transport.RoleClient, "c1"), open); return err })
		want := 0
		if effect {
			want = 1
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		recorded, live := c.sessionsOf()
		require.Equal(c.t, want, recorded)
		require.Equal(c.t, want, live, "the leader knows every session that there is")
		time.Sleep(70 * time.Second)
		synctest.Wait()
		recorded, live = c.sessionsOf()
		require.Zero(c.t, recorded)
		require.Zero(c.t, live)
	})
}

// The same client, alive, retries and works under the session that it opened.
func TestSessionWhoseOpeningWasLostIsFoundAgain(t *testing.T) {
	afterLost(t, func(c *cluster, _ bool, lose func(func() error)) {
		p := peer(transport.RoleClient, "c1")
		open := &wire.MetaRequest{Op: &wire.MetaRequest_OpenSession{OpenSession: &wire.OpenSession{Nonce: make([]byte, 16)}}}
		lose(func() error { _, err := c.do(p, open); return err })
		resp, err := c.do(p, open)
		require.NoError(c.t, err)
		k := &client{c: c, peer: p, session: resp.GetSession().Session}
		require.NoError(c.t, k.renew())
		_, err = k.do(mkdir(root, "a"))
		require.NoError(c.t, err)
		recorded, _ := c.sessionsOf()
		require.Equal(c.t, 1, recorded)
	})
}

// A mover whose answer was lost retries under the same number and gets the jobs that are leased to
// it, even if no other job is ready.
func TestLeaseWhoseAnswerWasLostIsFoundAgain(t *testing.T) {
	afterLost(t, func(c *cluster, _ bool, lose func(func() error)) {
		nodes := c.fleet(7)
		k := c.open(peer(transport.RoleClient, "c1"))
		_, err := k.c.verified(badChunk(k.write("f", nil), 0))
		require.NoError(c.t, err)
		c.pass(3*time.Second, nodes...)

		mover := c.open(peer(transport.RoleChunkserver, nodes[0].id))
		lease := &wire.MetaRequest{Op: &wire.MetaRequest_LeaseJobs{LeaseJobs: &wire.LeaseJobs{
			Kinds: []wire.JobKind{wire.JobKind_JOB_KIND_REPAIR}, Max: 1, WaitMillis: 5_000}}}
		lose(func() error { _, err := mover.do(lease); return err })
		resp, err := c.do(mover.peer, lease)
		require.NoError(c.t, err)
		require.Len(c.t, resp.GetJobs().GetJobs(), 1)
		_, err = mover.do(finish(resp.GetJobs().Jobs[0]))
		require.NoError(c.t, err)
	})
}

// A host whose registration was lost is known to the leader at once if the entry took effect,
// otherwise when it registers again.
func TestHostWhoseRegistrationWasLost(t *testing.T) {
	afterLost(t, func(c *cluster, effect bool, lose func(func() error)) {
		register := &wire.MetaRequest{Op: &wire.MetaRequest_RegisterHost{RegisterHost: &wire.RegisterHost{Host: &wire.Host{
			Id: "n1", Addresses: []string{"n1:7000"}, Devices: []*wire.Device{{Uuid: bytes.Repeat([]byte{1}, 16), Capacity: 1 << 40}}}}}}
		n1 := peer(transport.RoleChunkserver, "n1")
		lose(func() error { _, err := c.do(n1, register); return err })
		time.Sleep(5 * time.Second)
		synctest.Wait()
		hosts := func() int {
			resp, err := c.do(n1, &wire.MetaRequest{Op: &wire.MetaRequest_GetTopology{GetTopology: &wire.GetTopology{}}})
			require.NoError(c.t, err)
			return len(resp.GetTopology().GetHosts())
		}
		if effect {
			require.Equal(c.t, 1, hosts())
		}
		_, err := c.do(n1, register)
		require.NoError(c.t, err)
		require.Equal(c.t, 1, hosts())
	})
}

// A client that waits for a checkpoint learns of its end long before its wait is over, even if the
// answer to the final entry was lost.
func TestWaiterOfAStepWhoseEndWasLost(t *testing.T) {
	afterLost(t, func(c *cluster, effect bool, lose func(func() error)) {
		k := c.open(peer(transport.RoleClient, "c1"))
		key := k.beginStep(k.openRun("r"), 0, 2, time.Hour)
		waited := make(chan wire.StepState, 1)
		waiter := c.open(peer(transport.RoleClient, "c2"))
		go func() {
			for {
				resp, err := waiter.ask(&wire.MetaRequest{Op: &wire.MetaRequest_GetStep{
					GetStep: &wire.GetStep{Key: key, WaitMillis: 20_000}}})
				if err == nil { // it asks the next leader after a failover
					waited <- resp.GetStep().GetStep().GetState()
					return
				}
			}
		}()
		synctest.Wait()
		lose(func() error {
			_, err := k.do(&wire.MetaRequest{Op: &wire.MetaRequest_AbortStep{AbortStep: &wire.AbortStep{Key: key, Reason: "broken"}}})
			return err
		})
		if !effect {
			require.Equal(c.t, wire.StepState_STEP_STATE_OPEN, <-waited)
			return
		}
		began := time.Now()
		require.Equal(c.t, wire.StepState_STEP_STATE_ABORTED, <-waited)
		require.Less(c.t, time.Since(began), 5*time.Second)
	})
}

// Each entry of a delegation may be lost. The session repeats the request under the same number: its
// effect happens once, and whoever waits for the directory goes on.
func TestLostEntriesOfADelegation(t *testing.T) {
	steps := map[string]func(o *owner) *wire.MetaRequest{
		"delegate": func(o *owner) *wire.MetaRequest {
			return &wire.MetaRequest{LeaseEpoch: o.epoch, Op: &wire.MetaRequest_Delegate{Delegate: &wire.Delegate{Inode: o.dir, Numbers: 10}}}
		},
		"batch": func(o *owner) *wire.MetaRequest {
			req := batch(o.file("x"), &wire.BatchOp{Op: &wire.BatchOp_Rename{Rename: &wire.Rename{Parent: o.dir, Name: "x", NewParent: o.dir, NewName: "y"}}})
			req.LeaseEpoch = o.epoch
			return req
		},
		"end": func(o *owner) *wire.MetaRequest {
			return &wire.MetaRequest{Op: &wire.MetaRequest_EndDelegation{EndDelegation: &wire.EndDelegation{Inodes: []uint64{o.dir}}}}
		},
	}
	for name, step := range steps {
		t.Run(name, func(t *testing.T) {
			afterLost(t, func(c *cluster, _ bool, lose func(func() error)) {
				o, other := c.owner("a"), c.open(peer(transport.RoleClient, "b"))
				req := step(o)
				lose(func() error { _, err := o.do(req); return err })
				time.Sleep(5 * time.Second) // the leader may have changed, and its successor waits for leases
				require.NoError(t, o.renew())
				o.begin(0)
				resp, err := c.do(o.peer, req)
				require.NoError(t, err)
				if name == "batch" {
					require.Equal(t, []string{"ok", "ok"}, outcomes(resp.GetBatch()))
				}
				answered := other.later(create(o.dir, "z"))
				if name != "end" {
					requireWaits(t, answered, "a request that meets the delegation")
					require.Equal(t, []uint64{o.dir}, o.wanted())
					o.end(o.dir)
				}
				requireAnswered(t, answered, "the request")
				list, err := o.ask(&wire.MetaRequest{Op: &wire.MetaRequest_ReadDir{ReadDir: &wire.ReadDir{Inode: o.dir}}})
				require.NoError(t, err)
				want := 1
				if name == "batch" {
					want = 2
				}
				require.Len(t, list.GetReadDir().Entries, want)
			})
		})
	}
}

// The entry that revokes a delegation may be lost. Whoever waits proposes it again.
func TestALostRevocationIsRepeated(t *testing.T) {
	for _, row := range lostEntries {
		if row.elect != "" {
			continue
		}
		t.Run(row.name, func(t *testing.T) {
			bubble(t, nil, func(c *cluster) {
				o, other := c.owner("a"), c.open(peer(transport.RoleClient, "b"))
				answered := other.later(create(o.dir, "f"))
				time.Sleep(3950 * time.Millisecond)
				requireWaits(t, answered, "a request before the revocation")
				c.group.Fail(row.faults)
				time.Sleep(100 * time.Millisecond)
				if is, err := answered(); is && err != nil {
					require.ErrorIs(t, err, moraine.Unavailable)
					other.number--
					answered = other.later(create(o.dir, "f"))
				}
				time.Sleep(5 * time.Second)
				requireAnswered(t, answered, "the request")
			})
		})
	}
}
