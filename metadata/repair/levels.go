package repair

import (
	"context"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state/content"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/statepb"
)

const (
	// raisePoll is how often the leader inspects files below level nvme if no device has reported
	// chunks.
	raisePoll = 5 * time.Second
	// raisePause is the pause between two inspections, so that one covers the reports of many
	// devices.
	raisePause = 100 * time.Millisecond
	// raiseRows is the number of rows inspected at once.
	raiseRows = 512
	// lostExtents is the number of extents inspected at once for losses behind the first extents of
	// a file. A file of 1 TiB takes a minute or two.
	lostExtents = 4096
)

// Levels raises files to the level that their chunks have reached.
type Levels struct {
	*lead.Term
	settled lead.Poke // chunks that were only in memory are on their devices, or gone
}

// raiseLevels sets files to the level that their chunks have reached, or records them as lost,
// until ctx ends. The row of each file below nvme has its progress, so that the next leader
// continues where this one stopped.
func (lv *Levels) raiseLevels(ctx context.Context) {
	var looked content.FilePlace
	var last time.Time
	for {
		err := lv.raiseOnce(ctx)
		if now := lv.Clock.Now(); err == nil && now.Sub(last) >= raisePoll {
			last = now
			looked, err = lv.findLost(ctx, looked)
		}
		if err != nil && ctx.Err() == nil {
			lv.Log.Warn("the levels of files could not be raised; trying again", "err", err)
		}
		if !lv.Pause(ctx, nil, raisePause) || !lv.Pause(ctx, lv.settled, raisePoll) {
			return
		}
	}
}

// raiseOnce inspects every row once.
func (lv *Levels) raiseOnce(ctx context.Context) error {
	for after := moraine.InodeID(0); ; {
		var ids []moraine.InodeID
		var last moraine.InodeID
		err := lv.Store.View(func(r kvtx.Reader, _ uint64) (err error) {
			ids, last, err = content.Raisable(lv.Machine.View(r), after, raiseRows, content.MaxRaised)
			return err
		})
		if err != nil {
			return err
		}
		if len(ids) > 0 {
			op := &statepb.RaiseLevels{}
			for _, id := range ids {
				op.Inodes = append(op.Inodes, uint64(id))
			}
			if _, err := lv.Command(ctx, &statepb.Command{Op: &statepb.Command_RaiseLevels{RaiseLevels: op}}); err != nil {
				return err
			}
			lv.settled.Set() // these files may need more
		}
		if last == 0 {
			return nil
		}
		after = last
	}
}

// findLost continues the search for lost bytes of files in memory, and returns where to continue.
// It proposes only what it finds, because a file may stay in memory for long.
func (lv *Levels) findLost(ctx context.Context, from content.FilePlace) (next content.FilePlace, err error) {
	var lost []content.FilePlace
	err = lv.Store.View(func(r kvtx.Reader, _ uint64) (err error) {
		lost, next, err = content.FindLost(lv.Machine.View(r), from, lostExtents)
		return err
	})
	if err != nil || len(lost) == 0 {
		return next, err
	}
	op := &statepb.RaiseLevels{}
	for _, at := range lost {
		op.Lost = append(op.Lost, &statepb.FilePlace{Inode: uint64(at.Inode), Offset: uint64(at.Offset)})
	}
	if _, err := lv.Command(ctx, &statepb.Command{Op: &statepb.Command_RaiseLevels{RaiseLevels: op}}); err != nil {
		return from, err
	}
	return next, nil
}
