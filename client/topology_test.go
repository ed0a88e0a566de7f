package client_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestSingleHost: hosts that are down, and those whose devices accept no chunks, do not count.
func TestSingleHost(t *testing.T) {
	for name, row := range map[string]struct {
		befall func(c *cluster)
		single bool
	}{
		"all are there":       {befall: func(*cluster) {}},
		"one is down":         {befall: func(c *cluster) { c.Hosts[1].Kill() }},
		"two are down":        {befall: func(c *cluster) { c.Hosts[1].Kill(); c.Hosts[2].Kill() }, single: true},
		"two devices are out": {befall: func(c *cluster) { c.takeOut([]uint32{c.Hosts[0].Device(), c.Hosts[2].Device()}) }, single: true},
	} {
		t.Run(name, func(t *testing.T) {
			inCluster(t, 3, func(c *cluster) {
				cl := c.dial("c1", config())
				defer cl.Close()
				require.False(t, cl.SingleHost(c.ctx))
				row.befall(c)
				time.Sleep(time.Minute) // the service has noticed, and the client received the new version
				cl.SingleHost(c.ctx)    // makes it request the newer topology
				require.Equal(t, row.single, cl.SingleHost(c.ctx))
			})
		})
	}
}
