package metadata_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/metadata/raftstore"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/memnet"
	"github.com/morainefs/moraine/transport/wire"
)

// raftCluster is some metadata servers over real logs, on a network in memory.
type raftCluster struct {
	t       testing.TB
	net     *memnet.Net
	names   []string
	disks   func(name string) (fs vfs.FS, dir string)
	servers map[string]*metadata.Server
	stops   map[string]func()
	joins   map[string]bool       // servers to be added
	ends    map[string]chan error // servers whose Run may fail, and its error
	// wrap adds a layer between a server's log and state machine; nil: none.
	wrap func(name string, fsm metadata.FSM) metadata.FSM
	// patience is how long followers wait for their leader; 0: 300 ms, so that elections are fast.
	patience time.Duration
	// secrets is where a server keeps the cluster's secret; nil: in its memory.
	secrets map[string]metadata.Secrets
}

// steady is a patience that a loaded machine does not exceed: the first leader leads to the end, if
// a test needs that.
const steady = 3 * time.Second

type raftStream struct {
	net.Listener
	node *memnet.Node
}

func (s raftStream) Dial(addr string, timeout time.Duration) (net.Conn, error) {
	return s.node.DialRaft(addr, timeout)
}

func newRaftCluster(t testing.TB, size int) *raftCluster {
	mem := map[string]vfs.FS{}
	for i := range size {
		mem[fmt.Sprintf("m%d", i+1)] = vfs.NewMem(uint64(i))
	}
	return newRaftClusterOn(t, size, func(name string) (vfs.FS, string) { return mem[name], "/node" })
}

func newRaftClusterOn(t testing.TB, size int, disks func(string) (vfs.FS, string)) *raftCluster {
	return newPatientRaftCluster(t, size, 0, disks)
}

func newPatientRaftCluster(t testing.TB, size int, patience time.Duration, disks func(string) (vfs.FS, string)) *raftCluster {
	return newSecretRaftCluster(t, size, patience, nil, disks)
}

func newSecretRaftCluster(t testing.TB, size int, patience time.Duration, secrets map[string]metadata.Secrets, disks func(string) (vfs.FS, string)) *raftCluster {
	c := &raftCluster{t: t, net: memnet.New(1), patience: patience, secrets: secrets, disks: disks, servers: map[string]*metadata.Server{}, stops: map[string]func(){},
		joins: map[string]bool{}, ends: map[string]chan error{}}
	for i := range size {
		c.names = append(c.names, fmt.Sprintf("m%d", i+1))
	}
	for _, name := range c.names {
		fs, _ := disks(name)
		require.NoError(t, raftstore.Bootstrap(c.raftConfig(name), raftstore.Deps{FS: fs}))
		c.start(name)
	}
	t.Cleanup(func() {
		for _, name := range c.names {
			c.stop(name)
		}
		c.net.Wait()
	})
	return c
}

func (c *raftCluster) raftConfig(name string) raftstore.Config {
	_, dir := c.disks(name)
	cfg := raftstore.Config{
		Dir: dir, Cluster: clusterUUID, Node: name, HeartbeatTimeout: cmp.Or(c.patience, 300*time.Millisecond),
		CommitTimeout: 10 * time.Millisecond, RPCTimeout: 2 * time.Second, LogStall: 20 * time.Second,
		SegmentBytes: 1 << 20, MemTableBytes: 4 << 20, CacheBytes: 8 << 20, BallastBytes: -1,
	}
	for _, n := range c.names {
		cfg.Peers = append(cfg.Peers, raftstore.Peer{ID: n, Address: memnet.Address(n), Client: []string{memnet.Address(n)}})
	}
	return cfg
}

// handlerOf breaks the circle of node, store and server.
type handlerOf struct {
	server atomic.Pointer[metadata.Server]
}

func (h *handlerOf) Serve(ctx context.Context, req *transport.Request) (*transport.Response, error) {
	s := h.server.Load()
	if s == nil {
		return nil, &moraine.Error{Op: "serve", Kind: moraine.Unavailable}
	}
	return transport.HandlerForMetadata(s).Serve(ctx, req)
}

func (c *raftCluster) start(name string) {
	c.t.Helper()
	late := &handlerOf{}
	node, err := c.net.Listen(name, memnet.Options{Role: transport.RoleMetadata, Cluster: clusterUUID, Handler: late})
	require.NoError(c.t, err)
	level := slog.LevelError
	if os.Getenv("METADATA_LOG") != "" {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})).With("node", name)
	cfg := metadata.Config{Node: name, Cluster: clusterUUID, Join: c.joins[name]}
	for _, n := range c.names {
		cfg.Peers = append(cfg.Peers, metadata.Peer{ID: n, Addresses: []string{memnet.Address(n)}})
	}
	fs, _ := c.disks(name)
	over := metadata.OverRaft(c.raftConfig(name), raftstore.Deps{FS: fs, Log: log, Stream: raftStream{node.RaftListener(), node}})
	s, err := metadata.New(cfg, metadata.Deps{Log: log, Secrets: c.secrets[name], Dial: c.net.Dialer(transport.Peer{Cluster: clusterUUID, Role: transport.RoleMetadata, Node: name}).Metadata,
		NewStore: func(fsm metadata.FSM) (metadata.Store, error) {
			if c.wrap != nil {
				fsm = c.wrap(name, fsm)
			}
			return over(fsm)
		}})
	require.NoError(c.t, err)
	late.server.Store(s)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		err := s.Run(ctx)
		if ended := c.ends[name]; ended != nil {
			ended <- err
		} else if err != nil {
			c.t.Errorf("%s: %v", name, err)
		}
	})
	c.servers[name] = s
	c.stops[name] = func() {
		cancel()
		wg.Wait()
		_ = node.Close()
		delete(c.stops, name)
	}
}

func (c *raftCluster) stop(name string) {
	if stop := c.stops[name]; stop != nil {
		stop()
	}
}

// leader waits until one of the servers leads.
func (c *raftCluster) leader() string {
	c.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for time.Now().Before(deadline) {
		for _, name := range c.names {
			if c.stops[name] != nil && c.servers[name].Status().Leading {
				return name
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
	c.t.Fatal("nobody leads")
	return ""
}

// caller repeats a request until it is answered, like a client: it follows hints to the leader, and
// tries the next server if there is none.
type caller struct {
	c       *raftCluster
	dial    transport.Dialer
	at      string
	session uint64
	number  uint64
	repeats int
}

func (c *raftCluster) caller(node string) *caller {
	return &caller{c: c, dial: c.net.Dialer(transport.Peer{Cluster: clusterUUID, Role: transport.RoleClient, Node: node}), at: c.names[0]}
}

func (k *caller) do(req *wire.MetaRequest) (*wire.MetaResponse, error) {
	deadline := time.Now().Add(30 * time.Second)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		routed(req)
		resp, err := k.dial.Metadata([]string{memnet.Address(k.at)}).Do(ctx, req)
		cancel()
		if err == nil || time.Now().After(deadline) {
			return resp, err
		}
		var hint *transport.LeaderHint
		switch kind := moraine.KindOf(err); {
		case errors.As(err, &hint):
			k.at = hint.ID
		case kind == moraine.NotLeader, kind == moraine.Unavailable, kind == moraine.Timeout:
			k.next()
		default:
			return nil, err
		}
		k.repeats++
		time.Sleep(10 * time.Millisecond)
	}
}

func (k *caller) next() {
	for i, name := range k.c.names {
		if name == k.at {
			k.at = k.c.names[(i+1)%len(k.c.names)]
			return
		}
	}
	k.at = k.c.names[0]
}

func (k *caller) open() {
	k.c.t.Helper()
	nonce := make([]byte, 16)
	copy(nonce, fmt.Sprintf("%p", k))
	resp, err := k.do(&wire.MetaRequest{Op: &wire.MetaRequest_OpenSession{OpenSession: &wire.OpenSession{Nonce: nonce}}})
	require.NoError(k.c.t, err)
	k.session = resp.GetSession().Session
}

func (k *caller) mutate(req *wire.MetaRequest) (*wire.MetaResponse, error) {
	k.number++
	req.Session, req.Number, req.AckedBelow = k.session, k.number, k.number
	return k.do(req)
}

func TestSingleNode(t *testing.T) {
	c := newRaftCluster(t, 1)
	k := c.caller("c1")
	k.open()
	resp, err := k.mutate(mkdir(root, "a"))
	require.NoError(t, err)
	made := resp.GetEntry().Attr.Inode
	c.stop("m1")
	c.start("m1")
	req := lookup("a")
	req.Session = k.session
	resp, err = k.do(req)
	require.NoError(t, err)
	require.Equal(t, made, resp.GetEntry().Attr.Inode)
	resp, err = k.do(&wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: &wire.GetCluster{}}})
	require.NoError(t, err)
	require.Len(t, resp.GetCluster().Metadata, 1)
	require.True(t, resp.GetCluster().Metadata[0].Leader)
	require.NoError(t, c.servers["m1"].Healthy())
}

// TestExactlyOnceAcrossFailovers lets several clients make directories while replies are lost and
// leaders are cut off and stopped. Each directory is made once, and each client gets the answer of
// that one time.
func TestExactlyOnceAcrossFailovers(t *testing.T) {
	c := newRaftCluster(t, 3)
	c.leader()
	for _, k := range []string{"c0", "c1", "c2", "c3"} {
		c.net.SetFaults(k, "*", memnet.Faults{LoseReply: 0.1})
		c.net.SetFaults("*", k, memnet.Faults{LoseReply: 0.1})
	}
	const each = 60
	var wg sync.WaitGroup
	halfway := make(chan struct{}, 4*each)
	repeats := make([]int, 4)
	for n := range 4 {
		wg.Go(func() {
			k := c.caller(fmt.Sprintf("c%d", n))
			k.open()
			for i := range each {
				if _, err := k.mutate(mkdir(root, fmt.Sprintf("%d-%03d", n, i))); err != nil {
					t.Errorf("client %d, directory %d: %v", n, i, err)
				}
				halfway <- struct{}{}
			}
			repeats[n] = k.repeats
		})
	}
	await := func(n int) {
		for range n {
			<-halfway
		}
	}
	await(each)
	first := c.leader()
	c.net.Isolate(first)
	await(each)
	c.net.Rejoin(first, "*")
	second := c.leader()
	c.stop(second)
	await(each)
	c.start(second)
	wg.Wait()
	require.NotZero(t, repeats[0]+repeats[1]+repeats[2]+repeats[3], "nothing was lost: the test shows nothing")

	k := c.caller("c9")
	k.open()
	req := &wire.MetaRequest{Session: k.session, Op: &wire.MetaRequest_ReadDir{ReadDir: &wire.ReadDir{Inode: root, Limit: 1000}}}
	resp, err := k.do(req)
	require.NoError(t, err)
	require.Len(t, resp.GetReadDir().Entries, 4*each)
	resp, err = k.do(&wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: &wire.GetCluster{}}})
	require.NoError(t, err)
	require.Equal(t, uint64(4*each+1), resp.GetCluster().Inodes)
}
