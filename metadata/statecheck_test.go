package metadata_test

import (
	"bytes"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// rottenStore is a store in which one bit of a value is flipped while it is armed.
type rottenStore struct {
	metadata.Store
	armed *atomic.Bool
}

type rottenReader struct {
	kvtx.Reader
	has []byte // the value has this
}

func (s rottenStore) View(fn func(kvtx.Reader, uint64) error) error {
	return s.Store.View(func(r kvtx.Reader, applied uint64) error {
		if s.armed.Load() {
			r = rottenReader{r, []byte("user.rotten")}
		}
		return fn(r, applied)
	})
}

func (r rottenReader) Scan(lo, hi []byte, fn func(key, value []byte) bool) error {
	return r.Reader.Scan(lo, hi, func(key, value []byte) bool {
		if bytes.Contains(key, r.has) {
			value = slices.Clone(value)
			value[len(value)-1] ^= 1
		}
		return fn(key, value)
	})
}

// The leader checks its state periodically. The result is unknown before the first check. The next
// check finds a bit that flipped without a write. The server still reports a finding when it leads
// again.
func TestTheLeaderChecksItsState(t *testing.T) {
	var armed atomic.Bool
	bubbleWith(t, func(cfg *metadata.Config, deps *metadata.Deps) {
		cfg.CheckEvery = time.Hour
		open := deps.NewStore
		deps.NewStore = func(fsm metadata.FSM) (metadata.Store, error) {
			s, err := open(fsm)
			return rottenStore{s, &armed}, err
		}
	}, func(c *cluster) {
		c.pass(2 * time.Second)
		first := c.cluster().Check
		require.True(t, first.Enabled && first.Done)
		require.Zero(t, first.Problems)
		k := c.open(peer(transport.RoleClient, "c1"))
		_, err := k.do(&wire.MetaRequest{Op: &wire.MetaRequest_SetXattr{SetXattr: &wire.SetXattr{Inode: root, Name: "user.rotten", Value: []byte("value")}}})
		require.NoError(t, err)
		armed.Store(true)
		require.Zero(t, c.cluster().Check.Problems, "nobody has looked since")
		c.pass(61 * time.Minute)
		found := c.cluster().Check
		require.NotZero(t, found.Problems)
		require.Contains(t, found.Found[0], "running sum")
		require.Less(t, found.AgeMillis, uint64(5*60_000))
		c.elect("m2")
		c.elect("m1")
		require.NotZero(t, c.cluster().Check.Problems)
		armed.Store(false)
		c.pass(61 * time.Minute)
		require.Zero(t, c.cluster().Check.Problems)
	})
}
