package bench

import (
	"cmp"
	"context"
	"slices"

	"github.com/morainefs/moraine"
)

// saves measures the stall of the ranks, and the time from the last seal to each level.
func (r *ckptRun) saves(ctx context.Context, to *figures) error {
	bytes := r.trainers.bytes
	stall, err := r.median(ctx, moraine.Local, func(s *saved) float64 { return s.worst().Seconds() })
	if err != nil {
		return err
	}
	stall.wall = stall.worst()
	to.add(func(l *ckptLimits) Line {
		return r.rate("ckpt-stall", bytes, stall.usage, stall.wrote).against(l.copyCRC, "copy+crc")
	})
	to.add(figure(Line{Name: r.name("ckpt-stall-time"), Value: stall.worst().Seconds(), Unit: "s of the slowest rank"}))
	memory, err := r.median(ctx, moraine.Memory, tookSeconds)
	if err != nil {
		return err
	}
	to.add(func(l *ckptLimits) Line {
		return r.rate("ckpt-memory", bytes, memory.usage, memory.wrote).against(l.loopbackPut/1.5, "loopback/1.5")
	})
	nvme, err := r.median(ctx, moraine.NVMe, tookSeconds)
	if err != nil {
		return err
	}
	to.add(func(l *ckptLimits) Line {
		return r.rate("ckpt-nvme", bytes, nvme.usage, nvme.wrote).against(l.diskWrite/1.5, "disk/1.5")
	})
	r.Progress("a save to %s", moraine.Object)
	object, err := r.settledSave(ctx, moraine.Object)
	if err != nil {
		return err
	}
	to.add(func(l *ckptLimits) Line {
		return r.rate("ckpt-object", bytes, object.usage, object.wrote).against(l.bucketPut, "plain PUT into the bucket")
	})
	return nil
}

func tookSeconds(s *saved) float64 { return s.took.Seconds() }

// median saves some steps to a level, one after the other, and returns the one in the middle.
func (r *ckptRun) median(ctx context.Context, level moraine.Level, by func(*saved) float64) (*saved, error) {
	r.Progress("%d saves to %s", measuredSaves, level)
	var all []*saved
	for range measuredSaves {
		s, err := r.settledSave(ctx, level)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b *saved) int { return cmp.Compare(by(a), by(b)) })
	return all[len(all)/2], nil
}
