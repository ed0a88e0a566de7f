package metadata_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// lowLevel is the store of a cluster created by an earlier build: its feature level is at most that
// build's.
type lowLevel struct {
	metadata.Store
	level    uint64
	mu       *sync.Mutex
	proposed map[protoreflect.FieldNumber]bool // requests
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
			op.Level = min(op.Level, s.level)
		}
		if f := wire.Op(cmd.GetRequest()); f != nil {
			s.mu.Lock()
			s.proposed[f.Number()] = true
			s.mu.Unlock()
		}
		if encoded[i], err = proto.Marshal(cmd); err != nil {
			return nil, err
		}
	}
	return s.Store.Propose(ctx, state.EncodeEntry(encoded))
}

// since is the field number at which the requests of a level begin.
var since = map[uint64]protoreflect.FieldNumber{2: 10, 3: 200, 4: 300}

// atLevel is bubble for a cluster of an earlier level.
func atLevel(t *testing.T, level uint64, fn func(c *cluster, proposed func(protoreflect.FieldNumber) bool)) {
	t.Helper()
	s := lowLevel{level: level, mu: &sync.Mutex{}, proposed: map[protoreflect.FieldNumber]bool{}}
	change := func(_ *metadata.Config, deps *metadata.Deps) {
		open := deps.NewStore
		deps.NewStore = func(fsm metadata.FSM) (metadata.Store, error) {
			own := s
			var err error
			own.Store, err = open(fsm)
			return own, err
		}
	}
	bubbleWith(t, change, func(c *cluster) {
		fn(c, func(n protoreflect.FieldNumber) bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.proposed[n]
		})
	})
}

// TestNothingIsProposedBelowItsLevel sends each request unknown to an earlier build to a cluster at
// that build's level. Proposing it would stop a server of that build, which may be a voter.
func TestNothingIsProposedBelowItsLevel(t *testing.T) {
	fields := (*wire.MetaRequest)(nil).ProtoReflect().Descriptor().Oneofs().ByName("op").Fields()
	for level := uint64(2); level < moraine.FeatureLevel; level++ { // from the first release on
		atLevel(t, level, func(c *cluster, proposed func(protoreflect.FieldNumber) bool) {
			for i := range fields.Len() {
				op := fields.Get(i)
				if op.Number() < since[level+1] {
					continue
				}
				req := &wire.MetaRequest{}
				req.ProtoReflect().Set(op, req.ProtoReflect().NewField(op))
				_, err := c.open(peer(transport.RoleAdmin, "a1")).do(req)
				if err == nil {
					t.Logf("%s is answered at level %d", op.Name(), level)
				}
				require.False(t, proposed(op.Number()), "%s was proposed at level %d", op.Name(), level)
			}
			_, err := c.open(peer(transport.RoleAdmin, "a1")).do(mkdir(root, "d"))
			require.NoError(t, err)
			require.True(t, proposed(24))
		})
	}
}

// TestARequestBelowItsLevelSaysWhatToDo checks the texts of these errors.
func TestARequestBelowItsLevelSaysWhatToDo(t *testing.T) {
	for level, requests := range map[uint64][]*wire.MetaRequest{
		2: {
			{Op: &wire.MetaRequest_SetQuota{SetQuota: &wire.SetQuota{Inode: root, Inodes: 100}}},
			{Op: &wire.MetaRequest_GetUsage{GetUsage: &wire.GetUsage{Inode: root}}}, // df sends it
			{Op: &wire.MetaRequest_Recount{Recount: &wire.Recount{}}},
			{Op: &wire.MetaRequest_CloneTree{CloneTree: &wire.CloneTree{Inode: root, Parent: root, Name: "clone"}}},
		},
		3: {
			{Op: &wire.MetaRequest_Concat{Concat: &wire.Concat{}}},
			{Op: &wire.MetaRequest_Hold{Hold: &wire.Hold{Numbers: 1}}},
			{Op: &wire.MetaRequest_EndHold{EndHold: &wire.EndHold{Directory: root}}},
			{Op: &wire.MetaRequest_Batch{Batch: &wire.Batch{Requests: []*wire.MetaRequest{mkdir(root, "d")}}}},
			{Op: &wire.MetaRequest_RaiseRouting{RaiseRouting: &wire.RaiseRouting{}}},
			{Op: &wire.MetaRequest_SetMaintenance{SetMaintenance: &wire.SetMaintenance{Host: "h", Millis: 1000}}},
			{Op: &wire.MetaRequest_SetHostState{SetHostState: &wire.SetHostState{Host: "h"}}},
			{Op: &wire.MetaRequest_SetRebalance{SetRebalance: &wire.SetRebalance{}}},
			{Op: &wire.MetaRequest_DropChunks{DropChunks: &wire.DropChunks{}}}, // fsck uses it to find out whether drops are possible
		},
	} {
		atLevel(t, level, func(c *cluster, _ func(protoreflect.FieldNumber) bool) {
			for _, req := range requests {
				_, err := c.open(peer(transport.RoleAdmin, "a1")).do(req)
				require.ErrorIs(t, err, moraine.Unimplemented, "%T at level %d", req.Op, level)
				require.ErrorContains(t, err, "finish the upgrade first", "%T at level %d", req.Op, level)
			}
		})
	}
}
