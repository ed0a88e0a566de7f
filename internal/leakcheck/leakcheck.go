// Package leakcheck reports what this process keeps: goroutines by their stack, and
// descriptors. No server uses it.
//
// One path through it: a test calls leakcheck.Now, makes its calls, and calls
// leakcheck.Now again. It compares the counts of both. If the count has grown, the
// test fails with Grown.
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

// Kept is what a process holds at one moment.
type Kept struct {
	// Goroutines are counts by stack: one function a line, innermost first.
	Goroutines map[string]int
	// Descriptors is how many files are open; 0 if the system does not report it.
	Descriptors int
}

// Now inspects this process. It leaves out idle goroutines, since libraries keep
// some for the next call. Those have, for one element of idle, all of its functions
// on their stack and none of those after "!".
func Now(idle ...[]string) Kept {
	var profile bytes.Buffer
	_ = pprof.Lookup("goroutine").WriteTo(&profile, 1) // a buffer accepts every write
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

// Take returns how many goroutines have a stack with all of functions, as for
// Now, and leaves them out of k. A test compares them with a bound of their
// own.
func (k Kept) Take(functions ...string) (n int) {
	for stack, count := range k.Goroutines {
		if matches(stack, functions) {
			n += count
			delete(k.Goroutines, stack)
		}
	}
	return n
}

// Count is the number of goroutines.
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
