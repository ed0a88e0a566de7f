// Package exactness_test makes each step of the protocols between a client and the
// metadata service fail in each way: the window of answers, sessions, and grants.
// Each test is a table of steps and faults. Each row says the expected result, over
// a cluster of incluster: real servers, logs and disks, on a clock that costs no
// time.
//
// One path through it: inRow starts a cluster for a row. The client's requests pass
// a strike, which applies the row's fault to the first request of its step. The
// row's script runs and checks the result. At the end the state of every server is
// checked for consistency.
package exactness_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// sessionTimeout is that of the clusters.
const sessionTimeout = 6 * time.Second

// fault is what happens to one request, whose answer is always lost.
type fault struct {
	name string
	sent bool // it arrives and takes effect
	// how is the fault: before the request is sent or, if sent is set, after it was
	// answered.
	how func(r *row)
	// sleeps: the client sleeps past its session. It sends an unsent request when
	// it is awake.
	sleeps bool
}

func powerCut(r *row) { r.down(r.c.PowerCut, "m1", "m2", "m3") }

// leaderDies kills the leader; it stays down until the row ends.
func leaderDies(r *row) { r.c.Kill(r.leader()) }

var faults = []fault{
	{name: "it fails"},
	{name: "it is done and its reply is lost", sent: true},
	{name: "all servers lose their power before it", how: powerCut},
	{name: "it is done and all servers lose their power", sent: true, how: powerCut},
	{name: "the leader dies before it", how: leaderDies},
	{name: "it is done and the leader dies", sent: true, how: leaderDies},
	{name: "the client sleeps past its session before it", sleeps: true},
	{name: "it is done and the client sleeps past its session", sent: true, sleeps: true},
}

// row is one run of a script: a cluster, and a client whose requests a fault hits.
type row struct {
	t     *testing.T
	ctx   context.Context
	c     *incluster.Cluster
	nap   incluster.Nap
	fault fault
	step  func(*wire.MetaRequest) bool

	mu    sync.Mutex
	armed bool
	hit   bool
}

// inRow runs script with a cluster. Once arm is called, the fault hits a request of
// the step.
func inRow(t *testing.T, name string, f fault, step func(*wire.MetaRequest) bool, script func(*row)) {
	t.Helper()
	t.Run(name+", "+f.name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
			defer cancel()
			c, err := incluster.Start(ctx, incluster.Options{Seed: 1, Chunkservers: 3, SessionTimeout: sessionTimeout, MemTableBytes: 4 << 20})
			require.NoError(t, err)
			defer func() { require.NoError(t, c.Stop()) }()
			require.NoError(t, c.WaitReady(ctx))
			r := &row{t: t, ctx: ctx, c: c, fault: f, step: step}
			script(r)
			require.True(t, r.hit, "nothing was struck")
			require.NoError(t, c.Restart())
			require.NoError(t, c.WaitReady(ctx))
			time.Sleep(5 * time.Second) // for late messages, and for servers that lag behind
			require.NoError(t, c.Check())
		})
	})
}

// open connects the row's client.
func (r *row) open() *incluster.Client {
	r.t.Helper()
	cfg := client.Config{AttemptTimeout: time.Second, Patience: 40 * time.Second}
	cl, err := r.c.ClientOver(r.ctx, "c", cfg, func(d transport.Dialer) transport.Dialer {
		return incluster.Through(d, r.strike)
	})
	require.NoError(r.t, err)
	return cl
}

// other connects a client without faults.
func (r *row) other() *incluster.Client {
	r.t.Helper()
	cl, err := r.c.Admin(r.ctx, "other")
	require.NoError(r.t, err)
	return cl
}

func (r *row) arm() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.armed = true
}

// strike is the layer that all of the client's requests pass.
func (r *row) strike(ctx context.Context, m transport.Metadata, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	r.mu.Lock()
	struck := r.armed && !r.hit && r.step(req)
	r.hit = r.hit || struck
	r.mu.Unlock()
	if !struck {
		return r.nap.Over(incluster.Plain)(ctx, m, req)
	}
	if r.fault.sent {
		resp, err := m.Do(ctx, req)
		if errors.Is(err, moraine.NotLeader) { // it is retried
			r.mu.Lock()
			defer r.mu.Unlock()
			r.hit = false
			return resp, err
		}
		if err != nil {
			r.t.Errorf("what was to be done failed: %v", err)
		}
	}
	if r.fault.how != nil {
		r.fault.how(r)
	}
	if r.fault.sleeps {
		r.nap.Begin()
		time.Sleep(sessionTimeout + 3*time.Second)
		r.nap.End()
		if !r.fault.sent { // it was in transit for long
			late, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			return m.Do(late, req)
		}
	}
	return nil, errLost
}

var errLost = &moraine.Error{Op: "test", Kind: moraine.Unavailable, Err: errors.New("lost")}

// down stops servers and starts them again.
func (r *row) down(how func(...string), ids ...string) {
	how(ids...)
	if err := r.c.Restart(ids...); err != nil {
		r.t.Errorf("restart: %v", err)
	}
}

func (r *row) leader() string {
	for {
		if id := r.c.Leader(); id != "" {
			return id
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// is is a step: requests of one kind, given by a value's type.
func is[Op any](req *wire.MetaRequest) bool {
	_, ok := req.GetOp().(Op)
	return ok
}

// names lists the root, as another client sees it.
func (r *row) names(by *incluster.Client) (names []string) {
	r.t.Helper()
	for e, err := range by.ReadDir(r.ctx, "/") {
		require.NoError(r.t, err)
		names = append(names, e.Name)
	}
	return names
}

func bytesOf(seed uint64, n int) []byte {
	rng := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// content reads a file, as another client sees it.
func (r *row) content(by *incluster.Client, path string) []byte {
	r.t.Helper()
	f, err := by.OpenFile(r.ctx, path)
	require.NoError(r.t, err)
	defer f.Close()
	b := make([]byte, f.Size())
	require.NoError(r.t, f.ReadRange(r.ctx, b, 0))
	return b
}

func nameOf(i int) string { return fmt.Sprintf("f%04d", i) }
