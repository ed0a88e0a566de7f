package metadata_test

import (
	"bytes"
	"context"
	"fmt"
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
	"github.com/morainefs/moraine/metadata/state/check"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/memnet"
	"github.com/morainefs/moraine/transport/wire"
)

// otherLeader is an FSM that finds, in every tick, the sum of a leader with a different state.
type otherLeader struct{ metadata.FSM }

func (f otherLeader) ApplyEntry(kv kvtx.KV, index uint64, entry []byte) (any, error) {
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

// A server whose state differs from the leader's stops, and says what to do.
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

// bitFlipper is an FSM that flips one bit of a value in its state once it is armed, like bad
// memory: no checksum on the way covers it.
type bitFlipper struct {
	metadata.FSM
	in      []byte // part of the value
	armed   *atomic.Bool
	flipped *atomic.Bool
}

func (f bitFlipper) ApplyEntry(kv kvtx.KV, index uint64, entry []byte) (any, error) {
	if f.armed.Load() && !f.flipped.Load() {
		var key, value []byte
		// Choose among the inodes of partition 0, because kept answers are not in the sum.
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

// flippable is three servers; a test may change one bit in the state of one of them.
type flippable struct {
	*raftCluster
	mem     map[string]vfs.FS
	armed   map[string]*atomic.Bool
	flipped atomic.Bool
	user    *caller
	leads   string
	follows string // one of the followers
}

// flipTarget is the target of the link "link", the value in which a bit is flipped.
var flipTarget = strings.Repeat("where it was ", 20)

func newFlippable(t *testing.T) *flippable {
	c := &flippable{mem: map[string]vfs.FS{}, armed: map[string]*atomic.Bool{}}
	c.raftCluster = &raftCluster{t: t, net: memnet.New(1), servers: map[string]*metadata.Server{}, stops: map[string]func(){}, ends: map[string]chan error{}}
	for i, name := range []string{"m1", "m2", "m3"} {
		c.names = append(c.names, name)
		c.mem[name], c.armed[name], c.ends[name] = vfs.NewMem(uint64(i)), new(atomic.Bool), make(chan error, 1)
	}
	c.disks = func(name string) (vfs.FS, string) { return c.mem[name], "/node" }
	c.wrap = func(name string, fsm metadata.FSM) metadata.FSM {
		return bitFlipper{fsm, []byte(flipTarget), c.armed[name], &c.flipped}
	}
	for _, name := range c.names {
		require.NoError(t, raftstore.Bootstrap(c.raftConfig(name), raftstore.Deps{FS: c.mem[name]}))
	}
	for _, name := range c.names {
		c.start(name)
		t.Cleanup(func() { c.stop(name) })
	}
	c.leads = c.leader()
	if c.follows = c.names[0]; c.follows == c.leads {
		c.follows = c.names[1]
	}
	c.user = c.caller("c1")
	c.user.open()
	_, err := c.user.mutate(&wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{
		Parent: root, Name: "link", Type: wire.FileType_FILE_TYPE_SYMLINK, Mode: 0o777, Target: flipTarget}}})
	require.NoError(t, err)
	return c
}

// flip flips a bit in the state of a server.
func (c *flippable) flip(name string) {
	c.t.Helper()
	c.armed[name].Store(true)
	require.Eventually(c.t, c.flipped.Load, 30*time.Second, time.Millisecond) // with a tick
}

// backup reads a backup from the leader and returns the leader's name.
func (c *flippable) backup() (backup *bytes.Reader, of string) {
	c.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		of = c.leader()
		p, err := c.backupFrom(of)
		if err == nil {
			return bytes.NewReader(p), of
		}
		require.True(c.t, time.Now().Before(deadline), "%v", err) // possibly another server leads by now
	}
}

func (c *flippable) backupFrom(name string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), 10*time.Second)
	defer cancel()
	service := c.net.Dialer(transport.Peer{Cluster: clusterUUID, Role: transport.RoleAdmin, Node: "ops"}).Metadata([]string{memnet.Address(name)})
	var out bytes.Buffer
	var w *raftstore.BackupWriter
	for ask := (&wire.ReadBackup{}); ; {
		resp, err := service.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ReadBackup{ReadBackup: ask}})
		if err != nil {
			return nil, err
		}
		r := resp.GetReadBackup()
		if w == nil {
			info := raftstore.BackupInfo{Cluster: clusterUUID, Incarnation: r.Incarnation, Applied: r.Applied, Term: r.Term, Taken: time.Now(), Bytes: int64(r.Size)}
			if w, err = raftstore.NewBackupWriter(&out, info); err != nil {
				return nil, err
			}
		}
		if len(r.Data) == 0 {
			err := w.Close()
			return out.Bytes(), err
		}
		if _, err = w.Write(r.Data); err != nil {
			return nil, err
		}
		ask = &wire.ReadBackup{Backup: r.Backup, Offset: ask.Offset + uint64(len(r.Data))}
	}
}

// One bit flips in the state of one of three servers, where no checksum of a disk or entry covers
// it. When the value is next written, the servers' sums differ and that server stops; the others
// continue.
func TestABitThatChangesInOneStateEndsItsServer(t *testing.T) {
	c := newFlippable(t)
	c.flip(c.follows)
	_, err := c.user.mutate(&wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: root, Name: "link"}}})
	require.NoError(t, err)
	select {
	case err = <-c.ends[c.follows]:
	case <-time.After(30 * time.Second):
		t.Fatalf("%s goes on", c.follows)
	}
	require.ErrorIs(t, err, moraine.Corrupt)
	require.ErrorContains(t, err, "differs from that of the leader "+c.leads)
	_, err = c.user.mutate(mkdir(root, "after"))
	require.NoError(t, err)
}

// problems returns the findings of a check of a state.
func problems(t *testing.T, inspect func(func(kvtx.Reader, uint64) error) error) (found []string) {
	t.Helper()
	require.NoError(t, inspect(func(r kvtx.Reader, _ uint64) (err error) {
		found, err = check.Check(state.New(0).View(r))
		return err
	}))
	return found
}

// One bit flips in a value that is never written again. The servers' sums follow writes and do not
// show it. A check that reads everything finds it: the leader's in a backup, another server's in
// its directory once it is stopped.
func TestABitThatChangedIsFoundByACheck(t *testing.T) {
	for _, victim := range []string{"leader", "follower"} {
		t.Run(victim, func(t *testing.T) {
			c := newFlippable(t)
			inBackup := func(dir string) (found []string, of string) {
				b, of := c.backup()
				return problems(t, func(fn func(kvtx.Reader, uint64) error) error {
					return raftstore.InspectBackup(vfs.NewMem(9), dir, b, b.Size(), fn)
				}), of
			}
			found, _ := inBackup("/before")
			require.Empty(t, found)
			ill := c.leads
			if victim == "follower" {
				ill = c.follows
			}
			c.flip(ill)
			for n := range 20 { // values written meanwhile are compared, and are right
				_, err := c.user.mutate(mkdir(root, fmt.Sprintf("d%d", n)))
				require.NoError(t, err)
			}
			time.Sleep(3 * time.Second) // some ticks, of a second
			for _, name := range c.names {
				require.Empty(t, c.ends[name], "%s has ended, and nothing tells it from the others yet", name)
			}
			found, of := inBackup("/after")
			if of != ill {
				require.Empty(t, found, "a backup is of the leader's state")
				c.stop(ill)
				found = problems(t, func(fn func(kvtx.Reader, uint64) error) error {
					return raftstore.InspectState(c.mem[ill], "/node", fn)
				})
			}
			require.Len(t, found, 1)
			require.Contains(t, found[0], "the running sum is")
		})
	}
}
