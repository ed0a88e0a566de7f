package exactness_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/transport/wire"
)

var exclusive = client.NodeOptions{Mode: 0o755, Exclusive: true}

// sessions is the number of sessions, without that of by.
func (r *row) sessions(by *incluster.Client) uint64 {
	r.t.Helper()
	resp, err := rawclient.Of(by).Meta(r.ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: &wire.GetCluster{}}})
	require.NoError(r.t, err)
	return resp.GetCluster().GetSessions() - 1
}

// background is the number of the cluster's own sessions.
func (r *row) background(by *incluster.Client) uint64 {
	time.Sleep(2 * time.Second)
	return r.sessions(by)
}

// TestSessionFaults makes each request about a session fail in each way. The client
// works on, under the same session or another, and no session is left behind. A
// request under an ended session takes effect once, or not at all, as the error
// says.
func TestSessionFaults(t *testing.T) {
	sample := testseed.Sample(t, 12)
	one := func(name string, f fault, step func(*wire.MetaRequest) bool, script func(*row)) {
		if sample() {
			inRow(t, name, f, step, script)
		}
	}
	for _, f := range faults {
		one("opening", f, is[*wire.MetaRequest_OpenSession], func(r *row) {
			other := r.other()
			defer other.Close()
			before := r.background(other)
			r.arm()
			cl := r.open()
			_, err := cl.Inodes().Mkdir(r.ctx, cl.Root(), "d", exclusive)
			require.NoError(r.t, err)
			time.Sleep(2 * sessionTimeout)
			require.Equal(r.t, before+1, r.sessions(other), "sessions")
			require.NoError(r.t, cl.Close())
			require.Equal(r.t, before, r.sessions(other), "sessions after it was closed")
		})
		one("renewing", f, is[*wire.MetaRequest_RenewSession], func(r *row) {
			other := r.other()
			defer other.Close()
			before := r.background(other)
			cl := r.open()
			first := cl.Session()
			r.arm()
			time.Sleep(3 * sessionTimeout)
			_, err := cl.Inodes().Mkdir(r.ctx, cl.Root(), "d", exclusive)
			require.NoError(r.t, err)
			require.Equal(r.t, !r.fault.sleeps, first == cl.Session(), "the client has the session it had")
			require.Equal(r.t, before+1, r.sessions(other), "sessions")
			require.NoError(r.t, cl.Close())
		})
		one("a mutation", f, is[*wire.MetaRequest_Create], func(r *row) {
			cl := r.open()
			defer cl.Close()
			first := cl.Session()
			r.arm()
			_, err := cl.Inodes().Mkdir(r.ctx, cl.Root(), "d", exclusive)
			if r.fault.sleeps && r.fault.sent {
				require.ErrorIs(r.t, err, moraine.SessionExpired, "nobody can say what became of it")
			} else {
				require.NoError(r.t, err)
			}
			require.Equal(r.t, !r.fault.sleeps, first == cl.Session(), "the client has the session it had")
			other := r.other()
			defer other.Close()
			require.Equal(r.t, []string{"d"}, r.names(other))
			_, err = cl.Inodes().Mkdir(r.ctx, cl.Root(), "d", exclusive)
			require.ErrorIs(r.t, err, moraine.Exists, "a new number is a new request")
		})
		one("closing", f, is[*wire.MetaRequest_CloseSession], func(r *row) {
			other := r.other()
			defer other.Close()
			before := r.background(other)
			cl := r.open()
			r.arm()
			_ = cl.Close() // it tries only for a while: an unclosed session expires
			time.Sleep(2 * sessionTimeout)
			require.Equal(r.t, before, r.sessions(other), "sessions")
		})
	}
}
