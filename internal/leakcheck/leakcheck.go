// Package leakcheck tells a test what this process keeps: goroutines by what they do, and
// descriptors. No server uses it.
//
// One path through it: before := leakcheck.Now() -> the test makes its calls -> now :=
// leakcheck.Now() -> now.Count() is compared with before.Count() -> where it has grown the
// test fails with now.Grown(before).
package leakcheck

import (
	"bytes"
	"fmt"
	"os"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
)

// Kept is what a process has at one moment.
type Kept struct {
	// Goroutines are counts by stack, a function a line, innermost first.
	Goroutines map[string]int
	// Descriptors is how many files are open; 0 where the system does not say.
	Descriptors int
}

// Now looks at this process. Goroutines whose stack has all functions of one of idle and
// none of those after "!" are left out: libraries keep some for the next call.
func Now(idle ...[]string) Kept {
	var profile bytes.Buffer
	_ = pprof.Lookup("goroutine").WriteTo(&profile, 1) // a buffer takes everything
	k := Kept{Goroutines: map[string]int{}}
	for record := range strings.SplitSeq(profile.String(), "\n\n") {
		count, stack := parse(record)
		if count > 0 && !slices.ContainsFunc(idle, func(is []string) bool { return matches(stack, is) }) {
			k.Goroutines[stack] += count
		}
	}
	if names, err := os.ReadDir("/proc/self/fd"); err == nil {
		k.Descriptors = len(names)
	}
	return k
}

// parse reads one record of the profile: a line "COUNT @ ADDRESSES", after lines of a
// header or of labels, and a line "#\tADDRESS\tFUNCTION+OFFSET\tFILE" for each frame.
func parse(record string) (count int, stack string) {
	var frames []string
	for line := range strings.SplitSeq(record, "\n") {
		if n, _, ok := strings.Cut(line, " @ "); ok && count == 0 {
			count, _ = strconv.Atoi(n)
			continue
		}
		if fields := strings.Split(line, "\t"); len(fields) > 2 && fields[0] == "#" {
			function, _, _ := strings.Cut(fields[2], "+0x")
			frames = append(frames, function)
		}
	}
	return count, strings.Join(frames, "\n")
}

func matches(stack string, functions []string) bool {
	for _, f := range functions {
		if name, without := strings.CutPrefix(f, "!"); strings.Contains(stack, name) == without {
			return false
		}
	}
	return true
}

// Count is how many goroutines there are.
func (k Kept) Count() (n int) {
	for _, count := range k.Goroutines {
		n += count
	}
	return n
}

// Grown lists the stacks that more goroutines have than before, most first.
func (k Kept) Grown(before Kept) string {
	var stacks []string
	more := func(stack string) int { return k.Goroutines[stack] - before.Goroutines[stack] }
	for stack := range k.Goroutines {
		if more(stack) > 0 {
			stacks = append(stacks, stack)
		}
	}
	slices.SortFunc(stacks, func(a, b string) int { return more(b) - more(a) })
	var out strings.Builder
	for _, stack := range stacks {
		fmt.Fprintf(&out, "%d more:\n%s\n\n", more(stack), stack)
	}
	return out.String()
}
