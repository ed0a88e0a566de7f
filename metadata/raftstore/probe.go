package raftstore

import (
	"fmt"
	"path/filepath"

	"github.com/morainefs/moraine"
)

// probeStalls is how many times as long as an append the probe may take: a disk that
// has just been mounted may have much to do.
const probeStalls = 10

// probeDisk writes and syncs a small file. A node whose disk hung must not come back
// as a leader: it does not start raft before that is done. One that hangs for good
// cannot be called back; it ends with the process.
func (s *Store) probeDisk() error {
	done := make(chan error, 1)
	go func() { done <- writeSynced(s.deps.FS, filepath.Join(s.cfg.Dir, probeFile), []byte(s.cfg.Node)) }()
	patience := probeStalls * s.cfg.LogStall
	select {
	case err := <-done:
		return err
	case <-s.deps.Clock.After(patience):
		return &moraine.Error{Op: "raftstore.Open", Ref: s.cfg.Dir, Kind: moraine.IOError,
			Err: fmt.Errorf("a write of a few bytes was not synced within %v: the disk hangs; replace it if it goes on", patience)}
	}
}
