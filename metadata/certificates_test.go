package metadata_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// The leader knows when its own certificate expires, and those of hosts and of gateways with
// sessions, from their connections. It sees a renewed one with the next heartbeat.
func TestCertificatesAreKnown(t *testing.T) {
	bubbleWith(t, func(_ *metadata.Config, deps *metadata.Deps) {
		deps.Expires = func() time.Time { return time.Now().Add(90 * 24 * time.Hour) }
	}, func(c *cluster) {
		nodes := c.fleet(3)
		const day = 24 * time.Hour
		left := func() map[string]int64 {
			out := map[string]int64{}
			reply := c.cluster()
			require.False(t, reply.Insecure)
			for _, w := range reply.Certificates {
				out[w.Role+" "+w.Node] = int64(math.Round(float64(w.LeftSeconds) / 86400))
				require.Equal(t, time.Now().Unix()+w.LeftSeconds, w.Expires)
			}
			return out
		}
		require.Equal(t, map[string]int64{"metadata m1": 90}, left(), "what nobody has shown is not there")
		nodes[0].expires, nodes[1].expires = time.Now().Add(5*day), time.Now().Add(-day)
		c.pass(2*time.Second, nodes...)
		gateway := peer(transport.RoleGateway, "s1")
		gateway.NotAfter = time.Now().Add(20 * day)
		k := c.open(gateway)
		require.Equal(t, map[string]int64{"metadata m1": 90, "chunkserver n1": 5, "chunkserver n2": -1, "gateway s1": 20}, left())
		confined := peer(transport.RoleClient, "c2")
		confined.Scope = "/team"
		resp, err := c.do(confined, &wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: &wire.GetCluster{}}})
		require.NoError(t, err)
		require.Len(t, resp.GetCluster().Certificates, 3, "a caller that is confined to a directory is told of no gateway")
		nodes[0].expires = time.Now().Add(365 * day)
		c.pass(time.Second, nodes...)
		require.EqualValues(t, 365, left()["chunkserver n1"])
		c.pass(5*time.Second, nodes[0], nodes[2]) // n2 is down, possibly because of its certificate
		require.Contains(t, left(), "chunkserver n2")
		_, err = k.do(&wire.MetaRequest{Op: &wire.MetaRequest_CloseSession{CloseSession: &wire.CloseSession{}}})
		require.NoError(t, err)
		require.NotContains(t, left(), "gateway s1")
	})
}
