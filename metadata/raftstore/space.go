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
	stallChecks   = 8 // looks at the append in progress per Config.LogStall
)

// LowSpace reports whether the node's disk is nearly full: the service then
// refuses what makes the state grow, and accepts what frees space.
func (s *Store) LowSpace() bool { return s.lowSpace.Load() }

// watchDisk looks after an append that hangs, and the free space.
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

// stallAgain is how often a node that waits for its disk says so.
const stallAgain = 10 * time.Second

// judgeStall ends the node when an append hangs and another one can take its place: it
// returns false. One without other voters has nobody to leave it to, and waits.
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

// keepSmall takes a snapshot now and then while the disk is nearly full, until ctx
// ends: the log before it goes, and with the snapshot before it what it alone holds
// of the state.
func (s *Store) keepSmall(ctx context.Context) {
	ticker := s.deps.Clock.NewTicker(spaceInterval)
	defer ticker.Stop()
	var covered uint64 // applied at the last one
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
		// One that fails for want of space is tried again; raft ends it when it ends.
		if err := s.raft.Snapshot().Error(); err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) {
			s.deps.Log.Warn("a snapshot, to make room, was not taken", "err", err)
			continue
		}
		covered = applied
	}
}

// lowSpaceEntries is after how many entries another snapshot is taken while the
// disk is nearly full.
func (s *Store) lowSpaceEntries() uint64 { return max(1, s.cfg.SnapshotEntries/8) }

// checkSpace sets LowSpace, and gives up or restores the ballast. It leaves low
// space a fifth above where it entered it, so as not to flap.
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
	// What was given up is not free: it is to come back.
	free := float64(usage.Free) - float64(s.missingBallast())
	low := free < limit*float64(usage.Total)
	// Before it is told that room is scarce: the snapshot that keepSmall then takes
	// needs what the ballast gives back.
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

// missingBallast returns how many bytes of the ballast are not there.
func (s *Store) missingBallast() int64 {
	info, err := s.deps.FS.Stat(filepath.Join(s.cfg.Dir, ballastFile))
	if err == nil && info.Size == s.cfg.BallastBytes {
		return 0
	}
	return max(0, s.cfg.BallastBytes)
}

// keepBallast makes the ballast file while there is room, and gives it up when
// less is free than it would take.
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
