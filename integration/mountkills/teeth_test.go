package mountkills_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// story is the events of one program, a second each, in order.
func story(from int64, events ...event) []event {
	for i := range events {
		events[i].Start = (from + int64(2*i)) * 1e9
		events[i].End = events[i].Start + 1e9
	}
	return events
}

// call is an event with one version.
func call(name string, version int64, errno string) event {
	return event{Call: name, Low: version, High: version, Err: errno}
}

// hold is an increment from a value.
func hold(value int64) event { return event{Call: "hold", Low: value, High: value + 1} }

// TestCheckersSeeMistakes: each history has a mistake, and without it none.
func TestCheckersSeeMistakes(t *testing.T) {
	write, read, msync := "write", "read its", "msync"
	for _, h := range []struct {
		name  string
		check func(c *cell) []string
		// good and bad are the events of mount 1 after those of mount 0.
		zero, good, bad []event
	}{
		{"an old version after a close", closeToOpen.check,
			story(0, call(write, 2, ""), call(write, 3, ""), call(read, 1, "")),
			story(10, call(write, 2, ""), call(write, 3, ""), call(read, 3, "")),
			story(10, call(write, 2, ""), call(write, 3, ""), call(read, 2, ""))},
		{"a version that nobody wrote", closeToOpen.check,
			story(0, call(write, 2, ""), call(write, 3, "EIO"), call(read, 1, "")),
			story(10, call(write, 2, ""), call(write, 3, ""), call(read, 2, "")),
			story(10, call(write, 2, ""), call(write, 3, ""), call(read, 4, ""))},
		{"an old page", checkMappings,
			story(0, call(msync, 2, ""), call(msync, 3, ""), call("touch a page", 1, "")),
			story(10, call(msync, 2, ""), call(msync, 3, ""), call("touch a page", 1, ""), call("read newly mapped", 3, "")),
			story(10, call(msync, 2, ""), call(msync, 3, ""), call("touch a page", 1, ""), call("read newly mapped", 2, ""))},
		{"a mapping that stays old", checkMappings,
			story(0, call(msync, 2, ""), call(msync, 3, ""), call("touch a page", 1, "")),
			story(10, call(msync, 2, ""), call(msync, 3, ""), call("touch a page", 1, ""), call("read long mapped", 3, "")),
			story(10, call(msync, 2, ""), call(msync, 3, ""), call("touch a page", 1, ""), call("read long mapped", 2, ""))},
		{"a replaced file", checkRenames,
			story(0, call("rename", 4, ""), call("rename", 6, ""), call("read renamed", 6, "")),
			story(10, call("rename", 5, ""), call("read renamed", 5, "")),
			story(10, call("rename", 5, ""), call("read renamed", 4, ""))},
		{"a lost increment", withOther(checkLocks),
			story(0, hold(0), hold(1)), story(10, hold(2), hold(3)), story(10, hold(2), hold(2))},
		{"two holders", withOther(checkLocks),
			story(0, hold(0), hold(1)), story(10, hold(2), hold(3)), story(2, hold(2), hold(3))},
	} {
		t.Run(h.name, func(t *testing.T) {
			require.Empty(t, h.check(historyOf(h.zero, h.good)))
			require.NotEmpty(t, h.check(historyOf(h.zero, h.bad)))
		})
	}
}

// historyOf is a cell in which nothing was killed.
func historyOf(zero, one []event) *cell {
	return &cell{fault: faults[0], permitted: map[string]int{}, events: [2][]event{zero, one}}
}

// withOther adds increments of the other counter, of which there must be some.
func withOther(check func(c *cell) []string) func(c *cell) []string {
	return func(c *cell) []string {
		other := story(100, hold(0), hold(1), hold(2), hold(3))
		for i := range other {
			other[i].File = 1
		}
		c.events[0] = append(slices.Clone(c.events[0]), other...)
		return check(c)
	}
}

// TestTheCheckerOfAppendsSeesMistakes: a record is missing, is there twice, or is torn.
func TestTheCheckerOfAppendsSeesMistakes(t *testing.T) {
	of := func(prog int, seqs ...int64) (log []byte) {
		for _, seq := range seqs {
			log = append(log, record(prog, seq, 100)...)
		}
		return log
	}
	events := []event{call("append", 1, ""), call("append", 2, ""), call("fsync", 2, ""), call("append", 3, ""), call("close", 3, "EIO")}
	check := func(one []byte) []string {
		c := historyOf(story(0, slices.Clone(events)...), story(1, slices.Clone(events)...))
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "log"), append(of(0, 1, 2, 3), one...), 0o644))
		c.dirs = [2]string{dir, dir}
		return appends.check(c)
	}
	require.Empty(t, check(of(1, 1, 2, 3)))
	require.Empty(t, check(of(1, 1, 2)), "the close said that record 3 is lost")
	require.NotEmpty(t, check(of(1, 1, 3)))
	require.NotEmpty(t, check(of(1, 1, 2, 2)))
	require.NotEmpty(t, check(of(1, 1, 2, 3)[1:]))
}

// TestOnlyTheOwnDaemonsCrashShows: an error that one fault permits is a mistake with the others.
func TestOnlyTheOwnDaemonsCrashShows(t *testing.T) {
	lost := event{Call: "close", Start: 1, End: 2, Err: "EIO", Writes: true}
	for _, f := range faults {
		for prog := range 2 {
			c := historyOf(nil, nil)
			c.fault, c.events[prog] = f, []event{lost}
			require.Equal(t, f.daemon == prog, len(c.mistakes()) == 0, "%s, mount %d", f.name, prog)
			c.struck = 10 // it comes later
			require.NotEmpty(t, c.mistakes())
		}
	}
}
