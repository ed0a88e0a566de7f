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
func (ms *metaState) loadIncarnation() {
	for _, cfg := range ms.cfg.Devices {
		stored, err := disk.ReadIncarnation(ms.deps.FS, cfg.Dir)
		if err != nil { // another device has it, or the metadata service reports it
			ms.deps.Log.Warn("incarnation read failed", "device", cfg.Dir, "err", err)
			continue
		}
		if stored.Outlives(ms.newest()) {
			ms.newestIncarnation.Store(&stored)
		}
	}
}

// followIncarnation records the incarnation that the metadata service reports. It
// fails if that is not the newest.
func (ms *metaState) followIncarnation(said moraine.MarkedIncarnation) error {
	newest := ms.newest()
	switch {
	case said.Number == 0 || said == newest:
		return nil
	case said.Outlives(newest):
		return ms.remember(said, newest)
	}
	ms.deps.Metrics.Outlived.Inc()
	why := fmt.Errorf("metadata service has incarnation %v, but this host has seen %v: servers from before a restore or a forced quorum run again; stop them", said, newest)
	if !newest.Outlives(said) {
		why = fmt.Errorf("metadata service has incarnation %v, but this host follows %v: the number was assigned twice; stop the servers of the unwanted one", said, newest)
	}
	return &moraine.Error{Op: "chunkserver", Ref: ms.cfg.Node, Kind: moraine.Fenced, Err: why}
}

// remember stores a newer incarnation on all devices. The first incarnation needs
// no record, since there is no older one.
func (ms *metaState) remember(said, newest moraine.MarkedIncarnation) error {
	if said.Number > 1 {
		noted := 0
		for _, cfg := range ms.cfg.Devices {
			if _, err := disk.ReadIdentity(ms.deps.FS, cfg.Dir); err != nil {
				continue // no device, or none that works
			}
			if err := disk.WriteIncarnation(ms.deps.FS, cfg.Dir, said); err != nil {
				ms.deps.Log.Warn("incarnation write failed", "device", cfg.Dir, "err", err)
				continue
			}
			noted++
		}
		if noted == 0 {
			return &moraine.Error{Op: "chunkserver", Ref: ms.cfg.Node, Kind: moraine.IOError,
				Err: fmt.Errorf("no device could store the metadata's incarnation %v", said)}
		}
	}
	if newest.Number != 0 {
		ms.deps.Log.Warn("metadata incarnation changed", "incarnation", said.String(), "before", newest.String())
	}
	ms.applied.Store(0) // log indexes of the earlier incarnation do not compare
	ms.newestIncarnation.Store(&said)
	if newest.Number != 0 {
		ms.fleet.Load().reportAgain()
	}
	return nil
}
