package transport_test

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/pki"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/stretchr/testify/require"
)

var cluster = moraine.UUID{0xc1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}

// shelf is a chunkserver that keeps chunks in a map, with hooks that delay it.
type shelf struct {
	mu     sync.Mutex
	chunks map[moraine.ChunkID][]byte
	puts   int

	before func(ctx context.Context) error // PutChunk calls it before it reads
	after  func(ctx context.Context) error // PutChunk calls it before it answers
	onGet  func(ctx context.Context) error
	peers  []*transport.Peer
	freed  int
}

// pieces checks the pieces of a payload of some bytes against the contract of Payload.ReadInto.
type pieces struct {
	of, got int
	sum     uint32
	bad     bool // a piece was too large, or was not whole blocks before the last
}

func (p *pieces) add(piece []byte) {
	p.got += len(piece)
	p.sum = crc.Update(p.sum, piece)
	p.bad = p.bad || len(piece) > 256<<10 || p.got < p.of && len(piece)%moraine.BlockSize != 0
}

func newShelf() *shelf { return &shelf{chunks: map[moraine.ChunkID][]byte{}} }

func (s *shelf) PutChunk(ctx context.Context, req *wire.PutChunk, p transport.Payload) (*wire.PutChunkReply, error) {
	if s.before != nil {
		if err := s.before(ctx); err != nil {
			return nil, err
		}
	}
	dst := make([]byte, p.Len())
	pieces := pieces{of: p.Len()}
	if err := p.ReadInto(dst, pieces.add); err != nil {
		return nil, err
	}
	if pieces.bad || pieces.sum != req.Crc {
		return nil, &moraine.Error{Op: "put", Kind: moraine.Corrupt}
	}
	s.mu.Lock()
	s.chunks[moraine.ChunkID{Stripe: moraine.StripeID(req.Stripe), Index: uint8(req.Index)}] = dst
	s.puts++
	s.peers = append(s.peers, transport.PeerFrom(ctx))
	s.mu.Unlock()
	if s.after != nil {
		if err := s.after(ctx); err != nil {
			return nil, err
		}
	}
	return &wire.PutChunkReply{Level: req.Level, Epoch: 7}, nil
}

func (s *shelf) GetChunk(ctx context.Context, req *wire.GetChunk) (*wire.GetChunkReply, [][]byte, func(), error) {
	if s.onGet != nil {
		if err := s.onGet(ctx); err != nil {
			return nil, nil, nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.chunks[moraine.ChunkID{Stripe: moraine.StripeID(req.Stripe), Index: uint8(req.Index)}]
	if !ok {
		return nil, nil, nil, &moraine.Error{Op: "get", Ref: "a chunk", Kind: moraine.NotFound}
	}
	part := b[req.Offset : req.Offset+req.Length]
	half := len(part) / 3
	release := func() { s.mu.Lock(); s.freed++; s.mu.Unlock() }
	return &wire.GetChunkReply{ChunkLength: uint64(len(b)), PayloadCrc: crc.Sum(part)}, [][]byte{part[:half], part[half:]}, release, nil
}

// GetPiece returns bytes that encode their offset.
func (s *shelf) GetPiece(ctx context.Context, req *wire.GetPiece) (*wire.GetPieceReply, [][]byte, func(), error) {
	if req.Object == 0 {
		return nil, nil, nil, &moraine.Error{Op: "piece", Kind: moraine.Unavailable}
	}
	data := make([]byte, req.Length)
	for i := range data {
		data[i] = byte(req.Offset + uint64(i))
	}
	release := func() { s.mu.Lock(); s.freed++; s.mu.Unlock() }
	return &wire.GetPieceReply{PayloadCrc: crc.Sum(data)}, [][]byte{data}, release, nil
}

func (s *shelf) SyncDevices(ctx context.Context, req *wire.SyncDevices) (*wire.SyncDevicesReply, error) {
	return &wire.SyncDevicesReply{}, nil
}

func (s *shelf) StatDevices(ctx context.Context, req *wire.StatDevices) (*wire.StatDevicesReply, error) {
	return &wire.StatDevicesReply{Devices: []*wire.Device{{Id: 3, Host: "n1"}}}, nil
}

// clerk is a metadata service that answers by a function.
type clerk func(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error)

func (c clerk) Do(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	return c(ctx, req)
}

// authority issues the certificates and tokens of a test's cluster.
type authority struct {
	ca   *pki.CA
	dir  string
	sign ed25519.PrivateKey
	// has is the current identity of each node; none in mode insecure.
	has map[string]*pki.Identity
}

func newAuthority(t testing.TB) *authority {
	ca, err := pki.NewCA(cluster, time.Now().Add(-24*time.Hour), 48*time.Hour)
	require.NoError(t, err)
	_, priv, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	return &authority{ca: ca, dir: t.TempDir(), sign: priv, has: map[string]*pki.Identity{}}
}

func (a *authority) identity(t testing.TB, role transport.Role, node string) *pki.Identity {
	if id := a.has[node]; id != nil && id.Claims().Role == role {
		return id
	}
	return a.issue(t, pki.Request{Role: role, Node: node, Now: time.Now()})
}

func (a *authority) issue(t testing.TB, r pki.Request) *pki.Identity {
	c, err := a.ca.Issue(r)
	require.NoError(t, err)
	require.NoError(t, c.Save(a.dir, r.Node))
	id, err := pki.LoadIdentity(pki.FilesIn(a.dir, r.Node))
	require.NoError(t, err)
	a.has[r.Node] = id
	return id
}

// principal is that of a client's current certificate.
func (a *authority) principal(node string) []byte {
	p := transport.Peer{Role: transport.RoleClient, Node: node, Scope: "/"}
	if id := a.has[node]; id != nil {
		cert, claims, _ := id.Current()
		p.Key, p.Role, p.Scope, p.ReadOnly, p.Squash = pki.KeyOf(cert.Leaf), claims.Role, claims.Scope, claims.ReadOnly, claims.Squash
	}
	return p.Principal()
}

func (a *authority) keys(id uint64) ed25519.PublicKey {
	if id != 1 {
		return nil
	}
	return a.sign.Public().(ed25519.PublicKey)
}

func (a *authority) token(t testing.TB, node string, life time.Duration) []byte {
	token, err := transport.SignToken(a.sign, &wire.TokenClaims{Cluster: cluster[:], Session: 5, Tenants: []uint32{1},
		Expires: time.Now().Add(life).Unix(), Key: 1, Node: node, Principal: a.principal(node)})
	require.NoError(t, err)
	return token
}

// network is one way to connect.
type network struct {
	mode transport.Mode
	unix bool
}

func (n network) String() string {
	if n.unix {
		return "unix/" + string(n.mode)
	}
	return "tcp/" + string(n.mode)
}

func networks() []network {
	var all []network
	for _, m := range []transport.Mode{transport.Secure, transport.CRC, transport.Insecure} {
		all = append(all, network{m, false}, network{m, true})
	}
	return all
}

func (n network) address(t testing.TB) string {
	if n.unix {
		return fmt.Sprintf("unix:%s/s", shortDir(t))
	}
	return "127.0.0.1:0"
}

// startServer runs a server until the test ends, or stop is called.
func startServer(t testing.TB, cfg transport.ServerConfig, deps transport.ServerDeps) (s *transport.Server, stop func()) {
	s, err := transport.NewServer(cfg, deps)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-done)
	})
	t.Cleanup(stop)
	select {
	case <-s.Ready():
	case err := <-done:
		require.NoError(t, err)
	}
	return s, stop
}

// serve starts a server of role and node for h.
func (n network) serve(t testing.TB, a *authority, role transport.Role, node string, h transport.Handler) *transport.Server {
	s, _ := startServer(t, transport.ServerConfig{Addresses: []string{n.address(t)}, Mode: n.mode, Cluster: cluster, Role: role, Node: node},
		transport.ServerDeps{Handler: h, Identity: n.identity(t, a, role, node), Keys: a.keys})
	return s
}

func (n network) identity(t testing.TB, a *authority, role transport.Role, node string) *pki.Identity {
	if n.mode == transport.Insecure {
		delete(a.has, node)
		return nil
	}
	return a.identity(t, role, node)
}

// pool returns a pool of role and node, with a token if it needs one.
func (n network) pool(t testing.TB, a *authority, role transport.Role, node string) *transport.Pool {
	return n.poolWith(t, a, transport.PoolConfig{Role: role, Node: node}, nil)
}

// poolWith is pool with cfg, whose mode and cluster it fills in.
func (n network) poolWith(t testing.TB, a *authority, cfg transport.PoolConfig, metrics *transport.Metrics) *transport.Pool {
	cfg.Mode, cfg.Cluster = n.mode, cluster
	role, node := cfg.Role, cfg.Node
	p, err := transport.NewPool(cfg,
		transport.PoolDeps{Identity: n.identity(t, a, role, node), Metrics: metrics})
	require.NoError(t, err)
	p.SetToken(a.token(t, node, time.Hour))
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}
