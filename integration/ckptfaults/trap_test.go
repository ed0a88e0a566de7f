package ckptfaults_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// trap stops one request to the metadata service on its way, so that a fault happens at that moment. The
// requests of trainers, agents and chunkservers pass it.
type trap struct {
	mu  sync.Mutex
	set *caught // nil: no request is stopped
	// holder is the node whose part was the first to claim slices since holds was called.
	holder string

	// mute makes the service answer no claim, though it applies them.
	mute atomic.Bool
	// greedy is that of the mutant.
	greedy bool
}

// caught is a request that a trap waits for, or has stopped.
type caught struct {
	fits func(from string, req *wire.MetaRequest) bool
	// applied lets the service apply the request before it is stopped. lost drops the answer then.
	applied, lost bool

	hit  chan string   // gets the sender
	pass chan struct{} // closed when the request may go on
	once sync.Once
}

// catch waits for a request; at most one at a time.
func (t *trap) catch(c *caught) *caught {
	c.hit, c.pass = make(chan string, 1), make(chan struct{})
	t.mu.Lock()
	defer t.mu.Unlock()
	t.set = c
	return c
}

// trapWait bounds how long a fault waits for its request.
const trapWait = 40 * time.Second

// wait returns the sender of the request, once it is stopped.
func (c *caught) wait(ctx context.Context) (from string, err error) {
	select {
	case from = <-c.hit:
		return from, nil
	case <-ctx.Done():
		return "", ctx.Err()
	case <-time.After(trapWait):
		return "", errors.New("nobody sends the request for which the fault waits")
	}
}

// release lets the request go on.
func (c *caught) release() { c.once.Do(func() { close(c.pass) }) }

// end stops no more requests.
func (t *trap) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.set != nil {
		t.set.release()
		t.set = nil
	}
}

// take returns what waits for a request; nil: nothing does.
func (t *trap) take(from string, req *wire.MetaRequest) *caught {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.set
	if c == nil || !c.fits(from, req) {
		return nil
	}
	t.set = nil
	return c
}

// requests is the layer that the requests of a client pass.
func (t *trap) requests(from string) incluster.Requests {
	return func(ctx context.Context, m transport.Metadata, req *wire.MetaRequest) (*wire.MetaResponse, error) {
		return t.do(ctx, from, m, req)
	}
}

// chunkserver is an Option of the cluster.
func (t *trap) chunkserver(node string, m transport.Metadata) transport.Metadata {
	return trapped{m, node, t}
}

// trapped is the metadata service for a chunkserver.
type trapped struct {
	transport.Metadata
	node string
	trap *trap
}

// Do implements transport.Metadata.
func (m trapped) Do(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	return m.trap.do(ctx, m.node, m.Metadata, req)
}

func (t *trap) do(ctx context.Context, from string, m transport.Metadata, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	c := t.take(from, req)
	if c == nil {
		return t.send(ctx, from, m, req)
	}
	var resp *wire.MetaResponse
	if c.applied {
		var err error
		if resp, err = t.send(ctx, from, m, req); err != nil {
			t.mu.Lock()
			t.set = c // its sender repeats it
			t.mu.Unlock()
			return nil, err
		}
	}
	c.hit <- from
	select {
	case <-c.pass:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	switch {
	case !c.applied:
		return t.send(ctx, from, m, req)
	case c.lost:
		return nil, &moraine.Error{Op: "lost answer", Kind: moraine.Unavailable}
	}
	return resp, nil
}

// send sends a request, and notes who claims slices.
func (t *trap) send(ctx context.Context, from string, m transport.Metadata, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	resp, err := m.Do(ctx, req)
	claim := req.GetClaimSlices()
	if claim == nil || err != nil {
		return resp, err
	}
	if t.mute.Load() {
		return nil, &moraine.Error{Op: "no answer to a claim", Kind: moraine.Unimplemented} // it is not repeated
	}
	if t.greedy {
		for i := range resp.GetClaims().GetRanks() {
			resp.Result.(*wire.MetaResponse_Claims).Claims.Ranks[i] = claim.GetRank()
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, rank := range resp.GetClaims().GetRanks() {
		if rank == claim.GetRank() && t.holder == "" {
			t.holder = from
		}
	}
	return resp, nil
}

// claims fits the claim of a part, seals the seal of a part on the node that has claimed.
func claims(_ string, req *wire.MetaRequest) bool { return req.GetClaimSlices() != nil }

// seals fits the seal of a part on the node that has claimed. The trap calls it under its mutex.
func (t *trap) seals(from string, req *wire.MetaRequest) bool {
	return req.GetSealPart() != nil && from == t.holder
}

// forgetHolder is called before a save whose holder matters.
func (t *trap) forgetHolder() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.holder = ""
}
