package agent_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// claims lets a test see, or change, the answers to claims, for clients that come from now on.
func (n *node) claims(do func(ctx context.Context, m transport.Metadata, req *wire.MetaRequest) (*wire.MetaResponse, error)) {
	n.wrap = func(d transport.Dialer) transport.Dialer {
		return incluster.Through(d, func(ctx context.Context, m transport.Metadata, req *wire.MetaRequest) (*wire.MetaResponse, error) {
			if req.GetClaimSlices() != nil {
				return do(ctx, m, req)
			}
			return m.Do(ctx, req)
		})
	}
}

// TestAnAgentThatEndsKeepsItsClaims: an agent ends after its part has claimed what it stores, and before the
// manifest says so. Another node has left its tensors to that part. The next agent stores them. And
// an agent that ends after it has left tensors to another rank leaves them there, though it finds nothing out any
// more.
func TestAnAgentThatEndsKeepsItsClaims(t *testing.T) {
	a, b := twoNodes(t)
	w := bytesOf("the weights of the model ", 2*mib)
	claimed := make(chan struct{})
	a.claims(func(ctx context.Context, m transport.Metadata, req *wire.MetaRequest) (*wire.MetaResponse, error) {
		if _, err := m.Do(ctx, req); err != nil {
			return nil, err
		}
		close(claimed)
		<-ctx.Done() // the agent ends before it gets the answer
		return nil, ctx.Err()
	})
	a.start(0)
	open := b.gate(nil)
	b.start(0)
	zero, one := a.trainer("one", 0, 2), b.trainer("one", 1, 2)
	defer dieAll(zero, one)
	zero.add(1, whole("model.w", w))
	<-claimed
	one.add(1, whole("model.w", w))
	b.eventually(func() bool { return count(t, b.metrics.SharedBytes) == 2*mib })
	require.ErrorIs(t, a.stop(), moraine.Incomplete)
	require.ErrorIs(t, b.stop(), moraine.Incomplete)
	require.Zero(t, count(t, a.metrics.FlushedBytes))
	open()
	a.wrap = nil
	a.start(time.Minute)
	b.claims(func(context.Context, transport.Metadata, *wire.MetaRequest) (*wire.MetaResponse, error) {
		return nil, &moraine.Error{Op: "claim slices", Kind: moraine.Unimplemented}
	})
	b.start(time.Minute)
	a.requireTensors(1, 1, map[string][]byte{"model.w": w})
	require.Zero(t, count(t, b.metrics.ClaimsFailed), "it was decided before")
}

// TestAClaimWhoseReplyIsLost: the leader ends after a claim has been applied and before it is answered. The
// next leader gives the same answer, and the slices are stored once. Ranks that get no answer store
// them all, and the step is whole.
func TestAClaimWhoseReplyIsLost(t *testing.T) {
	a, b := twoNodes(t)
	w := bytesOf("the weights of the model ", 2*mib)
	var lost sync.Once
	var fail atomic.Bool
	do := func(ctx context.Context, m transport.Metadata, req *wire.MetaRequest) (*wire.MetaResponse, error) {
		if fail.Load() {
			_, _ = m.Do(ctx, req) // applied, and never answered
			return nil, &moraine.Error{Op: "claim slices", Kind: moraine.Unimplemented}
		}
		resp, err := m.Do(ctx, req)
		lost.Do(func() {
			leader := a.c.Leader()
			a.c.Kill(leader)
			err = &moraine.Error{Op: "claim slices", Kind: moraine.Unavailable}
			if rerr := a.c.Restart(leader); rerr != nil {
				t.Error(rerr)
			}
		})
		return resp, err
	}
	a.claims(do)
	b.claims(do)
	a.start(time.Minute)
	b.start(time.Minute)
	zero, one := a.trainer("one", 0, 2), b.trainer("one", 1, 2)
	defer dieAll(zero, one)
	zero.add(1, whole("model.w", w))
	a.eventually(func() bool { return count(t, a.metrics.FlushedBytes) > 0 })
	one.add(1, whole("model.w", w))
	a.requireTensors(1, 1, map[string][]byte{"model.w": w})
	require.Zero(t, count(t, a.metrics.ClaimsFailed)+count(t, b.metrics.ClaimsFailed))

	fail.Store(true)
	zero.add(2, whole("model.w", w))
	one.add(2, whole("model.w", w))
	a.requireTensors(2, 2, map[string][]byte{"model.w": w})
	require.Equal(t, 2.0, count(t, a.metrics.ClaimsFailed)+count(t, b.metrics.ClaimsFailed))
}

// TestThePartThatWasToStoreFails: a rank leaves its tensor to another one, whose part then fails. The step
// is aborted for both, and the next one is whole.
func TestThePartThatWasToStoreFails(t *testing.T) {
	a, b := twoNodes(t)
	w := bytesOf("the weights of the model ", 2*mib)
	shared := make(chan struct{})
	a.wrap = func(d transport.Dialer) transport.Dialer {
		return incluster.Through(d, func(ctx context.Context, m transport.Metadata, req *wire.MetaRequest) (*wire.MetaResponse, error) {
			if s := req.GetSealPart(); s != nil && s.Key.Step == 1 {
				<-shared
				return nil, &moraine.Error{Op: "seal part", Kind: moraine.Internal}
			}
			return m.Do(ctx, req)
		})
	}
	a.start(time.Minute)
	b.start(time.Minute)
	zero, one := a.trainer("one", 0, 2), b.trainer("one", 1, 2)
	defer dieAll(zero, one)
	zero.add(1, whole("model.w", w))
	a.eventually(func() bool { return count(t, a.metrics.FlushedBytes) > mib })
	part := one.add(1, whole("model.w", w))
	b.eventually(func() bool { return count(t, b.metrics.SharedBytes) == 2*mib })
	close(shared)
	_, err := part.Wait(t.Context(), moraine.NVMe)
	require.ErrorIs(t, err, moraine.Aborted)
	require.ErrorContains(t, err, "rank 0")
	one.add(2, whole("model.w", w))
	zero.add(2, whole("model.w", w))
	a.requireTensors(2, 1, map[string][]byte{"model.w": w})
}

// TestAStepOfOneNodeAsksNobody: a part claims nothing if it has the only rank, if all ranks are on its
// node, or if the node has stored all of its groups. Only the first part of a node asks.
func TestAStepOfOneNodeAsksNobody(t *testing.T) {
	n := newNode(t, 64*mib)
	var asked atomic.Int32
	n.claims(func(ctx context.Context, m transport.Metadata, req *wire.MetaRequest) (*wire.MetaResponse, error) {
		asked.Add(1)
		return m.Do(ctx, req)
	})
	n.start(time.Minute)
	w := bytesOf("the weights of the model ", 2*mib)
	zero, one := n.trainer("one", 0, 2), n.trainer("one", 1, 2)
	defer dieAll(zero, one)
	zero.add(1, whole("model.w", w))
	one.add(1, whole("model.w", w))
	n.requireTensors(1, 1, map[string][]byte{"model.w": w})
	require.Zero(t, asked.Load())
	dieAll(zero, one)

	zero, one, two := n.trainer("two", 0, 3), n.trainer("two", 1, 3), n.beside()
	two.start(time.Minute)
	zero.add(2, whole("model.w", w), whole("small", w[:mib/2]))
	n.eventually(func() bool { return asked.Load() == 1 && n.written(2) > 0 })
	one.add(2, whole("model.w", w), whole("small", w[:mib/2]))
	last := two.trainer("two", 2, 3)
	last.add(2, whole("model.w", w))
	n.requireTensors(2, 1, map[string][]byte{"model.w": w, "small": w[:mib/2]})
	require.Equal(t, int32(1), asked.Load())
	dieAll(zero, one, last)
}
