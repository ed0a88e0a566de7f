package metadata_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// A chunkserver that names another host's device in its heartbeats neither receives that device's
// scrub nor can report it as begun.
func TestHostSaysNothingOfForeignScrubs(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		nodes := c.fleet(2)
		device := nodes[0].devices[0].Id
		_, err := c.do(peer(transport.RoleAdmin, "ops"), &wire.MetaRequest{Op: &wire.MetaRequest_StartScrub{
			StartScrub: &wire.StartScrub{Devices: []uint32{device}}}})
		require.NoError(t, err)
		for _, scrub := range []*wire.Scrub{nil, {Running: true}, {LastDone: 1}} {
			nodes[1].says = func(hb *wire.Heartbeat) {
				hb.Devices = append(hb.Devices, &wire.Device{Id: device, Epoch: nodes[0].devices[0].Epoch, State: in, Scrub: scrub})
			}
			require.Empty(t, nodes[1].beat().Scrub, "%v", scrub)
			require.Equal(t, []uint32{device}, nodes[0].beat().Scrub, "after %v", scrub)
		}
	})
}

// A chunkserver cannot take a device by registering its UUID while the host that has it is up and
// serves it. It can once that host is down, or the device is out: a disk was carried.
func TestDeviceOfALiveHostIsNotTaken(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		nodes := c.fleet(3)
		device := nodes[0].devices[0]
		take := func() error {
			_, err := c.do(peer(transport.RoleChunkserver, "thief"), &wire.MetaRequest{Op: &wire.MetaRequest_RegisterHost{
				RegisterHost: &wire.RegisterHost{Host: &wire.Host{Addresses: []string{"thief:9000"},
					Devices: []*wire.Device{{Uuid: device.Uuid, Id: device.Id, Epoch: device.Epoch, Capacity: 1 << 40, State: in}}}}}})
			return err
		}
		host := func() string { return c.device(device.Id).Host }
		err := take()
		require.ErrorIs(t, err, moraine.Busy)
		require.ErrorContains(t, err, "n1")
		require.Equal(t, "n1", host())
		_, err = c.do(peer(transport.RoleChunkserver, "thief"), &wire.MetaRequest{Op: &wire.MetaRequest_ReportChunks{
			ReportChunks: &wire.ReportChunks{Device: device.Id}}})
		require.ErrorIs(t, err, moraine.PermissionDenied)
		nodes[0].beat()
		c.pass(time.Minute, nodes[1:]...)
		require.NoError(t, take())
		require.Equal(t, "thief", host())
	})
}

// A grant for a file outside the session's directory is answered like one for a missing file,
// whatever the policy of that place.
func TestGrantShowsNoForeignPolicy(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		nodes := c.fleet(3)
		owner := c.open(peer(transport.RoleClient, "owner"))
		dir := func(name string) uint64 {
			resp, err := owner.do(mkdir(root, name))
			require.NoError(t, err)
			return resp.GetEntry().Attr.Inode
		}
		dir("a")
		foreign := dir("b")
		_, err := owner.do(setPolicy(foreign, &wire.Policy{Scheme: &wire.Scheme{K: 2}}))
		require.NoError(t, err)
		confined := peer(transport.RoleClient, "c1")
		confined.Scope = "/a"
		k := c.open(confined)
		grant := func(inode uint64) error {
			_, err := k.do(&wire.MetaRequest{Op: &wire.MetaRequest_Grant{Grant: &wire.Grant{Inode: inode, Count: 1}}})
			return err
		}
		require.ErrorIs(t, grant(foreign+1000), moraine.NotFound)
		require.ErrorIs(t, grant(foreign), moraine.NotFound)
		c.pass(15*time.Second, nodes[0]) // there is room only for stripes without redundancy
		none := grant(foreign + 1000)
		require.Equal(t, moraine.KindOf(none), moraine.KindOf(grant(foreign)), "of none: %v", none)
	})
}
