package mover_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/memcluster"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/mover"
	"github.com/morainefs/moraine/transport/wire"
)

// refusing is a client whose reads are refused, as with an expired capability, until the
// service has answered for the stripe's intent again with another one.
type refusing struct {
	*client.Client
	mover.Stripes

	mu      sync.Mutex
	again   map[uint64]bool // stripes whose intents were requested again
	refused int
	bare    int // reads without a capability
}

func (r *refusing) Meta(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	resp, err := rawclient.Of(r.Client).Meta(ctx, req)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, in := range resp.GetBeginRepair().GetIntents() {
		r.again[in.Stripe] = true
	}
	return resp, err
}

func (r *refusing) RebuildChunk(ctx context.Context, s *wire.Stripe, index int, doubtful uint32) ([]byte, uint32, func(), error) {
	r.mu.Lock()
	good := r.again[s.Id]
	if len(s.Capability) == 0 {
		r.bare++
	}
	if !good {
		r.refused++
	}
	r.mu.Unlock()
	if !good {
		return nil, 0, nil, &moraine.Error{Op: "client.RebuildChunk", Kind: moraine.PermissionDenied}
	}
	return r.Stripes.RebuildChunk(ctx, s, index, doubtful)
}

// TestARepairGetsAnotherCapability: a stripe of a long job gets its turn after the job's
// capability has expired. The mover requests the intent again, and continues; the job does not
// fail.
func TestARepairGetsAnotherCapability(t *testing.T) {
	inCluster(t, repairing, func(t *testing.T, c *memcluster.Cluster) {
		stop := startMover(t, c, "n1")
		save(t, c, "/runs/a", 1, 5, 2)
		stop()
		cl := c.Mover("n2")
		r := &refusing{Client: cl, Stripes: rawclient.Of(cl), again: map[uint64]bool{}}
		m, err := mover.New(mover.Config{}, mover.Deps{Client: cl, Service: r, Stripes: r})
		require.NoError(t, err)
		c.Run(func(ctx context.Context) error {
			defer r.Close()
			return m.Run(ctx)
		})
		askUntil(t, c, hostState("n8", wire.DeviceState_DEVICE_STATE_DRAINING))
		eventually(t, 5*time.Minute, "the host is empty", func() bool { return claimed(t, c, "n8") == 0 })
		r.mu.Lock()
		defer r.mu.Unlock()
		require.NotZero(t, r.refused)
		require.Zero(t, r.bare)
		restore(t, c, "/runs/a", 5, 1)
	})
}
