package transport_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// fullServer is a metadata server with few places, and what it logs.
type fullServer struct {
	*testing.T
	network
	*authority
	server *transport.Server
	log    *lockedBuffer
}

func newFullServer(t *testing.T, mode transport.Mode, places int) *fullServer {
	c := &fullServer{T: t, network: network{mode: mode}, authority: newAuthority(t), log: &lockedBuffer{}}
	c.server, _ = startServer(t, transport.ServerConfig{Addresses: []string{c.address(t)}, Mode: mode, Cluster: cluster, Role: transport.RoleMetadata, Node: "m1", MaxConnections: places},
		transport.ServerDeps{Identity: c.network.identity(t, c.authority, transport.RoleMetadata, "m1"), Keys: c.keys, Log: slog.New(slog.NewTextHandler(c.log, nil)),
			Handler: transport.HandlerForMetadata(clerk(func(context.Context, *wire.MetaRequest) (*wire.MetaResponse, error) {
				return &wire.MetaResponse{}, nil
			}))})
	return c
}

// call sends a request from a new process of node, and returns how to send more, and how to end it.
func (c *fullServer) call(node string) (do func() error, end func(), err error) {
	p, err := transport.NewPool(transport.PoolConfig{Mode: c.mode, Cluster: cluster, Role: transport.RoleClient, Node: node},
		transport.PoolDeps{Identity: c.network.identity(c.T, c.authority, transport.RoleClient, node)})
	require.NoError(c, err)
	meta := p.Metadata(c.server.Addresses())
	do = func() error {
		_, err := meta.Do(testContext(c.T), &wire.MetaRequest{})
		return err
	}
	return do, func() { require.NoError(c, p.Close()) }, do()
}

// TestOneCertificateLeavesHalfOfTheConnections: the holders of one certificate take as many
// connections of a server as they may. The next one is refused with a reason and a log line.
// Holders of other certificates are served, and a connection that ends makes room.
func TestOneCertificateLeavesHalfOfTheConnections(t *testing.T) {
	for _, mode := range []transport.Mode{transport.Secure, transport.CRC, transport.Insecure} {
		t.Run(string(mode), func(t *testing.T) {
			c := newFullServer(t, mode, 8)
			var ends []func()
			var do func() error
			for range 4 {
				one, end, err := c.call("greedy")
				require.NoError(t, err)
				do, ends = one, append(ends, end)
			}
			for range 3 {
				_, end, err := c.call("greedy")
				require.Equal(t, moraine.Unavailable, moraine.KindOf(err), err)
				require.ErrorContains(t, err, "the certificate of client greedy has 4 connections to m1")
				end()
			}
			require.Contains(t, c.log.String(), "connection refused")
			require.Contains(t, c.log.String(), "greedy")
			for _, node := range []string{"c1", "c2", "c3"} {
				_, end, err := c.call(node)
				require.NoError(t, err)
				defer end()
			}
			require.NoError(t, do(), "the connections that it has go on")
			ends[0]()
			require.Eventually(t, func() bool {
				_, end, err := c.call("greedy")
				end()
				return err == nil
			}, time.Minute, 10*time.Millisecond)
			for _, end := range ends[1:] {
				end()
			}
		})
	}
}

// TestOneCertificateTakesNoKeysOfOthers: in mode crc, a holder that opens control connections in a
// loop loses its own oldest keys, with a log line. A full table removes a key of the certificate
// that has the most.
func TestOneCertificateTakesNoKeysOfOthers(t *testing.T) {
	c := newFullServer(t, transport.CRC, 1000)
	transport.SetMaxKeys(c.server, 8)
	open := func(node string, times int) {
		for range times {
			_, end, err := c.call(node)
			require.NoError(t, err)
			end()
		}
	}
	open("c1", 1)
	first := transport.KeysOf(c.server, "c1")
	open("greedy", 20)
	require.Len(t, transport.KeysOf(c.server, "greedy"), 4)
	require.Equal(t, first, transport.KeysOf(c.server, "c1"))
	require.Contains(t, c.log.String(), "the server removed the oldest")
	require.Equal(t, 0, strings.Count(c.log.String(), "node=c1"))
	open("c2", 3)
	open("c3", 1) // finds the table full
	require.Len(t, transport.KeysOf(c.server, "c3"), 1)
	require.Equal(t, first, transport.KeysOf(c.server, "c1"))
	require.Len(t, transport.KeysOf(c.server, "greedy"), 3)
}
