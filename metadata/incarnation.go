package metadata

import (
	"bytes"
	"fmt"
	"io"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/raftstore"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// NextIncarnation returns the beginning of the incarnation after `after`, which must not be below
// any that the cluster ever had. It reads the mark from random.
func NextIncarnation(after moraine.Incarnation, random io.Reader) (raftstore.Beginning, error) {
	if after >= fleet.MaxIncarnation {
		return raftstore.Beginning{}, &moraine.Error{Op: "metadata.NextIncarnation", Kind: moraine.TooLarge, Err: fmt.Errorf("%d is the last incarnation number", after)}
	}
	next := moraine.MarkedIncarnation{Number: after + 1}
	if _, err := io.ReadFull(random, next.Mark[:]); err != nil {
		return raftstore.Beginning{}, err
	}
	cmd, err := proto.Marshal(&statepb.Command{Version: 1, Op: &statepb.Command_RaiseIncarnation{RaiseIncarnation: &statepb.RaiseIncarnation{After: uint32(after)}}})
	return raftstore.Beginning{Incarnation: next, Entry: state.EncodeEntry([][]byte{cmd})}, err
}

// Known is what the directory of a stopped metadata server knows of the cluster.
type Known struct {
	// Incarnation is the highest number that it had or received.
	Incarnation moraine.Incarnation
	// Hosts are the chunkservers in its state and log, which may have received a higher one.
	Hosts []*wire.Host
}

// KnownIn reads the directory dir without changing it.
func KnownIn(fsys vfs.FS, dir string) (Known, error) {
	id, err := raftstore.ReadIdentity(fsys, dir)
	if err != nil {
		return Known{}, err
	}
	k := Known{Incarnation: max(id.Incarnation.Number, id.OutlivedBy)}
	machine, reached := state.New(partition), uint64(0)
	err = raftstore.InspectState(fsys, dir, func(r kvtx.Reader, applied uint64) (err error) {
		reached = applied
		number, err := numberOf(r)
		if err != nil {
			return err
		}
		k.Incarnation = max(k.Incarnation, number)
		k.Hosts, err = fleet.Hosts(machine.View(r))
		return err
	})
	if err != nil && moraine.KindOf(err) != moraine.NotFound {
		return k, err
	}
	// A restored or forced directory that never started has this only in its log. So does a killed
	// server that applied entries since it last wrote its state.
	return k, raftstore.InspectLog(fsys, dir, func(e raftstore.EntryInfo) error {
		if e.Index > reached && e.Damage == nil && e.Kind == "command" {
			k.Incarnation = raisedBy(e.Data, k.Incarnation)
			k.Hosts = registeredBy(e.Data, k.Hosts)
		}
		return nil
	})
}

// raisedBy returns the incarnation after an entry.
func raisedBy(data []byte, now moraine.Incarnation) moraine.Incarnation {
	cmds, err := state.DecodeEntry(data)
	if err != nil {
		return now // the start of the server reports it
	}
	for _, cmd := range cmds {
		switch op := cmd.Op.(type) {
		case *statepb.Command_Init:
			now = max(now, moraine.Incarnation(min(op.Init.Incarnation, fleet.MaxIncarnation)))
		case *statepb.Command_RaiseIncarnation:
			now = max(now, moraine.Incarnation(min(op.RaiseIncarnation.After, fleet.MaxIncarnation-1))+1)
		}
	}
	return now
}

// registeredBy returns hosts with those that an entry registers, with the addresses and devices
// that it names. Known devices stay, and so does a host that is removed later: its silence must
// then be explained.
func registeredBy(data []byte, hosts []*wire.Host) []*wire.Host {
	cmds, err := state.DecodeEntry(data)
	if err != nil {
		return hosts
	}
	for _, cmd := range cmds {
		h := cmd.GetRequest().GetRegisterHost().GetHost()
		if h == nil {
			continue
		}
		i := slices.IndexFunc(hosts, func(known *wire.Host) bool { return known.Id == h.Id })
		if i < 0 {
			hosts = append(hosts, h)
			continue
		}
		known := hosts[i]
		known.Addresses = h.Addresses
		for _, d := range h.Devices {
			if !slices.ContainsFunc(known.Devices, func(k *wire.Device) bool { return bytes.Equal(k.Uuid, d.Uuid) }) {
				known.Devices = append(known.Devices, d)
			}
		}
	}
	return hosts
}

// seeIncarnation passes the number in the state to the store.
func (s *Server) seeIncarnation(m lead.Seating) {
	_ = s.store.View(func(r kvtx.Reader, _ uint64) error { // not open yet, or closed: a later call succeeds
		number, err := numberOf(r)
		if err == nil {
			m.SawIncarnation(number)
		}
		return err
	})
}

// outlivedBy stops this server if it receives a newer incarnation than its own.
func (s *Server) outlivedBy(said moraine.MarkedIncarnation, who string) {
	own := s.ownIncarnation()
	if m := s.seating(); m != nil && own.Number != 0 && said.Outlives(own) {
		s.deps.Metrics.Outlived.Inc()
		s.deps.Log.Error("this server has an abandoned incarnation of the metadata: it stops", "err", m.Abandon(said, who))
	}
}
