package chunkserver

import (
	"context"
	"errors"
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// until registers the host until the metadata service has accepted it.
func (r *registrar) until(ctx context.Context, f *fleet) error {
	return retry(ctx, r.deps, "register", func(ctx context.Context) error { return r.register(ctx, f) })
}

// register registers the host and its devices, and takes over the answer.
func (r *registrar) register(ctx context.Context, f *fleet) error {
	reply, err := r.ask(ctx, f)
	if err != nil {
		return err
	}
	return r.registered(f, reply)
}

// ask sends the registration of the host and its devices.
func (r *registrar) ask(ctx context.Context, f *fleet) (*wire.RegisterHostReply, error) {
	host := &wire.Host{Id: r.cfg.Node, Rack: r.cfg.Rack, Addresses: r.cfg.Addresses, AdminAddress: r.cfg.AdminAddress, Bucket: r.cfg.Bucket}
	for _, d := range f.devices {
		host.Devices = append(host.Devices, d.describe())
	}
	newest := r.meta.newest()
	resp, err := r.deps.Meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_RegisterHost{
		RegisterHost: &wire.RegisterHost{Host: host, Release: r.cfg.Release,
			SeenIncarnation: uint64(newest.Number), SeenMark: transport.MarkBytes(newest)}}})
	if err != nil {
		return nil, err
	}
	return resp.GetRegisterHost(), nil
}

// registered takes over the answer to a registration: the devices' numbers and boot
// epochs, and the token keys.
func (r *registrar) registered(f *fleet, reply *wire.RegisterHostReply) error {
	if len(reply.GetDevices()) != len(f.devices) || len(reply.GetCluster()) != len(f.cluster) {
		return &moraine.Error{Op: "chunkserver.register", Ref: r.cfg.Node, Kind: moraine.Internal, Err: errors.New("registration answer does not match the request")}
	}
	if got := moraine.UUID(reply.Cluster); got != f.cluster {
		return &moraine.Error{Op: "chunkserver.register", Ref: r.cfg.Node, Kind: moraine.WrongCluster,
			Err: fmt.Errorf("devices belong to cluster %s, but the metadata service is of cluster %s", f.cluster, got)}
	}
	if err := r.meta.followIncarnation(transport.MarkedIncarnation(reply.Incarnation, reply.Mark)); err != nil {
		return err
	}
	for i, w := range reply.Devices {
		d := f.devices[i]
		if d.id == 0 {
			d.id = moraine.DeviceID(w.Id)
			f.byID[d.id] = d
		} else if d.id != moraine.DeviceID(w.Id) {
			return &moraine.Error{Op: "chunkserver.register", Ref: d.dir, Kind: moraine.Internal,
				Err: fmt.Errorf("device %d now has number %d", d.id, w.Id)}
		}
		d.epoch.Store(w.Epoch)
		d.boots.Add(1)
	}
	r.meta.takeKeys(reply.Keys)
	return nil
}
