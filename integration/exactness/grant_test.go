package exactness_test

import (
	"bytes"
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

// leaked is how many unexplained bytes the devices hold.
func (r *row) leaked(by *incluster.Client) uint64 {
	r.t.Helper()
	resp, err := rawclient.Of(by).Meta(r.ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: &wire.GetCluster{}}})
	require.NoError(r.t, err)
	return resp.GetCluster().GetLeakedBytes()
}

// grantSteps are the requests about a grant, in their order.
var grantSteps = []struct {
	name string
	step func(*wire.MetaRequest) bool
}{
	{"the grant", is[*wire.MetaRequest_Grant]},
	{"the commit", is[*wire.MetaRequest_Commit]},
	{"the grant's end", is[*wire.MetaRequest_EndGrant]},
}

// idle is after how long a client returns an unused grant.
const idle = 50 * time.Second

// TestGrantFaults makes each request about a grant fail in each way, under a handle
// on a named file. The client resubmits the bytes that it still holds under a new
// grant. Bytes that were put and not committed when the session ended are lost. The
// client reports that once, the earlier contents stay, and the handle continues.
func TestGrantFaults(t *testing.T) {
	runs := testseed.Sample(t, 12)
	for _, f := range faults {
		for _, s := range grantSteps {
			if !runs() {
				continue
			}
			inRow(t, s.name, f, s.step, func(r *row) {
				cl, other := r.open(), r.other()
				defer other.Close()
				defer cl.Close()
				a, err := cl.Inodes().Create(r.ctx, cl.Root(), "f", client.NodeOptions{Mode: 0o644})
				require.NoError(r.t, err)
				h, err := cl.Inodes().OpenHandle(r.ctx, a.Inode(), client.HandleOptions{})
				require.NoError(r.t, err)
				old, next := bytesOf(1, 60_000), bytesOf(2, 60_000)
				_, err = h.WriteAt(r.ctx, old, 0)
				require.NoError(r.t, err)
				require.NoError(r.t, h.Sync(r.ctx))
				if s.name == "the grant" {
					time.Sleep(idle) // no number is left over
				}
				r.arm()
				_, err = h.WriteAt(r.ctx, next, 0)
				require.NoError(r.t, err)
				err = h.Sync(r.ctx)
				want := next
				if s.name == "the commit" && r.fault.sleeps {
					require.ErrorIs(r.t, err, moraine.IOError, "what was put and not committed is lost with the session")
					if !r.fault.sent {
						want = old
					}
				} else {
					require.NoError(r.t, err)
				}
				require.NoError(r.t, h.Sync(r.ctx), "it is said once")
				require.True(r.t, bytes.Equal(want, r.content(other, "f")), "what others read")

				last := bytesOf(3, 20_000)
				_, err = h.WriteAt(r.ctx, last, 10_000)
				require.NoError(r.t, err)
				require.NoError(r.t, h.Sync(r.ctx), "the handle goes on")
				copy(want[10_000:], last)
				require.True(r.t, bytes.Equal(want, r.content(other, "f")), "what others read at last")
				got := make([]byte, len(want))
				_, err = h.ReadAt(r.ctx, got, 0)
				require.NoError(r.t, err)
				require.True(r.t, bytes.Equal(want, got), "what the handle reads")
				require.NoError(r.t, h.Close(r.ctx))
				time.Sleep(2 * idle)
				require.Zero(r.t, r.leaked(other))
			})
		}
	}
}

// TestGrantFaultsOfANewFile is the same for a file without a name before its
// commit. It is there, whole, or it is not, and the error says so. It ends with the
// session.
func TestGrantFaultsOfANewFile(t *testing.T) {
	runs := testseed.Sample(t, 12)
	for _, f := range faults {
		for _, s := range grantSteps[:2] {
			if !runs() {
				continue
			}
			inRow(t, s.name, f, s.step, func(r *row) {
				cl, other := r.open(), r.other()
				defer other.Close()
				defer cl.Close()
				want := bytesOf(1, 500_000)
				w, err := cl.Create(r.ctx, "f", client.CreateOptions{})
				require.NoError(r.t, err)
				r.arm()
				_, err = w.Write(want)
				if err == nil {
					_, err = w.Commit(r.ctx)
				}
				there := true
				if r.fault.sleeps {
					require.ErrorIs(r.t, err, moraine.SessionExpired)
					there = s.name == "the commit" && r.fault.sent
				} else {
					require.NoError(r.t, err)
				}
				if there {
					require.True(r.t, bytes.Equal(want, r.content(other, "f")), "what others read")
				} else {
					_, err := other.Stat(r.ctx, "f")
					require.ErrorIs(r.t, err, moraine.NotFound)
				}
				time.Sleep(2 * sessionTimeout)
				resp, err := rawclient.Of(other).Meta(r.ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: &wire.GetCluster{}}})
				require.NoError(r.t, err)
				require.Equal(r.t, map[bool]uint64{false: 1, true: 2}[there], resp.GetCluster().GetInodes(), "inodes, with the root")
				require.Zero(r.t, resp.GetCluster().GetLeakedBytes())
			})
		}
	}
}
