package metadata_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/metadata/raftstore"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/memnet"
)

// otherLeader is an FSM that finds, in every tick, the sum of a leader whose
// state is another than its own.
type otherLeader struct{ metadata.FSM }

func (f otherLeader) ApplyEntry(kv state.KV, index uint64, entry []byte) (any, error) {
	commands, err := state.DecodeEntry(entry)
	if err != nil {
		return nil, err
	}
	var raw [][]byte
	for _, c := range commands {
		if m := c.GetTick().GetCompare(); m != nil {
			m.Sum_0++
		}
		p, err := proto.Marshal(c)
		if err != nil {
			return nil, err
		}
		raw = append(raw, p)
	}
	return f.FSM.ApplyEntry(kv, index, state.EncodeEntry(raw))
}

// A server whose state is not that of the leader ends, and says what to do.
func TestAServerThatDiffersEnds(t *testing.T) {
	c := &raftCluster{t: t, net: memnet.New(1), names: []string{"m1"}}
	fs := vfs.NewMem(1)
	c.disks = func(string) (vfs.FS, string) { return fs, "/node" }
	require.NoError(t, raftstore.Bootstrap(c.raftConfig("m1"), raftstore.Deps{FS: fs}))
	node, err := c.net.Listen("m1", memnet.Options{Role: transport.RoleMetadata, Cluster: clusterUUID, Handler: &handlerOf{}})
	require.NoError(t, err)
	defer node.Close()
	log := slog.New(slog.DiscardHandler)
	over := metadata.OverRaft(c.raftConfig("m1"), raftstore.Deps{FS: fs, Log: log, Stream: raftStream{node.RaftListener(), node}})
	s, err := metadata.New(metadata.Config{Node: "m1", Cluster: clusterUUID, Peers: []metadata.Peer{{ID: "m1", Addresses: []string{memnet.Address("m1")}}}},
		metadata.Deps{Log: log, NewStore: func(f metadata.FSM) (metadata.Store, error) { return over(otherLeader{f}) }})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err = s.Run(ctx)
	require.ErrorIs(t, err, moraine.Corrupt)
	require.ErrorContains(t, err, "differs from that of the leader m1")
}
