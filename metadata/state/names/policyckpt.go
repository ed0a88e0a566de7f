package names

import (
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// maxKeepTags bounds the tags of one level of a policy.
const maxKeepTags = 16

// maxQuietMillis bounds how long a directory may have to stay as it is: a day.
const maxQuietMillis = 24 * 60 * 60 * 1000

// checkpointPolicy adds the part for checkpoints to a directory's policy.
func checkpointPolicy(p *record.Policy, dir *record.Inode, w *wire.CheckpointPolicy) error {
	bad := func(format string, args ...any) error {
		return kvtx.Fail(moraine.InvalidArgument, "set policy", dir.Id.String(), format, args...)
	}
	if p.Format = w.GetFormat(); p.Format < 0 || p.Format > wire.CheckpointFormat_CHECKPOINT_FORMAT_HF {
		return bad("checkpoint format %d is unknown", p.Format)
	}
	if p.QuietMillis = w.GetQuietMillis(); p.QuietMillis > maxQuietMillis {
		return bad("a directory must stay as it is for %d ms, %d at most", p.QuietMillis, maxQuietMillis)
	}
	if p.QuietMillis > 0 && p.Format <= wire.CheckpointFormat_CHECKPOINT_FORMAT_NONE {
		return bad("a time without changes goes with a format of directories that become steps")
	}
	for _, l := range w.GetLevels() {
		level := moraine.Level(min(l.GetLevel(), 255))
		if level < moraine.Memory || level > moraine.Object {
			return bad("level %d: checkpoints go to memory, nvme or object", l.GetLevel())
		}
		if len(l.GetKeepTags()) > maxKeepTags {
			return bad("level %s keeps %d tags, %d at most", level, len(l.GetKeepTags()), maxKeepTags)
		}
		if l.GetKeepMillis() > wire.MaxKeepMillis {
			return bad("level %s keeps steps for %d ms, %d at most", level, l.GetKeepMillis(), uint64(wire.MaxKeepMillis))
		}
		for _, tag := range l.GetKeepTags() {
			if err := CheckName("set policy", tag); err != nil {
				return err
			}
		}
		p.Levels = append(p.Levels, record.LevelPolicy{Level: level, Every: l.GetEvery(), KeepLast: l.GetKeepLast(),
			KeepEvery: l.GetKeepEvery(), KeepMillis: l.GetKeepMillis(), KeepBytes: l.GetKeepBytes(), KeepTags: l.GetKeepTags()})
	}
	slices.SortFunc(p.Levels, func(a, b record.LevelPolicy) int { return int(a.Level) - int(b.Level) })
	for n := 1; n < len(p.Levels); n++ {
		if p.Levels[n].Level == p.Levels[n-1].Level {
			return bad("level %s is there twice", p.Levels[n].Level)
		}
	}
	return nil
}
