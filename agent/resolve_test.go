package agent_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// TestATrainerSelectsAStep: through the protocol a trainer opens the latest step at a level, with a tag,
// that is healthy, or before another one. A step whose index is damaged is skipped only on request.
func TestATrainerSelectsAStep(t *testing.T) {
	n := newNode(t, 64<<20)
	var damaged atomic.Uint64 // the directory of a step
	n.wrap = func(d transport.Dialer) transport.Dialer {
		return incluster.Through(d, func(ctx context.Context, m transport.Metadata, req *wire.MetaRequest) (*wire.MetaResponse, error) {
			if l := req.GetLookup(); l != nil && l.Name == ckpt.IndexName && l.Parent == damaged.Load() {
				return nil, &moraine.Error{Op: "lookup", Kind: moraine.Corrupt, Err: errors.New("damaged by the test")}
			}
			return m.Do(ctx, req)
		})
	}
	n.start(time.Minute)
	tr := n.trainer("one", 0, 1)
	for step := uint64(1); step <= 4; step++ {
		_, err := tr.save(step, 0).Wait(t.Context(), moraine.NVMe)
		require.NoError(t, err)
	}
	_, err := tr.run.Mark(t.Context(), ckpt.StepRef{Attempt: 1, Step: 1}, ckpt.MarkHealthy, "")
	require.NoError(t, err)
	tag := "best"
	_, err = ckpt.ChangeStep(t.Context(), tr.c.Client, key(tr.run, 2), ckpt.StepChange{AddTags: []string{tag}})
	require.NoError(t, err)
	p := n.peer(runPath, "one", 1)
	resolve := func(req agentproto.Resolve) (*agentproto.ResolveReply, error) {
		reply, _, err := p.conn.Exchange(t.Context(), &agentproto.Request{Resolve: &req})
		if err != nil {
			return nil, err
		}
		return reply.Resolve, nil
	}
	requireStep := func(want uint64, req agentproto.Resolve) *agentproto.ResolveReply {
		t.Helper()
		got, err := resolve(req)
		require.NoError(t, err)
		require.Equal(t, want, got.Step)
		return got
	}
	requireStep(4, agentproto.Resolve{})
	requireStep(4, agentproto.Resolve{Level: "memory"})
	requireStep(1, agentproto.Resolve{Healthy: true})
	requireStep(2, agentproto.Resolve{Tag: tag})
	last := requireStep(3, agentproto.Resolve{Before: &agentproto.StepRef{Attempt: 1, Step: 4}})
	require.Empty(t, last.Skipped)
	_, err = resolve(agentproto.Resolve{Level: "object"})
	require.ErrorIs(t, err, moraine.NotFound)
	_, err = resolve(agentproto.Resolve{Level: "attic"})
	require.ErrorIs(t, err, moraine.InvalidArgument)

	info, err := tr.run.Latest(t.Context(), moraine.NVMe)
	require.NoError(t, err)
	damaged.Store(uint64(info.Dir))
	_, err = resolve(agentproto.Resolve{})
	require.ErrorIs(t, err, moraine.Corrupt)
	got := requireStep(3, agentproto.Resolve{Fallback: true})
	require.Len(t, got.Skipped, 1)
	require.Equal(t, uint64(4), got.Skipped[0].Step)
	require.Contains(t, got.Skipped[0].Error.Text, "damaged by the test")
	_, err = resolve(agentproto.Resolve{Fallback: true, Fix: true})
	require.ErrorIs(t, err, moraine.InvalidArgument)
}

// TestAFetchUsesItsSlotAgain: the slot of a fetch is used again if the trainer has read its bytes and it is
// large enough. Otherwise nobody writes to it.
func TestAFetchUsesItsSlotAgain(t *testing.T) {
	n := newNode(t, 64<<20)
	n.start(time.Minute)
	p := n.peer(runPath, "one", 1)
	p.sealBytes(1, data(1, 0))
	require.NoError(t, n.wait(1))
	require.NoError(t, p.ask(&agentproto.Request{Resolve: &agentproto.Resolve{}}))
	fetch := func(offset, bytes int64, reuse bool) string {
		t.Helper()
		reply, files, err := p.conn.Exchange(t.Context(), &agentproto.Request{Fetch: &agentproto.Fetch{Bytes: bytes, Reuse: reuse,
			Slices: []agentproto.Slice{{Name: "w0", Offset: []int64{offset}, Shape: []int64{1000}, At: 64, Bytes: 1000}}}})
		require.NoError(t, err)
		got := make([]byte, 1000)
		_, err = files[0].ReadAt(got, 64)
		require.NoError(t, err)
		require.Equal(t, data(1, 0)[offset:offset+1000], got)
		require.NoError(t, files[0].Close())
		return reply.Fetch.Slot
	}
	err := p.ask(&agentproto.Request{Fetch: &agentproto.Fetch{Bytes: 65 << 20}})
	require.ErrorIs(t, err, moraine.NoSpace)
	require.ErrorContains(t, err, "agent.Fetch: ")
	require.ErrorContains(t, err, "read_into")
	first := fetch(0, 4096, true)
	used := n.used()
	require.Equal(t, first, fetch(1000, 4096, true))
	require.Equal(t, used, n.used())
	second := fetch(2000, 4096, false)
	require.NotEqual(t, first, second)
	require.NotEqual(t, second, fetch(3000, 8<<20, true), "it is too small")
}
