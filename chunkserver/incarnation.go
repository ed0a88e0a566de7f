package chunkserver

import (
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/tiers/disk"
)

// A chunkserver stores, on its devices, the newest incarnation of the metadata that
// it received, and follows no older one. It ignores deletions and token keys from
// servers of a superseded incarnation.

// loadIncarnation loads the incarnation stored on the devices.
func (s *Server) loadIncarnation() {
	for _, cfg := range s.cfg.Devices {
		stored, err := disk.ReadIncarnation(s.deps.FS, cfg.Dir)
		if err != nil { // another device has it, or the metadata service reports it
			s.deps.Log.Warn("incarnation read failed", "device", cfg.Dir, "err", err)
			continue
		}
		if stored.Outlives(s.NewestIncarnation()) {
			s.newestIncarnation.Store(&stored)
		}
	}
}

// NewestIncarnation is the newest incarnation of the metadata that this server
// received; number 0 before the first.
func (s *Server) NewestIncarnation() moraine.MarkedIncarnation {
	if h := s.newestIncarnation.Load(); h != nil {
		return *h
	}
	return moraine.MarkedIncarnation{}
}

// followIncarnation records the incarnation that the metadata service reports. It
// fails if that is not the newest.
func (s *Server) followIncarnation(said moraine.MarkedIncarnation) error {
	newest := s.NewestIncarnation()
	switch {
	case said.Number == 0 || said == newest:
		return nil
	case said.Outlives(newest):
		return s.remember(said, newest)
	}
	s.deps.Metrics.Outlived.Inc()
	why := fmt.Errorf("metadata service has incarnation %v, but this host has seen %v: servers from before a restore or a forced quorum run again; stop them", said, newest)
	if !newest.Outlives(said) {
		why = fmt.Errorf("metadata service has incarnation %v, but this host follows %v: the number was assigned twice; stop the servers of the unwanted one", said, newest)
	}
	return &moraine.Error{Op: "chunkserver", Ref: s.cfg.Node, Kind: moraine.Fenced, Err: why}
}

// remember stores a newer incarnation on all devices. The first incarnation needs
// no record, since there is no older one.
func (s *Server) remember(said, newest moraine.MarkedIncarnation) error {
	if said.Number > 1 {
		noted := 0
		for _, cfg := range s.cfg.Devices {
			if _, err := disk.ReadIdentity(s.deps.FS, cfg.Dir); err != nil {
				continue // no device, or none that works
			}
			if err := disk.WriteIncarnation(s.deps.FS, cfg.Dir, said); err != nil {
				s.deps.Log.Warn("incarnation write failed", "device", cfg.Dir, "err", err)
				continue
			}
			noted++
		}
		if noted == 0 {
			return &moraine.Error{Op: "chunkserver", Ref: s.cfg.Node, Kind: moraine.IOError,
				Err: fmt.Errorf("no device could store that the metadata is at incarnation %v", said)}
		}
	}
	if newest.Number != 0 {
		s.deps.Log.Warn("metadata incarnation changed", "incarnation", said.String(), "before", newest.String())
	}
	s.applied.Store(0) // log indexes of the earlier incarnation do not compare
	s.newestIncarnation.Store(&said)
	if newest.Number != 0 {
		s.fleet.Load().reportAgain()
	}
	return nil
}

// Incarnation is the number of NewestIncarnation. The transport's server gets it,
// like Key.
func (s *Server) Incarnation() moraine.Incarnation { return s.NewestIncarnation().Number }
