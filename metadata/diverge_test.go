package metadata_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
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
	"github.com/morainefs/moraine/transport/wire"
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

// bitFlipper is an FSM that flips one bit of a value in its state, once it is armed,
// as memory that fails does: nothing that it goes through sums it.
type bitFlipper struct {
	metadata.FSM
	in      []byte // the value has this
	armed   *atomic.Bool
	flipped *atomic.Bool
}

func (f bitFlipper) ApplyEntry(kv state.KV, index uint64, entry []byte) (any, error) {
	if f.armed.Load() && !f.flipped.Load() {
		var key, value []byte
		// Among the inodes of partition 0: an answer that a session keeps is in no sum.
		err := kv.Scan([]byte{0, 0, 0x10}, []byte{0, 0, 0x11}, func(k, v []byte) bool {
			if i := bytes.Index(v, f.in); i >= 0 {
				key, value = bytes.Clone(k), bytes.Clone(v)
				value[i] ^= 1
			}
			return key == nil
		})
		if err != nil {
			return nil, err
		}
		if key != nil {
			if err := kv.Set(key, value); err != nil {
				return nil, err
			}
			f.flipped.Store(true)
		}
	}
	return f.FSM.ApplyEntry(kv, index, entry)
}

// One bit changes in the state of one of three servers, where no checksum of a disk or
// of an entry sees it. When the value is next written the sums of the servers tell, and
// that one ends; the others go on.
func TestABitThatChangesInOneStateEndsItsServer(t *testing.T) {
	target := strings.Repeat("where it was ", 20)
	armed, flipped := map[string]*atomic.Bool{}, new(atomic.Bool)
	c := &raftCluster{t: t, net: memnet.New(1), servers: map[string]*metadata.Server{}, stops: map[string]func(){}, ends: map[string]chan error{}}
	mem := map[string]vfs.FS{}
	for i, name := range []string{"m1", "m2", "m3"} {
		c.names = append(c.names, name)
		mem[name], armed[name], c.ends[name] = vfs.NewMem(uint64(i)), new(atomic.Bool), make(chan error, 1)
	}
	c.disks = func(name string) (vfs.FS, string) { return mem[name], "/node" }
	c.wrap = func(name string, fsm metadata.FSM) metadata.FSM {
		return bitFlipper{fsm, []byte(target), armed[name], flipped}
	}
	for _, name := range c.names {
		require.NoError(t, raftstore.Bootstrap(c.raftConfig(name), raftstore.Deps{FS: mem[name]}))
	}
	for _, name := range c.names {
		c.start(name)
		t.Cleanup(func() { c.stop(name) })
	}
	leader := c.leader()
	user := c.caller("c1")
	user.open()
	_, err := user.mutate(&wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{
		Parent: root, Name: "link", Type: wire.FileType_FILE_TYPE_SYMLINK, Mode: 0o777, Target: target}}})
	require.NoError(t, err)

	victim := c.names[0]
	if victim == leader {
		victim = c.names[1]
	}
	armed[victim].Store(true)
	require.Eventually(t, flipped.Load, 30*time.Second, time.Millisecond) // with a tick
	_, err = user.mutate(&wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: root, Name: "link"}}})
	require.NoError(t, err)
	select {
	case err = <-c.ends[victim]:
	case <-time.After(30 * time.Second):
		t.Fatalf("%s goes on", victim)
	}
	require.ErrorIs(t, err, moraine.Corrupt)
	require.ErrorContains(t, err, "differs from that of the leader "+leader)
	_, err = user.mutate(mkdir(root, "after"))
	require.NoError(t, err)
}
