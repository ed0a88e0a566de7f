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

// rowLines compares the middle and the end of a row with its beginning.
func (r *ckptRun) rowLines(begin, middle, end map[string]holdings) (lines []Line) {
	const since = "after the first saves"
	for _, part := range rowParts {
		for _, at := range []struct {
			name string
			has  holdings
		}{{"middle", middle[part]}, {"end", end[part]}} {
			name := func(what string) string { return r.name("ckpt-row-" + part + "-" + what + "-" + at.name) }
			b := begin[part]
			lines = append(lines,
				Line{Name: name("rss"), Value: at.has.private / 1e6, Unit: "MB"}.against(b.private/1e6, since),
				Line{Name: name("descriptors"), Value: at.has.descriptors, Unit: "open"}.against(b.descriptors, since))
			if b.shared > 0 {
				lines = append(lines, Line{Name: name("shm"), Value: at.has.shared / 1e6, Unit: "MB"}.against(b.shared/1e6, since))
			}
		}
	}
	return lines
}
