package raftstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync/atomic"
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
func (s *Store) LowSpace() bool { return s.disk.low() }

// Stalled returns an error while this node waits for an append to its log that hangs.
func (s *Store) Stalled() error { return s.disk.stallError() }

// diskWatch watches the disk of this node: its free space, and appends that hang.
type diskWatch struct {
	cfg     *Config
	deps    *Deps
	fatal   *fatal
	group   *group
	reached *watermark // the index that the state has reached
	log     *raftLog   // set before run

	lowSpace  atomic.Bool
	hangs     atomic.Bool   // an append hangs, and the node waits for it
	stallSaid time.Duration // how long it had lasted when last logged; used by run
}

// low is Store.LowSpace.
func (dw *diskWatch) low() bool { return dw.lowSpace.Load() }

// run checks for an append that hangs, and for free space.
func (dw *diskWatch) run(ctx context.Context) {
	stall := dw.deps.Clock.NewTicker(max(dw.cfg.LogStall/stallChecks, time.Millisecond))
	defer stall.Stop()
	space := dw.deps.Clock.NewTicker(spaceInterval)
	defer space.Stop()
	for {
		select {
		case <-stall.C:
			if !dw.judgeStall() {
				return
			}
		case <-space.C:
			dw.checkSpace()
		case <-ctx.Done():
			return
		}
	}
}

// stallAgain is how often a node that waits for its disk logs it.
const stallAgain = 10 * time.Second

// judgeStall ends the node, and returns false, if an append hangs and another node can take its
// place. A node without other voters waits.
func (dw *diskWatch) judgeStall() bool {
	took := dw.log.stalled()
	hangs := took > dw.cfg.LogStall
	switch {
	case hangs && !dw.group.votesAlone():
		dw.fatal.set(fmt.Errorf("%w: an append has taken %v", errStalled, took.Round(time.Millisecond)))
		return false
	case hangs && took-dw.stallSaid >= stallAgain, hangs && dw.stallSaid == 0:
		dw.deps.Log.Warn("the disk of the log hangs; no other server can lead, so this one waits", "dir", dw.cfg.Dir, "took", took.Round(time.Millisecond))
		dw.stallSaid = took
	case !hangs && dw.stallSaid != 0:
		dw.deps.Log.Warn("the disk of the log answers again", "dir", dw.cfg.Dir)
		dw.stallSaid = 0
	}
	dw.hangs.Store(hangs)
	if hangs {
		dw.deps.Metrics.LogStalled.Set(1)
	} else {
		dw.deps.Metrics.LogStalled.Set(0)
	}
	return true
}

// stallError is Store.Stalled.
func (dw *diskWatch) stallError() error {
	if !dw.hangs.Load() {
		return nil
	}
	return &moraine.Error{Op: "raftstore.Store", Ref: dw.cfg.Dir, Kind: moraine.Unavailable, Err: fmt.Errorf("%w: the server can write nothing until the disk answers", errStalled)}
}

// keepSmall takes snapshots while the disk is nearly full, until ctx ends. This frees the log
// before each, and with the previous snapshot the parts of the state that only it has.
func (dw *diskWatch) keepSmall(ctx context.Context) {
	ticker := dw.deps.Clock.NewTicker(spaceInterval)
	defer ticker.Stop()
	var covered uint64 // applied at the last snapshot
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		applied := dw.reached.value()
		if !dw.low() || covered > 0 && applied < covered+dw.lowSpaceEntries() {
			continue
		}
		// The loop retries a snapshot that fails for lack of space. The wait ends when raft ends.
		if err := dw.group.raft.Snapshot().Error(); err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) {
			dw.deps.Log.Warn("could not take a snapshot to free space", "err", err)
			continue
		}
		covered = applied
	}
}

// lowSpaceEntries is the number of entries between snapshots while the disk is nearly full.
func (dw *diskWatch) lowSpaceEntries() uint64 { return max(1, dw.cfg.SnapshotEntries/8) }

// checkSpace sets LowSpace, and deletes or restores the ballast. Low space ends only a fifth above
// where it began, to avoid flapping.
func (dw *diskWatch) checkSpace() {
	usage, err := dw.deps.FS.Usage(dw.cfg.Dir)
	if err != nil || usage.Total == 0 {
		dw.deps.Log.Warn("could not read the free space of the metadata disk", "err", err)
		return
	}
	limit := dw.cfg.MinFree
	if dw.lowSpace.Load() {
		limit *= 1.2
	}
	// The space of deleted ballast does not count as free, because the ballast must be restored.
	free := float64(usage.Free) - float64(dw.missingBallast())
	low := free < limit*float64(usage.Total)
	// Do this before low space is reported: the snapshot that keepSmall then takes needs the
	// ballast's space.
	if err := dw.keepBallast(usage, low); err != nil {
		dw.deps.Log.Warn("could not resize the ballast file", "err", err)
	}
	if low != dw.lowSpace.Swap(low) {
		dw.deps.Log.Warn("free space of the metadata disk", "low", low, "free", usage.Free, "total", usage.Total)
	}
	if low {
		dw.deps.Metrics.LowSpace.Set(1)
	} else {
		dw.deps.Metrics.LowSpace.Set(0)
	}
}

// missingBallast returns the missing bytes of the ballast.
func (dw *diskWatch) missingBallast() int64 {
	info, err := dw.deps.FS.Stat(filepath.Join(dw.cfg.Dir, ballastFile))
	if err == nil && info.Size == dw.cfg.BallastBytes {
		return 0
	}
	return max(0, dw.cfg.BallastBytes)
}

// keepBallast makes the ballast file if there is room, and deletes it when less is free than its
// size.
func (dw *diskWatch) keepBallast(usage vfs.Usage, low bool) error {
	size := dw.cfg.BallastBytes
	name := filepath.Join(dw.cfg.Dir, ballastFile)
	info, err := dw.deps.FS.Stat(name)
	there := err == nil && info.Size == size
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	switch {
	case size < 0:
		return nil
	case there && usage.Free < uint64(size):
		dw.deps.Log.Error("the metadata disk is full: the server deletes its ballast", "bytes", size)
		return dw.deps.FS.Remove(name)
	case there || low || usage.Free < 4*uint64(size):
		return nil
	}
	f, err := dw.deps.FS.Open(name, vfs.Create)
	if err != nil {
		return err
	}
	return errors.Join(f.Allocate(0, size), f.Close())
}
