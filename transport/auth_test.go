package transport_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/pki"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/stretchr/testify/require"
)

// shifted is a clock that is off by a fixed time.
type shifted time.Duration

func (s shifted) Now() time.Time                         { return time.Now().Add(time.Duration(s)) }
func (s shifted) Since(t time.Time) time.Duration        { return s.Now().Sub(t) }
func (s shifted) After(d time.Duration) <-chan time.Time { return time.After(d) }
func (s shifted) NewTicker(d time.Duration) *time.Ticker { return time.NewTicker(d) }

// stat calls the chunkserver n1 at addr as role and node, and returns the error.
func stat(t *testing.T, cfg transport.PoolConfig, deps transport.PoolDeps, addrs []string) error {
	p, err := transport.NewPool(cfg, deps)
	if err != nil {
		return err
	}
	defer p.Close()
	_, err = p.Chunks("n1", addrs).Stat(testContext(t), &wire.StatDevices{})
	return err
}

func TestCertificateMisuse(t *testing.T) {
	for _, mode := range []transport.Mode{transport.Secure, transport.CRC} {
		n := network{mode: mode}
		a := newAuthority(t)
		s := n.serve(t, a, transport.RoleChunkserver, "n1", transport.HandlerForChunks(newShelf()))
		hour := time.Hour
		other, err := pki.NewCA(cluster, time.Now(), hour)
		require.NoError(t, err)
		foreign, err := pki.NewCA(moraine.UUID{9}, time.Now(), hour)
		require.NoError(t, err)

		cases := map[string]struct {
			id   func(t *testing.T) *pki.Identity
			cfg  transport.PoolConfig
			skew time.Duration
			kind moraine.Kind
			says string
		}{
			"good": {id: func(t *testing.T) *pki.Identity { return a.identity(t, transport.RoleClient, "c1") }},
			"expired, and the caller knows": {
				id: func(t *testing.T) *pki.Identity {
					return a.issue(t, pki.Request{Role: pki.RoleClient, Node: "old", Now: time.Now().Add(-2 * hour), TTL: hour})
				},
				kind: moraine.Unauthenticated, says: "renew it with `moraine cert renew DIR old`",
			},
			"expired, and only the server knows": {
				id: func(t *testing.T) *pki.Identity {
					return a.issue(t, pki.Request{Role: pki.RoleClient, Node: "old", Now: time.Now().Add(-4 * time.Minute), TTL: 2 * time.Minute})
				},
				skew: -3 * time.Minute, kind: moraine.Unauthenticated, says: "certificate of client old expired on",
			},
			"not yet valid, and the caller knows": {
				id: func(t *testing.T) *pki.Identity {
					return a.issue(t, pki.Request{Role: pki.RoleClient, Node: "ahead", Now: time.Now().Add(hour), TTL: hour})
				},
				kind: moraine.Unauthenticated, says: "check the clocks",
			},
			"not yet valid, and only the server knows": {
				id: func(t *testing.T) *pki.Identity {
					return a.issue(t, pki.Request{Role: pki.RoleClient, Node: "ahead", Now: time.Now().Add(hour), TTL: hour})
				},
				skew: hour, kind: moraine.Unauthenticated, says: "certificate of client ahead is valid only from",
			},
			"of another authority": {
				id:   func(t *testing.T) *pki.Identity { return issueFrom(t, other, a.ca, "c1") },
				kind: moraine.Unauthenticated, says: "was not issued by an authority that is trusted here",
			},
			"of another cluster": {
				id:   func(t *testing.T) *pki.Identity { return issueFrom(t, foreign, a.ca, "c1") },
				kind: moraine.WrongCluster, says: "certificate of the other end is of cluster",
			},
			"for a node that it does not name": {
				id:  func(t *testing.T) *pki.Identity { return a.identity(t, transport.RoleClient, "c1") },
				cfg: transport.PoolConfig{Node: "c2"}, kind: moraine.InvalidArgument, says: "certificate is of client c1",
			},
			"none": {id: func(*testing.T) *pki.Identity { return nil }, cfg: transport.PoolConfig{Role: "client", Node: "c1"},
				kind: moraine.InvalidArgument, says: "needs a certificate"},
		}
		for name, c := range cases {
			t.Run(string(mode)+"/"+name, func(t *testing.T) {
				c.cfg.Mode = mode
				err := stat(t, c.cfg, transport.PoolDeps{Identity: c.id(t), Clock: shifted(c.skew)}, s.Addresses())
				if c.says == "" {
					require.NoError(t, err)
					return
				}
				require.ErrorContains(t, err, c.says)
				require.Equal(t, c.kind, moraine.KindOf(err))
				require.NotContains(t, err.Error(), "\n")
			})
		}
	}
}

// issueFrom is an identity that from issued, and that also trusts also.
func issueFrom(t *testing.T, from, also *pki.CA, node string) *pki.Identity {
	dir := t.TempDir()
	c, err := from.Issue(pki.Request{Role: pki.RoleClient, Node: node, Now: time.Now()})
	require.NoError(t, err)
	require.NoError(t, c.Save(dir, node))
	ca := filepath.Join(dir, pki.CACertFile)
	own, err := os.ReadFile(ca)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(ca, append(own, also.CertPEM()...), 0o644))
	id, err := pki.LoadIdentity(pki.FilesIn(dir, node))
	require.NoError(t, err)
	return id
}

// A server must be the requested one, and a client's certificate cannot act as a
// server's.
func TestServerIdentity(t *testing.T) {
	for _, n := range modes() {
		t.Run(n.String(), func(t *testing.T) {
			a := newAuthority(t)
			s := n.serve(t, a, transport.RoleChunkserver, "n1", transport.HandlerForChunks(newShelf()))
			p := n.pool(t, a, transport.RoleAdmin, "a1")
			ctx := testContext(t)
			_, err := p.Chunks("n2", s.Addresses()).Stat(ctx, &wire.StatDevices{})
			require.ErrorIs(t, err, moraine.PermissionDenied)
			require.ErrorContains(t, err, "server at the address is n1, not n2")
			_, err = p.Metadata(s.Addresses()).Do(ctx, &wire.MetaRequest{})
			require.ErrorIs(t, err, moraine.PermissionDenied)
			require.ErrorContains(t, err, "is a chunkserver, not a metadata")
		})
	}
	a := newAuthority(t)
	client := a.identity(t, transport.RoleClient, "c1")
	_, err := transport.NewServer(transport.ServerConfig{Addresses: []string{"127.0.0.1:0"}},
		transport.ServerDeps{Identity: client, Handler: transport.HandlerForChunks(newShelf())})
	require.ErrorContains(t, err, "is not that of a server")

	cert, _, _ := client.Current()
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{*cert}})
	require.NoError(t, err)
	defer l.Close()
	var wg sync.WaitGroup
	wg.Go(func() {
		if c, err := l.Accept(); err == nil {
			c.(*tls.Conn).Handshake()
			c.Close()
		}
	})
	err = stat(t, transport.PoolConfig{}, transport.PoolDeps{Identity: a.identity(t, transport.RoleAdmin, "a1")}, []string{l.Addr().String()})
	require.ErrorContains(t, err, "a client cannot be a server")
	wg.Wait()
}

// A hello counts only as far as the certificate confirms it.
func TestHelloClaims(t *testing.T) {
	a := newAuthority(t)
	n := network{mode: transport.Secure}
	s := n.serve(t, a, transport.RoleMetadata, "m1", transport.HandlerForMetadata(clerk(answer)))
	id := a.identity(t, transport.RoleChunkserver, "n1")
	good := func() *wire.Hello {
		return &wire.Hello{MinVersion: 1, MaxVersion: 1, Cluster: cluster[:], Node: "n1", Class: uint32(transport.Control), Role: "chunkserver"}
	}
	for name, c := range map[string]struct {
		change func(*wire.Hello)
		kind   moraine.Kind
	}{
		"another node":      {func(h *wire.Hello) { h.Node = "n2" }, moraine.PermissionDenied},
		"another role":      {func(h *wire.Hello) { h.Role = "metadata" }, moraine.PermissionDenied},
		"another cluster":   {func(h *wire.Hello) { h.Cluster = make([]byte, 16); h.Cluster[0] = 1 }, moraine.WrongCluster},
		"a damaged cluster": {func(h *wire.Hello) { h.Cluster = []byte{1} }, moraine.Corrupt},
		"the log":           {func(h *wire.Hello) { h.Class = uint32(transport.Raft) }, moraine.PermissionDenied},
		"no class":          {func(h *wire.Hello) { h.Class = 0 }, moraine.Unimplemented},
		"a later version":   {func(h *wire.Hello) { h.MinVersion, h.MaxVersion = 2, 3 }, moraine.Unimplemented},
	} {
		t.Run(name, func(t *testing.T) {
			cert, _, _ := id.Current()
			nc, err := tls.Dial("tcp", s.Addresses()[0], &tls.Config{Certificates: []tls.Certificate{*cert}, InsecureSkipVerify: true})
			require.NoError(t, err)
			defer nc.Close()
			h := good()
			c.change(h)
			_, err = transport.RawHello(nc, h)
			require.Equal(t, c.kind, moraine.KindOf(err), "%v", err)
		})
	}
	nc, err := tls.Dial("tcp", s.Addresses()[0], &tls.Config{Certificates: func() []tls.Certificate { c, _, _ := id.Current(); return []tls.Certificate{*c} }(), InsecureSkipVerify: true})
	require.NoError(t, err)
	defer nc.Close()
	reply, err := transport.RawHello(nc, good())
	require.NoError(t, err)
	require.Equal(t, "m1", reply.Node)
}

// Ends with different modes return an error that says so.
func TestModesDiffer(t *testing.T) {
	a := newAuthority(t)
	for _, c := range []struct {
		server, client transport.Mode
		says           string
	}{
		{transport.Insecure, transport.Secure, "does the server run in mode insecure?"},
		{transport.Secure, transport.Insecure, "mode secure"},
		{transport.CRC, transport.Insecure, "mode crc"},
		{transport.Secure, transport.CRC, "does not run in mode crc"},
	} {
		n := network{mode: c.server}
		s := n.serve(t, a, transport.RoleChunkserver, "n1", transport.HandlerForChunks(newShelf()))
		p := network{mode: c.client}.pool(t, a, transport.RoleClient, "c1")
		_, err := p.Chunks("n1", s.Addresses()).Sync(testContext(t), &wire.SyncDevices{})
		require.ErrorContains(t, err, c.says, "%s calls %s", c.client, c.server)
	}
}

func TestTokens(t *testing.T) {
	_, stranger, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	for _, n := range modes() {
		a := newAuthority(t)
		sh := newShelf()
		s := n.serve(t, a, transport.RoleChunkserver, "n1", transport.HandlerForChunks(sh))
		n.identity(t, a, transport.RoleClient, "c1")
		sign := func(key ed25519.PrivateKey, change func(*wire.TokenClaims)) []byte {
			c := &wire.TokenClaims{Cluster: cluster[:], Session: 5, Tenants: []uint32{1}, Expires: time.Now().Add(time.Hour).Unix(), Key: 1, Node: "c1",
				Principal: a.principal("c1")}
			change(c)
			token, err := transport.SignToken(key, c)
			require.NoError(t, err)
			return token
		}
		same := func(*wire.TokenClaims) {}
		for name, c := range map[string]struct {
			token []byte
			kind  moraine.Kind
			says  string
		}{
			"none":                  {nil, moraine.Unauthenticated, "must present a session token"},
			"damaged":               {[]byte("x"), moraine.Unauthenticated, "damaged"},
			"of another node":       {sign(a.sign, func(c *wire.TokenClaims) { c.Node = "c2" }), moraine.Unauthenticated, "issued to c2"},
			"of another principal":  {sign(a.sign, func(c *wire.TokenClaims) { c.Principal = make([]byte, 16) }), moraine.Unauthenticated, "another certificate"},
			"of no principal":       {sign(a.sign, func(c *wire.TokenClaims) { c.Principal = nil }), moraine.Unauthenticated, "another certificate"},
			"of another cluster":    {sign(a.sign, func(c *wire.TokenClaims) { c.Cluster = make([]byte, 16) }), moraine.WrongCluster, "another cluster"},
			"expired":               {sign(a.sign, func(c *wire.TokenClaims) { c.Expires = time.Now().Unix() - 1 }), moraine.Unauthenticated, "expired"},
			"under an unknown key":  {sign(a.sign, func(c *wire.TokenClaims) { c.Key = 2 }), moraine.Unavailable, "not known"},
			"under a stranger's":    {sign(stranger, same), moraine.Unauthenticated, "signature"},
			"good":                  {sign(a.sign, same), 0, ""},
			"good, of all tenants":  {sign(a.sign, func(c *wire.TokenClaims) { c.AllTenants = true }), 0, ""},
			"changed after signing": {bytes.Replace(sign(a.sign, func(c *wire.TokenClaims) { c.Node = "c0" }), []byte("c0"), []byte("c1"), 1), moraine.Unauthenticated, "signature"},
		} {
			t.Run(n.String()+"/"+name, func(t *testing.T) {
				p, err := transport.NewPool(transport.PoolConfig{Mode: n.mode, Role: transport.RoleClient, Node: "c1"},
					transport.PoolDeps{Identity: n.identity(t, a, transport.RoleClient, "c1")})
				require.NoError(t, err)
				defer p.Close()
				p.SetToken(c.token)
				_, err = put(testContext(t), p.Chunks("n1", s.Addresses()), 1, []byte("x"))
				if c.says == "" {
					require.NoError(t, err)
					return
				}
				require.ErrorContains(t, err, c.says)
				require.Equal(t, c.kind, moraine.KindOf(err))
			})
		}
		t.Run(n.String()+"/servers need none", func(t *testing.T) {
			p, err := transport.NewPool(transport.PoolConfig{Mode: n.mode, Role: transport.RoleChunkserver, Node: "n2"},
				transport.PoolDeps{Identity: n.identity(t, a, transport.RoleChunkserver, "n2")})
			require.NoError(t, err)
			defer p.Close()
			_, err = put(testContext(t), p.Chunks("n1", s.Addresses()), 1, []byte("x"))
			require.NoError(t, err)
		})
	}
}

// An expired token ends the permissions of its connection. With a fresh token the
// same connection continues.
func TestTokenIsRefreshed(t *testing.T) {
	for _, n := range modes() {
		t.Run(n.String(), func(t *testing.T) {
			a, sh := newAuthority(t), newShelf()
			s := n.serve(t, a, transport.RoleChunkserver, "n1", transport.HandlerForChunks(sh))
			x := newProxy(t, s.Addresses()[0])
			p := n.pool(t, a, transport.RoleClient, "c1")
			c := p.Chunks("n1", []string{x.addr()})
			ctx := testContext(t)
			p.SetToken(a.token(t, "c1", 2*time.Second))
			_, err := put(ctx, c, 1, []byte("x"))
			require.NoError(t, err)
			opened := x.count()
			require.Eventually(t, func() bool {
				_, err := put(ctx, c, 1, []byte("x"))
				return errors.Is(err, moraine.Unauthenticated)
			}, 20*time.Second, 20*time.Millisecond)
			_, err = put(ctx, c, 1, []byte("x"))
			require.ErrorContains(t, err, "renew the session")
			p.SetToken(a.token(t, "c1", time.Hour))
			eventually(t, func() error { _, err := put(ctx, c, 1, []byte("x")); return err })
			require.Equal(t, opened, x.count(), "no new connections")
		})
	}
}

// A caller that was refused for its token is served as soon as it has another: it
// does not wait for the pause after a failed attempt.
func TestNewTokenIsShownAtOnce(t *testing.T) {
	n := network{mode: transport.CRC}
	a, sh := newAuthority(t), newShelf()
	s := n.serve(t, a, transport.RoleChunkserver, "n1", transport.HandlerForChunks(sh))
	p, err := transport.NewPool(transport.PoolConfig{Mode: n.mode, Role: transport.RoleClient, Node: "c1", MinBackoff: time.Hour, MaxBackoff: time.Hour},
		transport.PoolDeps{Identity: n.identity(t, a, transport.RoleClient, "c1")})
	require.NoError(t, err)
	defer p.Close()
	c := p.Chunks("n1", s.Addresses())
	p.SetToken(a.token(t, "c1", -time.Second))
	for range 2 {
		_, err = put(testContext(t), c, 1, []byte("x"))
		require.ErrorIs(t, err, moraine.Unauthenticated)
	}
	p.SetToken(a.token(t, "c1", time.Hour))
	_, err = put(testContext(t), c, 1, []byte("x"))
	require.NoError(t, err)
}

// A recorded unencrypted handshake opens no other connection.
func TestReplayedProofIsRefused(t *testing.T) {
	n := network{mode: transport.CRC}
	a, sh := newAuthority(t), newShelf()
	s := n.serve(t, a, transport.RoleChunkserver, "n1", transport.HandlerForChunks(sh))
	x := newProxy(t, s.Addresses()[0])
	var mu sync.Mutex
	var recorded []byte
	x.set(func(up bool, b []byte) []byte {
		mu.Lock()
		defer mu.Unlock()
		if up && (len(recorded) > 0 || bytes.HasPrefix(b, []byte("MRNE"))) {
			recorded = append(recorded, b...)
		}
		return b
	})
	c := n.pool(t, a, transport.RoleClient, "c1").Chunks("n1", []string{x.addr()})
	_, err := put(testContext(t), c, 1, []byte("x"))
	require.NoError(t, err)
	sh.mu.Lock()
	require.Equal(t, 1, sh.puts)
	sh.mu.Unlock()

	nc, err := net.Dial("tcp", s.Addresses()[0])
	require.NoError(t, err)
	defer nc.Close()
	mu.Lock()
	_, err = nc.Write(recorded)
	mu.Unlock()
	require.NoError(t, err)
	nc.SetDeadline(time.Now().Add(10 * time.Second))
	challenge, err := transport.RawReply(nc)
	require.NoError(t, err)
	require.NotEmpty(t, challenge.Nonce)
	_, err = transport.RawReply(nc)
	require.ErrorIs(t, err, moraine.Unauthenticated)
	require.ErrorContains(t, err, "proof")
	sh.mu.Lock()
	defer sh.mu.Unlock()
	require.Equal(t, 1, sh.puts)
}

// In mode crc every caller needs a proof.
func TestClearConnectionsNeedAProof(t *testing.T) {
	n := network{mode: transport.CRC}
	a := newAuthority(t)
	s := n.serve(t, a, transport.RoleChunkserver, "n1", transport.HandlerForChunks(newShelf()))
	for name, c := range map[string]struct {
		h    *wire.Hello
		kind moraine.Kind
	}{
		"bulk without a key":    {&wire.Hello{Class: uint32(transport.Bulk)}, moraine.Unauthenticated},
		"bulk, unknown key":     {&wire.Hello{Class: uint32(transport.Bulk), KeyId: make([]byte, 16), Nonce: make([]byte, 16)}, moraine.Stale},
		"control in clear":      {&wire.Hello{Class: uint32(transport.Control), KeyId: make([]byte, 16), Nonce: make([]byte, 16)}, moraine.Unauthenticated},
		"the role of a server":  {&wire.Hello{Class: uint32(transport.Bulk), Role: "metadata"}, moraine.Unauthenticated},
		"the log without a key": {&wire.Hello{Class: uint32(transport.Raft), Role: "metadata"}, moraine.Unauthenticated},
	} {
		t.Run(name, func(t *testing.T) {
			nc, err := net.Dial("tcp", s.Addresses()[0])
			require.NoError(t, err)
			defer nc.Close()
			c.h.MinVersion, c.h.MaxVersion, c.h.Node, c.h.Token = 1, 1, "c1", a.token(t, "c1", time.Hour)
			_, err = transport.RawHello(nc, c.h)
			require.Equal(t, c.kind, moraine.KindOf(err), "%v", err)
		})
	}
}

// Certificates rotate while connections are open; the next connections use the new
// ones.
func TestRotatedCertificates(t *testing.T) {
	n := network{mode: transport.Secure}
	a := newAuthority(t)
	s := n.serve(t, a, transport.RoleMetadata, "m1", transport.HandlerForMetadata(clerk(answer)))
	id := a.identity(t, transport.RoleChunkserver, "n1")
	p, err := transport.NewPool(transport.PoolConfig{}, transport.PoolDeps{Identity: id})
	require.NoError(t, err)
	defer p.Close()
	x := newProxy(t, s.Addresses()[0])
	m := p.Metadata([]string{x.addr()})
	ctx := testContext(t)
	_, err = m.Do(ctx, &wire.MetaRequest{})
	require.NoError(t, err)
	before := id.NotAfter()
	for _, node := range []struct {
		role pki.Role
		id   string
	}{{pki.RoleChunkserver, "n1"}, {pki.RoleMetadata, "m1"}} {
		c, err := a.ca.Issue(pki.Request{Role: node.role, Node: node.id, Now: time.Now(), TTL: 10 * time.Minute})
		require.NoError(t, err)
		require.NoError(t, c.Save(a.dir, node.id))
	}
	_, err = m.Do(ctx, &wire.MetaRequest{})
	require.NoError(t, err)
	require.NotEqual(t, before, id.NotAfter())
	require.Eventually(t, func() bool {
		_, err := m.Do(ctx, &wire.MetaRequest{})
		require.NoError(t, err, "nobody sees that the connection is replaced")
		return x.count() == 2
	}, 30*time.Second, 10*time.Millisecond, "a connection under the new certificate")
}

// In every mode, only metadata servers open streams of the log.
func TestRaftStreams(t *testing.T) {
	for _, n := range networks() {
		t.Run(n.String(), func(t *testing.T) {
			a := newAuthority(t)
			s := n.serve(t, a, transport.RoleMetadata, "m1", transport.HandlerForMetadata(clerk(answer)))
			l := s.RaftListener()
			require.Equal(t, s.Addresses()[0], l.Addr().String())
			done := make(chan error, 1)
			go func() {
				c, err := l.Accept()
				if err != nil {
					done <- err
					return
				}
				buf := make([]byte, 5)
				if _, err = c.Read(buf); err == nil {
					_, err = c.Write(bytes.ToUpper(buf))
				}
				done <- err
			}()
			c, err := n.pool(t, a, transport.RoleMetadata, "m2").DialRaft(s.Addresses()[0], 5*time.Second)
			require.NoError(t, err)
			defer c.Close()
			_, err = c.Write([]byte("hello"))
			require.NoError(t, err)
			buf := make([]byte, 5)
			_, err = c.Read(buf)
			require.NoError(t, err)
			require.Equal(t, "HELLO", string(buf))
			require.NoError(t, <-done)
			// The log sets its own deadlines: a late write fails, and later bytes
			// do not count as sent.
			require.NoError(t, c.SetWriteDeadline(time.Unix(1, 0)))
			_, err = c.Write([]byte("late"))
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			_, err = n.pool(t, a, transport.RoleChunkserver, "n1").DialRaft(s.Addresses()[0], 5*time.Second)
			require.ErrorIs(t, err, moraine.PermissionDenied)
		})
	}
}

// After a change of the metadata's incarnation, a server makes its callers send a
// new hello.
func TestIncarnationChanges(t *testing.T) {
	n := network{mode: transport.Insecure}
	a := newAuthority(t)
	var history atomic.Uint32
	history.Store(1)
	s, _ := startServer(t, transport.ServerConfig{Addresses: []string{n.address(t)}, Mode: n.mode, Cluster: cluster, Role: transport.RoleMetadata, Node: "m1"},
		transport.ServerDeps{Handler: transport.HandlerForMetadata(clerk(answer)), Incarnation: func() moraine.Incarnation { return moraine.Incarnation(history.Load()) }})
	m := n.pool(t, a, transport.RoleClient, "c1").Metadata(s.Addresses())
	ctx := testContext(t)
	_, err := m.Do(ctx, &wire.MetaRequest{})
	require.NoError(t, err)
	history.Store(2)
	_, err = m.Do(ctx, &wire.MetaRequest{})
	require.ErrorIs(t, err, moraine.Unavailable)
	eventually(t, func() error { _, err := m.Do(ctx, &wire.MetaRequest{}); return err })
}
