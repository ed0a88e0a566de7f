package twomounts_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// task is what a child does.
type task struct {
	// Mounts are directories of the mounts, and Ext4 one on ext4. Each is a new one.
	Mounts [3]string
	Ext4   string
	// Delegated is the mount that takes delegated directories, -1 for none.
	Delegated int
	Seed      uint64
	Steps     int
	// Only, if not nil, are the steps of the list that are taken.
	Only []int
	// Chosen are the open files that steps of an earlier run have used.
	Chosen choices
}

// choices are a mount and two slots, by the number of the step.
type choices map[int][3]int

// run is the run of a seed.
type run struct {
	*bench
	seed  uint64
	steps int
	tries int
	// chosen is what the steps of the first run have used.
	chosen choices
}

// patience is how long a list of steps may take. A call that hangs takes longer.
const patience = 3 * time.Minute

// try runs the steps of the list in a child; it returns what the child said.
func (r *run) try(only []int) (said string, ok bool) {
	r.tries++
	name := fmt.Sprintf("/%d-%d", r.seed, r.tries)
	work := task{Ext4: r.ext4 + name, Delegated: delegatedOf(r.seed), Seed: r.seed, Steps: r.steps, Only: only, Chosen: r.chosen}
	for i, d := range r.mounts(r.seed) {
		work.Mounts[i] = d + name
	}
	b, err := json.Marshal(work)
	if err != nil {
		return err.Error(), false
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), envTask+"="+string(b))
	out, err := cmd.CombinedOutput()
	said, chosen, _ := strings.Cut(string(out), choseMark)
	if err != nil && r.chosen == nil {
		_ = json.Unmarshal([]byte(chosen), &r.chosen) // without them, other steps may be left
	}
	return said, err == nil
}

// shrink removes steps of the list for two minutes, while it still fails in one way. It
// returns what the shortest list said.
func (r *run) shrink(said string) string {
	at := failedAt(said)
	if at < 0 {
		return "It has no step that failed."
	}
	until := time.Now().Add(2 * time.Minute)
	steps := make([]int, at+1)
	for i := range steps {
		steps[i] = i
	}
	for size := len(steps) / 2; size > 0; size /= 2 {
		for i := 0; i+size < len(steps) && time.Now().Before(until); {
			fewer := slices.Concat(steps[:i], steps[i+size:])
			now, ok := r.try(fewer)
			if end := failedAt(now); !ok && end >= 0 && kindOf(now) == kindOf(said) {
				steps, said = fewer[:slices.Index(fewer, end)+1], now
				continue
			}
			i += size
		}
	}
	return fmt.Sprintf("After %d tries these steps are left:\n%s", r.tries, said)
}

// choseMark begins the line with the choices of a run that failed.
const choseMark = "\nchose "

// failedAt is the number of the step at which a child failed, -1 for none.
func failedAt(said string) int {
	at := -1
	if _, s, ok := strings.Cut(said, differs); ok {
		_, _ = fmt.Sscanf(s, " at step %d", &at)
	}
	return at
}

// kindOf is the kind of step at which a child failed.
func kindOf(said string) string {
	_, s, _ := strings.Cut(said, differs)
	fields := strings.Fields(s)
	return strings.Join(fields[min(3, len(fields)):min(4, len(fields))], " ")
}
