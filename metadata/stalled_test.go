package metadata_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/metadata"
)

// stalledStore is a store whose node waits for its disk while it is armed: it confirms nothing, and
// says why.
type stalledStore struct {
	metadata.Store
	armed *atomic.Bool
}

func (s stalledStore) Healthy() error {
	if s.armed.Load() {
		return errors.New("the disk of the log hangs")
	}
	return s.Store.Healthy()
}

func (s stalledStore) ReadBarrier(ctx context.Context) error {
	if s.armed.Load() {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	return s.Store.ReadBarrier(ctx)
}

// A server that waits for its disk, and that no other can replace, answers status requests and
// reports the wait.
func TestAServerThatWaitsForItsDiskSaysSo(t *testing.T) {
	var armed atomic.Bool
	bubbleWith(t, func(_ *metadata.Config, deps *metadata.Deps) {
		open := deps.NewStore
		deps.NewStore = func(fsm metadata.FSM) (metadata.Store, error) {
			s, err := open(fsm)
			return stalledStore{s, &armed}, err
		}
	}, func(c *cluster) {
		c.pass(2 * time.Second)
		for _, m := range c.cluster().Metadata {
			require.Empty(t, m.Stalled)
		}
		armed.Store(true)
		found := ""
		for _, m := range c.cluster().Metadata {
			found += m.Stalled
		}
		require.Equal(t, "the disk of the log hangs", found, "of the leader")
		armed.Store(false)
		for _, m := range c.cluster().Metadata {
			require.Empty(t, m.Stalled)
		}
	})
}
