package bench

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"time"
)

// rowWarm is how many saves come before the first look at the processes: caches and pools are
// full then.
const rowWarm = 10

// row measures e.Repeat saves in a row: their rate, and what the processes have at the beginning,
// in the middle and at the end. A save begins when the one before the last is durable.
func (r *ckptRun) row(ctx context.Context) ([]Line, error) {
	if r.Repeat < 2*rowWarm {
		return nil, fmt.Errorf("bench: %d saves in a row are too few: %d at least", r.Repeat, 2*rowWarm)
	}
	var looks []map[string]holdings
	var before *saved
	var began time.Time
	u, err := r.measure(ctx, func(ctx context.Context) error {
		for i := range r.Repeat {
			if i == rowWarm {
				looks, began = append(looks, r.look()), time.Now()
			}
			if i == r.Repeat/2 {
				looks = append(looks, r.look())
			}
			s, err := r.saveInRow(ctx, before)
			if err != nil {
				return err
			}
			before = s
		}
		return r.settle(ctx, before)
	})
	if err != nil {
		return nil, err
	}
	bytes := r.trainers.bytes * float64(r.Repeat)
	lines := []Line{r.rate("ckpt-row", bytes, u, u.wrote)}
	lines[0].Value = perSecond(r.trainers.bytes*float64(r.Repeat-rowWarm), time.Since(began)) / gb
	looks = append(looks, r.look())
	return append(lines, r.rowLines(looks[0], looks[1], looks[2])...), nil
}

// saveInRow saves the next step, and waits for the one before.
func (r *ckptRun) saveInRow(ctx context.Context, before *saved) (*saved, error) {
	r.next++
	saving, err := r.trainers.save(ctx, r.next)
	if err != nil {
		return nil, fmt.Errorf("bench: save %d in a row: %w", r.next, err)
	}
	if before != nil {
		if err := r.settle(ctx, before); err != nil {
			return nil, err
		}
	}
	if r.next%100 == 0 {
		r.Progress("%d saves of %d", r.next, r.Repeat)
	}
	return &saved{saving: saving}, nil
}

// rowParts are the processes of a row: all ranks are in this one.
var rowParts = []string{"trainers", "agent", "servers"}

// look returns what the processes of each part have. The tensors of all ranks are on this process's
// heap, so garbage may grow to their size: it is collected first.
func (r *ckptRun) look() map[string]holdings {
	debug.FreeOSMemory()
	servers := holdings{}
	for _, n := range r.Cluster.All() {
		servers.add(holdingsOf(n.Pid()))
	}
	return map[string]holdings{"trainers": holdingsOf(os.Getpid()), "agent": holdingsOf(r.agent.cmd.Process.Pid), "servers": servers}
}

// rowLines compares the middle and the end of a row with its beginning, and the end with the middle:
// caches may take more than the first saves to fill.
func (r *ckptRun) rowLines(begin, middle, end map[string]holdings) (lines []Line) {
	const first, half = "after the first saves", "in the middle"
	for _, part := range rowParts {
		lines = append(lines, r.compare(part, "middle", middle[part], begin[part], first)...)
		lines = append(lines, r.compare(part, "end", end[part], begin[part], first)...)
		lines = append(lines, r.compare(part, "second-half", end[part], middle[part], half)...)
	}
	return lines
}

// compare returns the lines of what a part has, compared with what it had since.
func (r *ckptRun) compare(part, at string, has, had holdings, since string) []Line {
	line := func(what, unit string, now, then float64) Line {
		return Line{Name: r.name("ckpt-row-" + part + "-" + what + "-" + at), Value: now, Unit: unit}.against(then, since)
	}
	lines := []Line{line("rss", "MB", has.private/1e6, had.private/1e6), line("descriptors", "open", has.descriptors, had.descriptors)}
	if had.shared > 0 {
		lines = append(lines, line("shm", "MB", has.shared/1e6, had.shared/1e6))
	}
	return lines
}
