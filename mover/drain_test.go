package mover_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/integration/memcluster"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/stretchr/testify/require"
)

// askUntil sends an administrator's request until it is answered, as a person does who saw no
// answer.
func askUntil(t *testing.T, c *memcluster.Cluster, req *wire.MetaRequest) {
	t.Helper()
	eventually(t, time.Minute, "an answer", func() bool {
		_, err := c.Ask(transport.RoleAdmin, "admin", req)
		return err == nil
	})
}

func hostState(host string, to wire.DeviceState) *wire.MetaRequest {
	return &wire.MetaRequest{Op: &wire.MetaRequest_SetHostState{SetHostState: &wire.SetHostState{Host: host, State: to}}}
}

// claimed is how many chunks stripes have on a host that is draining.
func claimed(t *testing.T, c *memcluster.Cluster, host string) uint64 {
	t.Helper()
	for _, h := range status(t, c).GetTopology().GetHosts() {
		if h.Id == host {
			return h.Devices[0].Claimed
		}
	}
	t.Fatalf("no host %s", host)
	return 0
}

// TestDrainFaults is the fault table of draining a host and removing it. Each request fails
// once, and each takes effect once with a lost answer; the leader changes in the middle; the
// mover dies in the middle. In the end the host is empty and removed, and every byte is
// readable.
func TestDrainFaults(t *testing.T) {
	type fault struct {
		name string
		hook memcluster.MetaHook
		do   func(c *memcluster.Cluster) // done in the middle
	}
	faults := []fault{{name: "none"}, {name: "another leader", do: func(c *memcluster.Cluster) { c.Elect("m2") }}}
	for _, op := range []string{"SetHostState", "LeaseJobs", "CommitRepair", "FinishJob"} {
		for _, lost := range []bool{false, true} {
			hook, _ := once(op, moraine.Unavailable, lost)
			faults = append(faults, fault{name: fmt.Sprintf("%s lost=%v", op, lost), hook: hook})
		}
	}
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			inCluster(t, repairing, func(t *testing.T, c *memcluster.Cluster) {
				stop := startMover(t, c, "n1")
				save(t, c, "/runs/a", 1, 5, 2)
				c.OnMeta(f.hook)
				slow(c, 300*time.Millisecond) // so that there is a middle
				askUntil(t, c, hostState("n8", wire.DeviceState_DEVICE_STATE_DRAINING))
				before := claimed(t, c, "n8")
				require.NotZero(t, before)
				_, err := c.Ask(transport.RoleAdmin, "admin", hostState("n8", wire.DeviceState_DEVICE_STATE_RETIRED))
				require.ErrorIs(t, err, moraine.Conflict, "it is not empty")
				time.Sleep(500 * time.Millisecond)
				if f.do != nil {
					f.do(c)
					time.Sleep(2 * time.Second)
				}
				stop() // the mover dies, and another continues
				startMover(t, c, "n2")
				eventually(t, 5*time.Minute, "the host is empty", func() bool { return claimed(t, c, "n8") == 0 })
				c.OnMeta(nil)
				for range 2 {
					askUntil(t, c, hostState("n8", wire.DeviceState_DEVICE_STATE_RETIRED))
				}
				c.Hosts[7].Kill()
				soundAgain(t, c)
				eventually(t, time.Minute, "nobody misses it", func() bool { return len(status(t, c).GetTopology().GetHosts()) == 7 })
				// The cluster still tolerates as many losses as before.
				c.Hosts[5].Kill()
				c.Hosts[6].Kill()
				for _, h := range c.Hosts {
					h.Before(nil)
				}
				restore(t, c, "/runs/a", 5, 1)
			})
		})
	}
}
