package raftstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
)

const (
	spaceInterval = 5 * time.Second
	stallChecks   = 8 // checks of the append in progress per Config.LogStall
)

// LowSpace reports whether the node's disk is nearly full. The service then refuses requests that
// make the state grow, and accepts those that free space.
func (s *Store) LowSpace() bool { return s.lowSpace.Load() }

// watchDisk checks for an append that hangs, and for free space.
func (s *Store) watchDisk(ctx context.Context) {
	stall := s.deps.Clock.NewTicker(max(s.cfg.LogStall/stallChecks, time.Millisecond))
	defer stall.Stop()
	space := s.deps.Clock.NewTicker(spaceInterval)
	defer space.Stop()
	for {
		select {
		case <-stall.C:
			if !s.judgeStall() {
				return
			}
		case <-space.C:
			s.checkSpace()
		case <-ctx.Done():
			return
		}
	}
}

// stallAgain is how often a node that waits for its disk logs it.
const stallAgain = 10 * time.Second

// judgeStall ends the node, and returns false, if an append hangs and another node can take its
// place. A node without other voters waits.
func (s *Store) judgeStall() bool {
	took := s.log.stalled()
	hangs := took > s.cfg.LogStall
	switch {
	case hangs && !s.votesAlone():
		s.fatal.set(fmt.Errorf("%w: an append has taken %v", errStalled, took.Round(time.Millisecond)))
		return false
	case hangs && took-s.stallSaid >= stallAgain, hangs && s.stallSaid == 0:
		s.deps.Log.Warn("the disk of the log hangs; no other server can lead, waiting for it", "dir", s.cfg.Dir, "took", took.Round(time.Millisecond))
		s.stallSaid = took
	case !hangs && s.stallSaid != 0:
		s.deps.Log.Warn("the disk of the log answers again", "dir", s.cfg.Dir)
		s.stallSaid = 0
	}
	s.stalled.Store(hangs)
	if hangs {
		s.deps.Metrics.LogStalled.Set(1)
	} else {
		s.deps.Metrics.LogStalled.Set(0)
	}
	return true
}

// votesAlone reports whether the group has no other voter.
func (s *Store) votesAlone() bool {
	servers, _ := s.configuration()
	return !slices.ContainsFunc(servers, func(srv raft.Server) bool {
		return srv.Suffrage == raft.Voter && string(srv.ID) != s.cfg.Node
	})
}

// Stalled returns an error while this node waits for an append to its log that hangs.
func (s *Store) Stalled() error {
	if !s.stalled.Load() {
		return nil
	}
	return &moraine.Error{Op: "raftstore.Store", Ref: s.cfg.Dir, Kind: moraine.Unavailable, Err: fmt.Errorf("%w: nothing can be written until it answers", errStalled)}
}

// keepSmall takes snapshots while the disk is nearly full, until ctx ends. This frees the log
// before each, and with the previous snapshot the parts of the state that only it has.
func (s *Store) keepSmall(ctx context.Context) {
	ticker := s.deps.Clock.NewTicker(spaceInterval)
	defer ticker.Stop()
	var covered uint64 // applied at the last snapshot
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		applied := s.machine.last.value()
		if !s.LowSpace() || covered > 0 && applied < covered+s.lowSpaceEntries() {
			continue
		}
		// If it fails for lack of space it is retried; raft's end ends it.
		if err := s.raft.Snapshot().Error(); err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) {
			s.deps.Log.Warn("a snapshot, to make room, was not taken", "err", err)
			continue
		}
		covered = applied
	}
}

// lowSpaceEntries is the number of entries between snapshots while the disk is nearly full.
func (s *Store) lowSpaceEntries() uint64 { return max(1, s.cfg.SnapshotEntries/8) }

// checkSpace sets LowSpace, and deletes or restores the ballast. Low space ends only a fifth above
// where it began, to avoid flapping.
func (s *Store) checkSpace() {
	usage, err := s.deps.FS.Usage(s.cfg.Dir)
	if err != nil || usage.Total == 0 {
		s.deps.Log.Warn("the free space is unknown", "err", err)
		return
	}
	limit := s.cfg.MinFree
	if s.lowSpace.Load() {
		limit *= 1.2
	}
	// The space of deleted ballast does not count as free, because the ballast must be restored.
	free := float64(usage.Free) - float64(s.missingBallast())
	low := free < limit*float64(usage.Total)
	// Do this before low space is reported: the snapshot that keepSmall then takes needs the
	// ballast's space.
	if err := s.keepBallast(usage, low); err != nil {
		s.deps.Log.Warn("ballast", "err", err)
	}
	if low != s.lowSpace.Swap(low) {
		s.deps.Log.Warn("free space of the metadata disk", "low", low, "free", usage.Free, "total", usage.Total)
	}
	if low {
		s.deps.Metrics.LowSpace.Set(1)
	} else {
		s.deps.Metrics.LowSpace.Set(0)
	}
}

// missingBallast returns the missing bytes of the ballast.
func (s *Store) missingBallast() int64 {
	info, err := s.deps.FS.Stat(filepath.Join(s.cfg.Dir, ballastFile))
	if err == nil && info.Size == s.cfg.BallastBytes {
		return 0
	}
	return max(0, s.cfg.BallastBytes)
}

// keepBallast makes the ballast file if there is room, and deletes it when less is free than its
// size.
func (s *Store) keepBallast(usage vfs.Usage, low bool) error {
	size := s.cfg.BallastBytes
	name := filepath.Join(s.cfg.Dir, ballastFile)
	info, err := s.deps.FS.Stat(name)
	there := err == nil && info.Size == size
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	switch {
	case size < 0:
		return nil
	case there && usage.Free < uint64(size):
		s.deps.Log.Error("the metadata disk is full: its ballast is given up", "bytes", size)
		return s.deps.FS.Remove(name)
	case there || low || usage.Free < 4*uint64(size):
		return nil
	}
	f, err := s.deps.FS.Open(name, vfs.Create)
	if err != nil {
		return err
	}
	return errors.Join(f.Allocate(0, size), f.Close())
}
