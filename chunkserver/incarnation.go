package chunkserver

import (
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/tiers/disk"
)

// A chunkserver remembers, on its devices, the newest incarnation of the metadata
// that it has heard of, and follows no older one: what servers of one that was given
// up ask to be deleted, or say of tokens, is nothing to it.

// loadIncarnation takes over what the devices remember.
func (s *Server) loadIncarnation() {
	for _, cfg := range s.cfg.Devices {
		heard, err := disk.ReadIncarnation(s.deps.FS, cfg.Dir)
		if err != nil { // another device tells, or the service does
			s.deps.Log.Warn("a device does not tell which incarnation of the metadata it has heard of", "device", cfg.Dir, "err", err)
			continue
		}
		if heard.Outlives(s.NewestIncarnation()) {
			s.newestIncarnation.Store(&heard)
		}
	}
}

// NewestIncarnation is the newest incarnation of the metadata that this server has heard of; of
// number 0 before it has heard of any.
func (s *Server) NewestIncarnation() moraine.MarkedIncarnation {
	if h := s.newestIncarnation.Load(); h != nil {
		return *h
	}
	return moraine.MarkedIncarnation{}
}

// followIncarnation takes in of which incarnation the service says that it is, and fails where
// that is not the newest.
func (s *Server) followIncarnation(said moraine.MarkedIncarnation) error {
	heard := s.NewestIncarnation()
	switch {
	case said.Number == 0 || said == heard:
		return nil
	case said.Outlives(heard):
		return s.remember(said, heard)
	}
	s.deps.Metrics.Outlived.Inc()
	why := fmt.Errorf("the metadata service that answers is of incarnation %v, and this host has heard of %v: servers that were given up by a restore or a forced quorum run again; end them", said, heard)
	if !heard.Outlives(said) {
		why = fmt.Errorf("the metadata service that answers is of incarnation %v, and this host follows %v: the number was given out twice; end the servers of the one that is not wanted", said, heard)
	}
	return &moraine.Error{Op: "chunkserver", Ref: s.cfg.Node, Kind: moraine.Fenced, Err: why}
}

// remember notes a newer incarnation on all devices. The first one, which nothing
// outlives, needs no note.
func (s *Server) remember(said, heard moraine.MarkedIncarnation) error {
	if said.Number > 1 {
		noted := 0
		for _, cfg := range s.cfg.Devices {
			if _, err := disk.ReadIdentity(s.deps.FS, cfg.Dir); err != nil {
				continue // no device, or none that works
			}
			if err := disk.WriteIncarnation(s.deps.FS, cfg.Dir, said); err != nil {
				s.deps.Log.Warn("could not note the incarnation of the metadata", "device", cfg.Dir, "err", err)
				continue
			}
			noted++
		}
		if noted == 0 {
			return &moraine.Error{Op: "chunkserver", Ref: s.cfg.Node, Kind: moraine.IOError,
				Err: fmt.Errorf("no device could note that the metadata is at incarnation %v", said)}
		}
	}
	if heard.Number != 0 {
		s.deps.Log.Warn("the metadata is of another incarnation now; no older one is followed any more", "incarnation", said.String(), "before", heard.String())
	}
	s.applied.Store(0) // entries of the one before are no measure
	s.newestIncarnation.Store(&said)
	if heard.Number != 0 {
		s.fleet.Load().reportAgain()
	}
	return nil
}

// Incarnation is the number of Heard. It is given to the transport's server, as
// Key is.
func (s *Server) Incarnation() moraine.Incarnation { return s.NewestIncarnation().Number }
