package raftstore_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata/raftstore"
	"github.com/morainefs/moraine/metadata/state/kvtx"
)

var cluster = moraine.UUID{1, 2, 3}

// kvFSM is a small state machine: "set k v" stores, "add k" increments a number and returns it,
// "fail" fails like an unknown command.
type kvFSM struct{}

func (kvFSM) ApplyEntry(kv kvtx.KV, index uint64, entry []byte) (any, error) {
	f := strings.Fields(string(entry))
	switch f[0] {
	case "set":
		return index, kv.Set([]byte(f[1]), []byte(f[2]))
	case "add":
		old, _, err := kv.Get([]byte(f[1]))
		if err != nil {
			return nil, err
		}
		n := uint64(1)
		if old != nil {
			n += binary.BigEndian.Uint64(old)
		}
		return n, kv.Set([]byte(f[1]), binary.BigEndian.AppendUint64(nil, n))
	}
	return nil, fmt.Errorf("unknown command %q", f[0])
}

// incarnationIn and incarnationAfter read "set incarnation N".
func incarnationIn(r kvtx.Reader) (moraine.Incarnation, error) {
	value, found, err := r.Get([]byte("incarnation"))
	if err != nil || !found {
		return 0, err
	}
	n, err := strconv.Atoi(string(value))
	return moraine.Incarnation(n), err
}

func incarnationAfter(entry []byte, before moraine.Incarnation) moraine.Incarnation {
	f := strings.Fields(string(entry))
	if len(f) < 3 || f[0] != "set" || f[1] != "incarnation" {
		return before
	}
	n, _ := strconv.Atoi(f[2])
	return max(before, moraine.Incarnation(n))
}

// network joins the nodes of a test by their names.
type network struct {
	mu        sync.Mutex
	listeners map[string]*listener
	links     map[*link]bool
	held      map[[2]string]bool // direction whose bytes do not arrive
	cut       map[[2]string]bool // pairs of nodes without any connection
}

func newNetwork() *network {
	return &network{
		listeners: map[string]*listener{}, links: map[*link]bool{},
		held: map[[2]string]bool{}, cut: map[[2]string]bool{},
	}
}

// hold stops or resumes the bytes from one node to another.
func (n *network) hold(from, to string, on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.held[[2]string{from, to}] = on
	for l := range n.links {
		if l.from == from && l.to == to {
			l.hold(on)
		}
	}
}

// isolate disconnects node from all others, or reconnects it.
func (n *network) isolate(node string, on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for other := range n.listeners {
		n.cut[[2]string{node, other}], n.cut[[2]string{other, node}] = on, on
	}
	for l := range n.links {
		if on && (l.from == node || l.to == node) {
			l.close()
			delete(n.links, l)
		}
	}
}

func (n *network) node(name string) raftstore.Stream {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := &listener{net: n, name: name, conns: make(chan net.Conn), done: make(chan struct{})}
	n.listeners[name] = l
	return l
}

type listener struct {
	net   *network
	name  string
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error   { l.once.Do(func() { close(l.done) }); return nil }
func (l *listener) Addr() net.Addr { return addr(l.name) }

func (l *listener) Dial(address string, timeout time.Duration) (net.Conn, error) {
	n := l.net
	n.mu.Lock()
	peer := n.listeners[address]
	if peer == nil || n.cut[[2]string{l.name, address}] {
		n.mu.Unlock()
		return nil, errors.New("unreachable")
	}
	there := newLink(l.name, address, n.held[[2]string{l.name, address}])
	back := newLink(address, l.name, n.held[[2]string{address, l.name}])
	n.links[there], n.links[back] = true, true
	n.mu.Unlock()
	select {
	case peer.conns <- &conn{in: there, out: back}:
		return &conn{in: back, out: there}, nil
	case <-peer.done:
	case <-time.After(timeout):
	}
	return nil, errors.New("refused")
}

type addr string

func (a addr) Network() string { return "test" }
func (a addr) String() string  { return string(a) }

// link carries the bytes of one connection in one direction.
type link struct {
	from, to string
	mu       sync.Mutex
	changed  *sync.Cond
	buf      []byte
	held     bool
	closed   bool
	deadline time.Time
	timer    *time.Timer
}

func newLink(from, to string, held bool) *link {
	l := &link{from: from, to: to, held: held}
	l.changed = sync.NewCond(&l.mu)
	return l
}

func (l *link) set(fn func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fn()
	l.changed.Broadcast()
}

func (l *link) hold(on bool) { l.set(func() { l.held = on }) }
func (l *link) close() {
	l.set(func() {
		l.closed = true
		if l.timer != nil {
			l.timer.Stop()
		}
	})
}

func (l *link) setDeadline(t time.Time) {
	l.set(func() {
		l.deadline = t
		if l.timer != nil {
			l.timer.Stop()
		}
		if !t.IsZero() {
			l.timer = time.AfterFunc(time.Until(t), func() { l.set(func() {}) })
		}
	})
}

func (l *link) read(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		if !l.held && len(l.buf) > 0 {
			n := copy(p, l.buf)
			l.buf = l.buf[n:]
			l.changed.Broadcast()
			return n, nil
		}
		if l.closed {
			return 0, io.EOF
		}
		if !l.deadline.IsZero() && !time.Now().Before(l.deadline) {
			return 0, os.ErrDeadlineExceeded
		}
		l.changed.Wait()
	}
}

func (l *link) write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.buf) > 4<<20 && !l.closed {
		l.changed.Wait()
	}
	if l.closed {
		return 0, io.ErrClosedPipe
	}
	l.buf = append(l.buf, p...)
	l.changed.Broadcast()
	return len(p), nil
}

type conn struct{ in, out *link }

func (c *conn) Read(p []byte) (int, error)  { return c.in.read(p) }
func (c *conn) Write(p []byte) (int, error) { return c.out.write(p) }
func (c *conn) Close() error                { c.in.close(); c.out.close(); return nil }
func (c *conn) LocalAddr() net.Addr         { return addr(c.in.to) }
func (c *conn) RemoteAddr() net.Addr        { return addr(c.in.from) }

func (c *conn) SetDeadline(t time.Time) error      { c.in.setDeadline(t); return nil }
func (c *conn) SetReadDeadline(t time.Time) error  { c.in.setDeadline(t); return nil }
func (c *conn) SetWriteDeadline(t time.Time) error { return nil }

// node is one running Store.
type node struct {
	t     testing.TB
	name  string
	store *raftstore.Store
	stop  context.CancelFunc
	ended chan error
	trues chan struct{} // gets one each time the node begins to serve
}

// group is a cluster of a test.
type group struct {
	t     testing.TB
	net   *network
	names []string
	fs    map[string]vfs.FS
	nodes map[string]*node
	tune  func(name string, cfg *raftstore.Config)
	fsm   raftstore.FSM
	said  *said // the log of all nodes, from warnings on; nil: it is not kept
}

// said is a log that is kept.
type said struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

func newGroup(t testing.TB, size int, tune func(name string, cfg *raftstore.Config)) *group {
	g := &group{t: t, net: newNetwork(), fs: map[string]vfs.FS{}, nodes: map[string]*node{}, tune: tune, fsm: kvFSM{}}
	for i := range size {
		name := fmt.Sprint("m", i+1)
		g.names = append(g.names, name)
		g.fs[name] = vfs.NewMem(uint64(i))
	}
	t.Cleanup(g.stopAll)
	return g
}

func (g *group) config(name string) raftstore.Config {
	cfg := raftstore.Config{
		Dir: "/node", Cluster: cluster, Node: name,
		HeartbeatTimeout: 150 * time.Millisecond,
		CommitTimeout:    10 * time.Millisecond,
		RPCTimeout:       2 * time.Second,
		SegmentBytes:     64 << 10,
		MemTableBytes:    256 << 10, CacheBytes: 1 << 20,
		LogStall:     20 * time.Second, // a busy machine must not fail a test
		BallastBytes: -1,
	}
	if len(g.names) == 1 {
		cfg.HeartbeatTimeout = 10 * time.Millisecond
	}
	for _, n := range g.names {
		cfg.Peers = append(cfg.Peers, raftstore.Peer{ID: n, Address: n, Client: []string{n + ":7000", n + ":7001"}})
	}
	if g.tune != nil {
		g.tune(name, &cfg)
	}
	return cfg
}

func (g *group) deps(name string) raftstore.Deps {
	level := slog.LevelError
	if testing.Verbose() && os.Getenv("RAFTSTORE_LOG") != "" {
		level = slog.LevelDebug
	}
	var to io.Writer = os.Stderr
	if g.said != nil {
		to, level = g.said, slog.LevelWarn
	}
	return raftstore.Deps{
		FS: g.fs[name], FSM: g.fsm,
		Incarnation: incarnationIn, IncarnationAfter: incarnationAfter,
		Log: slog.New(slog.NewTextHandler(to, &slog.HandlerOptions{Level: level})).With("node", name),
	}
}

func (g *group) bootstrap() {
	g.t.Helper()
	for _, name := range g.names {
		require.NoError(g.t, raftstore.Bootstrap(g.config(name), g.deps(name)))
	}
}

// start begins to run a node, and does not wait.
func (g *group) start(name string) *node {
	g.t.Helper()
	deps := g.deps(name)
	deps.Stream = g.net.node(name)
	store, err := raftstore.New(g.config(name), deps)
	require.NoError(g.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	n := &node{t: g.t, name: name, store: store, stop: cancel, ended: make(chan error, 1), trues: make(chan struct{}, 1000)}
	go func() {
		for {
			select {
			case leads := <-store.LeadershipChanges():
				if leads {
					n.trues <- struct{}{}
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	go func() { n.ended <- store.Run(ctx) }()
	g.nodes[name] = n
	return n
}

func (g *group) startAll() {
	for _, name := range g.names {
		g.start(name)
	}
}

// halt stops a node and returns what Run returned.
func (g *group) halt(name string) error {
	n := g.nodes[name]
	if n == nil {
		return nil
	}
	delete(g.nodes, name)
	n.stop()
	select {
	case err := <-n.ended:
		return err
	case <-time.After(30 * time.Second):
		stacks := make([]byte, 1<<20)
		panic("node " + name + " does not stop\n" + string(stacks[:runtime.Stack(stacks, true)]))
	}
}

func (g *group) stopAll() {
	for _, name := range g.names {
		g.halt(name)
	}
}

// cutPower ends the running nodes, and keeps only the synced content of their disks.
func (g *group) cutPower() {
	for i, name := range g.names {
		if g.nodes[name] == nil {
			continue
		}
		left := g.fs[name].(*vfs.Mem).Crash(rand.New(rand.NewPCG(uint64(i), 1)))
		g.halt(name)
		g.fs[name] = left
	}
}

// leader waits until a node of those given (all, if none) serves.
func (g *group) leader(among ...string) *node {
	g.t.Helper()
	if len(among) == 0 {
		among = g.names
	}
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		for _, name := range among {
			if n := g.nodes[name]; n != nil {
				if _, leads := n.store.Leader(); leads {
					return n
				}
			}
		}
	}
	g.t.Fatal("nobody leads")
	return nil
}

func ctxFor(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	context.AfterFunc(ctx, cancel)
	return ctx
}

// propose has an entry applied, whichever node leads.
func (g *group) propose(entry string) any {
	g.t.Helper()
	return g.proposeAmong(nil, entry)
}

// proposeAmong is propose with a leader of those given.
func (g *group) proposeAmong(names []string, entry string) any {
	g.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		result, err := g.leader(names...).store.Propose(ctxFor(5*time.Second), []byte(entry))
		if err == nil {
			return result
		}
	}
	g.t.Fatalf("%q was not applied", entry)
	return nil
}

// get reads a key of n's own state.
func (n *node) get(key string) string {
	n.t.Helper()
	var out string
	require.NoError(n.t, n.store.View(func(r kvtx.Reader, _ uint64) error {
		value, _, err := r.Get([]byte(key))
		out = string(value)
		return err
	}))
	return out
}

// eventually waits for cond.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if cond() {
			return
		}
	}
	t.Fatal("never: " + what)
}
