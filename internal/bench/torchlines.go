package bench

import (
	"cmp"
	"slices"
	"time"
)

// torchTime is what one save or restore took: a save has stall and durable, a restore has restore.
type torchTime struct {
	stall            time.Duration
	durable, restore usage
}

// torchTimes are the times by the name of a way, of all rounds.
type torchTimes map[string][]torchTime

func (t torchTimes) add(o torchTimes) {
	for name, times := range o {
		t[name] = append(t[name], times...)
	}
}

// middle returns the median by a time; those without it do not count.
func (t torchTimes) middle(name string, by func(torchTime) time.Duration) torchTime {
	times := slices.DeleteFunc(slices.Clone(t[name]), func(o torchTime) bool { return by(o) == 0 })
	if len(times) == 0 {
		return torchTime{}
	}
	slices.SortFunc(times, func(a, b torchTime) int { return cmp.Compare(by(a), by(b)) })
	return times[len(times)/2]
}

func stallOf(t torchTime) time.Duration   { return t.stall }
func durableOf(t torchTime) time.Duration { return t.durable.wall }
func restoreOf(t torchTime) time.Duration { return t.restore.wall }

// lines returns the medians. write and read are the limits of the disk, in GB/s.
func (t torchTimes) lines(e *Env, bytes, write, read float64) (lines []Line) {
	first := torchWays[0].name
	for _, w := range torchWays {
		limit, of := write, "disk"
		if w.place != onDisk {
			limit, of = write/1.5, "disk/1.5"
		}
		name := func(what string) string { return e.name("torch-" + w.name + what) }
		durable := t.middle(w.name, durableOf).durable
		restore := t.middle(w.name, restoreOf).restore
		lines = append(lines,
			Line{Name: name("-stall"), Value: t.middle(w.name, stallOf).stall.Seconds(), Unit: "s of the slowest rank"}.
				against(t.middle(first, stallOf).stall.Seconds(), "torch.save and fsync"),
			Line{Name: name("-durable-time"), Value: durable.wall.Seconds(), Unit: "s from the begin"}.
				against(t.middle(first, durableOf).durable.wall.Seconds(), "torch.save and fsync"),
			e.rate("torch-"+w.name+"-durable", bytes, durable, durable.wrote).against(limit, of),
			e.rate("torch-"+w.name+"-restore", bytes, restore, restore.read).against(read, "disk"))
	}
	arena := t.middle("moraine-arena", restoreOf).restore
	return append(lines, e.rate("torch-moraine-restore-arena", bytes, arena, arena.read).
		against(perSecond(bytes, t.middle(first, restoreOf).restore.wall)/gb, "torch.load, cold"))
}
