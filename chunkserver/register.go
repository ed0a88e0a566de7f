package chunkserver

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// registerUntil registers the host until the metadata service has accepted it.
func (s *Server) registerUntil(ctx context.Context, f *fleet) error {
	return s.retry(ctx, "register", func(ctx context.Context) error { return s.register(ctx, f) })
}

// register registers the host and its devices, and takes over the answer.
func (s *Server) register(ctx context.Context, f *fleet) error {
	reply, err := s.askToRegister(ctx, f)
	if err != nil {
		return err
	}
	return s.registered(f, reply)
}

// askToRegister sends the registration of the host and its devices.
func (s *Server) askToRegister(ctx context.Context, f *fleet) (*wire.RegisterHostReply, error) {
	host := &wire.Host{Id: s.cfg.Node, Rack: s.cfg.Rack, Addresses: s.cfg.Addresses, AdminAddress: s.cfg.AdminAddress, Bucket: s.cfg.Bucket}
	for _, d := range f.devices {
		host.Devices = append(host.Devices, d.describe())
	}
	newest := s.NewestIncarnation()
	resp, err := s.deps.Meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_RegisterHost{
		RegisterHost: &wire.RegisterHost{Host: host, Release: s.cfg.Release,
			HeardIncarnation: uint64(newest.Number), HeardMark: transport.MarkBytes(newest)}}})
	if err != nil {
		return nil, err
	}
	return resp.GetRegisterHost(), nil
}

// registered takes over the answer to a registration: the devices' numbers and boot
// epochs, and the token keys.
func (s *Server) registered(f *fleet, reply *wire.RegisterHostReply) error {
	if len(reply.GetDevices()) != len(f.devices) || len(reply.GetCluster()) != len(f.cluster) {
		return &moraine.Error{Op: "chunkserver.register", Ref: s.cfg.Node, Kind: moraine.Internal, Err: errors.New("registration answer does not match the request")}
	}
	if got := moraine.UUID(reply.Cluster); got != f.cluster {
		return &moraine.Error{Op: "chunkserver.register", Ref: s.cfg.Node, Kind: moraine.WrongCluster,
			Err: fmt.Errorf("devices belong to cluster %s, but the metadata service is of cluster %s", f.cluster, got)}
	}
	if err := s.followIncarnation(transport.MarkedIncarnation(reply.Incarnation, reply.Mark)); err != nil {
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
	}
	s.takeKeys(reply.Keys)
	return nil
}

// takeKeys takes over the public keys that verify tokens.
func (s *Server) takeKeys(keys []*wire.SigningKey) {
	m := make(map[uint64]ed25519.PublicKey, len(keys))
	for _, k := range keys {
		if len(k.PublicKey) == ed25519.PublicKeySize {
			m[k.Id] = k.PublicKey
		}
	}
	s.keys.Store(&m)
}
