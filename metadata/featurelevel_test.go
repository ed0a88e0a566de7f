package metadata_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// lowLevel is the store of a cluster that a build of this release began: its feature level is this
// build's, whatever a server of a later release proposes.
type lowLevel struct {
	metadata.Store
	future *atomic.Bool // a request of a later release was proposed
}

// Propose implements metadata.Store.
func (s lowLevel) Propose(ctx context.Context, entry []byte) (any, error) {
	commands, err := state.DecodeEntry(entry)
	if err != nil {
		return nil, err
	}
	encoded := make([][]byte, len(commands))
	for i, cmd := range commands {
		if op := cmd.GetSetFeatureLevel(); op != nil {
			op.Level = min(op.Level, moraine.FeatureLevel)
		}
		if state.IsFuture(cmd.GetRequest()) {
			s.future.Store(true)
		}
		if encoded[i], err = proto.Marshal(cmd); err != nil {
			return nil, err
		}
	}
	return s.Store.Propose(ctx, state.EncodeEntry(encoded))
}

// TestNothingIsProposedBelowItsLevel sends a request of a later release to servers of that release,
// whose cluster is at this build's level. Proposing it would stop a server of this build, which may
// be a voter. The error says what to do.
func TestNothingIsProposedBelowItsLevel(t *testing.T) {
	s := lowLevel{future: &atomic.Bool{}}
	change := func(cfg *metadata.Config, deps *metadata.Deps) {
		cfg.Future = true
		open := deps.NewStore
		deps.NewStore = func(fsm metadata.FSM) (metadata.Store, error) {
			own := s
			var err error
			own.Store, err = open(fsm)
			return own, err
		}
	}
	bubbleWith(t, change, func(c *cluster) {
		admin := c.open(peer(transport.RoleAdmin, "a1"))
		req, err := state.FutureRequest(&wire.SetAttr{Inode: root, Valid: uint32(wire.SetAttrField_SET_ATTR_MTIME), Mtime: 1})
		require.NoError(t, err)
		_, err = admin.do(req)
		require.ErrorIs(t, err, moraine.Unimplemented)
		require.ErrorContains(t, err, "finish the upgrade first")
		require.False(t, s.future.Load(), "it was proposed")
		_, err = admin.do(mkdir(root, "d"))
		require.NoError(t, err)
	})
}
