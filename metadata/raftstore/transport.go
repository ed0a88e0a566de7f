package raftstore

import (
	"cmp"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// transport is raft's own transport over Deps.Stream. It also records what the read barrier needs:
// which voter acknowledged a message, its term, and the tick at or after which it was sent.
type transport struct {
	*raft.NetworkTransport
	local raft.ServerAddress
	conns *connTable
	acks  *ackTable
	votes voting
	once  sync.Once
}

var (
	_ raft.Transport   = (*transport)(nil)
	_ raft.WithPreVote = (*transport)(nil)
	_ raft.WithClose   = (*transport)(nil)
)

// newTransport starts to accept connections. book has the members' addresses.
// silent and leader concern this node as a follower. silent says that it has
// long received nothing from its leader; leader is the one that it follows (""
// for none).
func newTransport(cfg *Config, deps *Deps, book addressBook, silent *atomic.Bool,
	leader func() raft.ServerAddress, greet *greeter) *transport {
	self, _ := cfg.peer(cfg.Node)
	conns := &connTable{Stream: deps.Stream, greet: greet, open: map[net.Conn]bool{}}
	t := &transport{
		NetworkTransport: raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
			Stream:                conns,
			MaxPool:               4, // pipeline, heartbeats, read rounds, votes
			Timeout:               cfg.RPCTimeout,
			ServerAddressProvider: book,
			Logger:                newHCLog(deps.Log.With("part", "raft-net")),
		}),
		local: raft.ServerAddress(self.Address),
		conns: conns,
		acks:  newAckTable(deps.Clock.Now),
		votes: voting{out: make(chan raft.RPC), silent: silent, leader: leader, closed: make(chan struct{})},
	}
	go t.votes.forward(t.NetworkTransport.Consumer()) // until Close
	return t
}

// Consumer implements raft.Transport.
func (t *transport) Consumer() <-chan raft.RPC { return t.votes.out }

// LocalAddr implements raft.Transport. It is the address that peers use, not the listener's,
// because nodes compare it.
func (t *transport) LocalAddr() raft.ServerAddress { return t.local }

// AppendEntries implements raft.Transport, for heartbeats and single messages. Pipelined messages
// need not be recorded.
func (t *transport) AppendEntries(id raft.ServerID, target raft.ServerAddress,
	args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	tick := t.acks.now()
	if err := t.NetworkTransport.AppendEntries(id, target, args, resp); err != nil {
		return err
	}
	t.acks.note(id, args.Term, tick, resp)
	return nil
}

// Close implements raft.WithClose. It closes every connection, also those that other nodes opened.
func (t *transport) Close() error {
	t.once.Do(func() { close(t.votes.closed) })
	err := t.NetworkTransport.Close()
	t.NetworkTransport.CloseStreams()
	t.conns.closeAll()
	return err
}

// addressBook is group.serverAddr as a raft.ServerAddressProvider.
type addressBook func(id raft.ServerID) (raft.ServerAddress, error)

// ServerAddr implements raft.ServerAddressProvider.
func (b addressBook) ServerAddr(id raft.ServerID) (raft.ServerAddress, error) { return b(id) }

// connTable is a raft.StreamLayer that tracks its connections. When raft ends it leaves accepted
// connections open, with a goroutine reading from each.
type connTable struct {
	Stream
	greet  *greeter
	mu     sync.Mutex
	open   map[net.Conn]bool
	closed bool
}

// Accept implements net.Listener.
func (c *connTable) Accept() (net.Conn, error) {
	conn, err := c.Stream.Accept()
	if err != nil {
		return nil, err
	}
	return c.track(&greetedConn{Conn: conn, greet: func() error { return c.greet.accepted(conn) }}, nil)
}

// Dial implements raft.StreamLayer.
func (c *connTable) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	conn, err := c.Stream.Dial(string(address), timeout)
	if err != nil {
		return nil, err
	}
	tracked, err := c.track(conn, nil) // so that the end of the node ends a greeting
	if err != nil {
		return nil, err
	}
	if err := c.greet.dialed(conn); err != nil {
		return nil, errors.Join(err, tracked.Close())
	}
	return tracked, nil
}

func (c *connTable) track(conn net.Conn, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errors.Join(net.ErrClosed, conn.Close())
	}
	c.open[conn] = true
	return &trackedConn{Conn: conn, table: c}, nil
}

func (c *connTable) closeAll() {
	c.mu.Lock()
	conns := make([]net.Conn, 0, len(c.open))
	for conn := range c.open {
		conns = append(conns, conn)
	}
	c.closed = true
	clear(c.open)
	c.mu.Unlock()
	for _, conn := range conns {
		conn.Close() // the peer sees the end in any case
	}
}

type trackedConn struct {
	net.Conn
	table *connTable
}

func (t *trackedConn) Close() error {
	t.table.mu.Lock()
	delete(t.table.open, t.Conn)
	t.table.mu.Unlock()
	return t.Conn.Close()
}

// ackTable remembers, for each peer, the newest message that it acknowledged.
// The order is by a tick counter, not by a clock. A message carries the tick
// read before it was sent. So its tick is at least t only if it was sent after
// t was drawn.
type ackTable struct {
	clock func() time.Time
	ticks atomic.Uint64

	mu    sync.Mutex
	peers map[raft.ServerID]ack
	// changed has room for one value, and gets one after each change.
	changed chan struct{}
}

type ack struct {
	term uint64
	tick uint64
	// last is the end of the peer's log, at time at.
	last uint64
	at   time.Time
}

func newAckTable(now func() time.Time) *ackTable {
	return &ackTable{clock: now, peers: map[raft.ServerID]ack{}, changed: make(chan struct{}, 1)}
}

// now returns the tick for a message that is about to be sent.
func (a *ackTable) now() uint64 { return a.ticks.Load() }

// draw returns a tick that only messages sent from now on can carry.
func (a *ackTable) draw() uint64 { return a.ticks.Add(1) }

// note records the answer to a message of term sent at tick. An answer of a later term is no
// acknowledgement.
func (a *ackTable) note(id raft.ServerID, term, tick uint64, resp *raft.AppendEntriesResponse) {
	if resp.Term > term {
		return
	}
	a.mu.Lock()
	p := a.peers[id]
	if term >= p.term {
		if term > p.term {
			p = ack{term: term}
		}
		p.tick = max(p.tick, tick)
		p.last, p.at = max(p.last, resp.LastLog), a.clock()
		a.peers[id] = p
	}
	a.mu.Unlock()
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// confirmed reports whether id acknowledged, in term, a message sent at tick or later.
func (a *ackTable) confirmed(id raft.ServerID, term, tick uint64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.peers[id]
	return p.term == term && p.tick >= tick
}

// quorum reports whether self and the voters that confirmed are a majority.
func (a *ackTable) quorum(voters []raft.ServerID, self raft.ServerID, term, tick uint64) bool {
	count := 0
	for _, id := range voters {
		if id == self || a.confirmed(id, term, tick) {
			count++
		}
	}
	return count > len(voters)/2 && slices.Contains(voters, self)
}

// newestFirst returns the voters except self, those that acknowledged the newest message first.
func (a *ackTable) newestFirst(voters []raft.ServerID, self raft.ServerID) []raft.ServerID {
	peers := slices.DeleteFunc(slices.Clone(voters), func(id raft.ServerID) bool { return id == self })
	a.mu.Lock()
	defer a.mu.Unlock()
	slices.SortStableFunc(peers, func(x, y raft.ServerID) int {
		px, py := a.peers[x], a.peers[y]
		return cmp.Or(cmp.Compare(py.term, px.term), cmp.Compare(py.tick, px.tick))
	})
	return peers
}

func (a *ackTable) peer(id raft.ServerID) ack {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.peers[id]
}
