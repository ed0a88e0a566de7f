// Package view says what several commands show of a cluster, in the same words: servers,
// lost files, bad objects, buckets, and repairs that wait.
//
// One path through it: `cluster status` and `host ls` request a wire.ClusterReply
// (GetCluster) -> ServerStatus turns each host into up, down or unknown -> Shout
// capitalises what is not good.
package view

import (
	"context"
	"strings"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
)

// Shout writes the state of a server; it capitalises a state that is not good.
func Shout(status string) string {
	if status == ServerUp {
		return status
	}
	return strings.ToUpper(status)
}

// Known returns v where the leader knows it, otherwise ServerUnknown.
func Known(is bool, v any) any {
	if is {
		return v
	}
	return ServerUnknown
}

// UpDown writes whether a server is up; it capitalises one that is down.
func UpDown(alive bool) string {
	if alive {
		return ServerUp
	}
	return strings.ToUpper(ServerDown)
}

// CurrentCluster requests once what the metadata service knows of the cluster.
func CurrentCluster(ctx context.Context, env *cli.Env) (*wire.ClusterReply, error) {
	c, err := env.Dial(ctx)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return GetCluster(ctx, c.Client)
}

// GetCluster requests what the metadata service knows of the cluster.
func GetCluster(ctx context.Context, c *client.Client) (*wire.ClusterReply, error) {
	return GetClusterAs(ctx, c, &wire.GetCluster{})
}

// GetClusterAs is GetCluster with the properties that req names.
func GetClusterAs(ctx context.Context, c *client.Client, req *wire.GetCluster) (*wire.ClusterReply, error) {
	resp, err := rawclient.Of(c).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: req}})
	return resp.GetCluster(), err
}

// States of a server.
const (
	ServerUp      = "up"
	ServerDown    = "down"
	ServerUnknown = "unknown"
)

// ServerStatus is the state of a server. alive says whether it counts as alive, seen
// whether the leader has received something from it.
func ServerStatus(alive, seen bool) string {
	switch {
	case !seen && alive:
		return ServerUnknown
	case !alive:
		return ServerDown
	}
	return ServerUp
}

// InService reports whether the chunks of a device count: it is not out, and not retired.
func InService(d *wire.Device) bool {
	return d.State == wire.DeviceState_DEVICE_STATE_IN || d.State == wire.DeviceState_DEVICE_STATE_DRAINING
}
