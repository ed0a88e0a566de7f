package intruder_test

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"hash/crc32"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/pki"
	"github.com/morainefs/moraine/transport/wire"
)

// sayHello sends a hello of docs/formats/frame.md on any connection, and reports
// whether the other end answered with anything but an error.
func sayHello(t *testing.T, nc net.Conn, h *wire.Hello) bool {
	t.Helper()
	message, err := proto.Marshal(h)
	require.NoError(t, err)
	frame := make([]byte, 64, 64+len(message))
	copy(frame, "MRNE\x01\x01\x40\x00\x01\x00") // version 1, control, 64 bytes, a hello
	frame[16] = 1
	binary.LittleEndian.PutUint32(frame[48:], uint32(len(message)))
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	binary.LittleEndian.PutUint32(frame[56:], crc32.Checksum(message, castagnoli))
	binary.LittleEndian.PutUint32(frame[60:], crc32.Checksum(frame[:60], castagnoli))
	require.NoError(t, nc.SetDeadline(time.Now().Add(time.Minute)))
	if _, err := nc.Write(append(frame, message...)); err != nil {
		return false
	}
	reply := make([]byte, 64)
	if _, err := io.ReadFull(nc, reply); err != nil {
		return false
	}
	const isReply, isError = 1, 2
	return reply[10]&isReply != 0 && reply[10]&isError == 0
}

// TestIntruderAtTheLog: a stream of the log opens to a metadata server of the
// cluster with a good certificate and to nobody else. It does not open for another
// role, an expired or revoked certificate, one of another cluster or authority, no
// certificate, an unencrypted connection, or another's name. No foreign bytes reach
// the log, and no chunkserver has such streams.
func TestIntruderAtTheLog(t *testing.T) {
	cluster, now := moraine.UUID{1}, time.Now()
	newCA := func(of moraine.UUID) *pki.CA {
		ca, err := pki.NewCA(of, now.Add(-48*time.Hour), 240*time.Hour)
		require.NoError(t, err)
		return ca
	}
	ca := newCA(cluster)
	identity := func(from *pki.CA, role transport.Role, node string, at time.Time, ttl time.Duration) *pki.Identity {
		dir := t.TempDir()
		c, err := from.Issue(pki.Request{Role: role, Node: node, Now: at, TTL: ttl})
		require.NoError(t, err)
		require.NoError(t, c.Save(dir, node))
		id, err := pki.LoadIdentity(pki.FilesIn(dir, node))
		require.NoError(t, err)
		return id
	}
	good := func(role transport.Role) *pki.Identity { return identity(ca, role, "m2", now, 10*time.Hour) }
	type caller struct {
		id         *pki.Identity // nil: no certificate
		role, node string        // in the hello
		clear      bool
	}
	callers := map[string]caller{
		"good":                  {good(transport.RoleMetadata), "metadata", "m2", false},
		"in another's name":     {good(transport.RoleMetadata), "metadata", "m3", false},
		"without a certificate": {nil, "metadata", "m2", false},
		"in clear":              {nil, "metadata", "m2", true},
		"expired":               {identity(ca, transport.RoleMetadata, "m2", now.Add(-10*time.Hour), 9*time.Hour), "metadata", "m2", false},
		"of another authority":  {identity(newCA(cluster), transport.RoleMetadata, "m2", now, 10*time.Hour), "metadata", "m2", false},
		"of another cluster":    {identity(newCA(moraine.UUID{2}), transport.RoleMetadata, "m2", now, 10*time.Hour), "metadata", "m2", false},
		"revoked":               {identity(ca, transport.RoleMetadata, "revoked", now, 10*time.Hour), "metadata", "revoked", false},
	}
	for _, role := range []transport.Role{transport.RoleChunkserver, transport.RoleGateway, transport.RoleClient, transport.RoleAdmin} {
		callers["a "+string(role)] = caller{good(role), string(role), "m2", false}
		callers["a "+string(role)+" as a metadata server"] = caller{good(role), "metadata", "m2", false}
	}
	for _, mode := range []transport.Mode{transport.Secure, transport.CRC} {
		for _, at := range []transport.Role{transport.RoleMetadata, transport.RoleChunkserver} {
			server, err := transport.NewServer(transport.ServerConfig{Addresses: []string{"127.0.0.1:0"}, Mode: mode, Cluster: cluster, Role: at, Node: "m1"},
				transport.ServerDeps{Handler: &reached{}, Identity: identity(ca, at, "m1", now, 10*time.Hour),
					Revoked: func(p *transport.Peer) bool { return p.Node == "revoked" }})
			require.NoError(t, err)
			ctx, stop := context.WithCancel(t.Context())
			var g errgroup.Group
			g.Go(func() error { return server.Run(ctx) })
			<-server.Ready()
			var streams atomic.Int64
			g.Go(func() error {
				for {
					nc, err := server.RaftListener().Accept()
					if err != nil {
						return nil //nolint:nilerr // the server has ended
					}
					streams.Add(1)
					nc.Close() //nolint:errcheck // it was only counted
				}
			})
			for name, c := range callers {
				streams.Store(0)
				nc, err := net.Dial("tcp", server.Addresses()[0])
				require.NoError(t, err)
				if !c.clear {
					cfg := &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13} //nolint:gosec // an intruder trusts anybody
					if c.id != nil {
						cert, _, _ := c.id.Current()
						cfg.Certificates = []tls.Certificate{*cert}
					}
					nc = tls.Client(nc, cfg)
				}
				open := sayHello(t, nc, &wire.Hello{MinVersion: 1, MaxVersion: 1, Cluster: cluster[:], Node: c.node, Role: c.role, Class: uint32(transport.Raft)})
				want := name == "good" && at == transport.RoleMetadata
				require.Equal(t, want, open, "%s %s: %s", mode, at, name)
				if want {
					require.Eventually(t, func() bool { return streams.Load() == 1 }, time.Minute, time.Millisecond)
				}
				nc.Close() //nolint:errcheck // a failed close loses nothing
				if !want {
					require.Zero(t, streams.Load(), "%s %s: %s", mode, at, name)
				}
			}
			stop()
			require.NoError(t, g.Wait())
		}
	}
}
