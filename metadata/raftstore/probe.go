package raftstore

import (
	"fmt"
	"path/filepath"

	"github.com/morainefs/moraine"
)

// probeStalls is how many times as long as an append the probe may take. A disk
// that was just mounted may have much to do.
const probeStalls = 10

// probeDisk writes and syncs a small file before raft starts, so that a node whose disk hung does
// not come back as a leader. A write that hangs for good cannot be canceled; it ends with the
// process.
func probeDisk(cfg *Config, deps *Deps) error {
	done := make(chan error, 1)
	go func() { done <- writeSynced(deps.FS, filepath.Join(cfg.Dir, probeFile), []byte(cfg.Node)) }()
	patience := probeStalls * cfg.LogStall
	select {
	case err := <-done:
		return err
	case <-deps.Clock.After(patience):
		return &moraine.Error{Op: "raftstore.Open", Ref: cfg.Dir, Kind: moraine.IOError,
			Err: fmt.Errorf("a sync of a few bytes took longer than %v: the disk hangs; replace it if this continues", patience)}
	}
}
