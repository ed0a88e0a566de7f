package mountkills_test

import (
	"fmt"
	"time"
)

// A register is a file with versions: one program writes them, in order. A read must show at least the
// newest one whose write had succeeded before the read began, and none that began after it ended.
// What failed may show or not.

// checkRegister compares the reads of one file with its writes.
func (c *cell) checkRegister(writes, reads []event, prog int, first int64) (wrong []string) {
	for _, r := range reads {
		if r.Err != "" || r.Wrong != "" {
			continue
		}
		low, high, since := first, first, int64(0)
		for _, w := range writes {
			if w.End < r.Start && w.Err == "" && w.High > low {
				low, since = w.High, w.End
			}
			if w.Start < r.End {
				high = max(high, w.High)
			}
		}
		if r.Low < low || r.High > high {
			wrong = append(wrong, fmt.Sprintf("mount %d: %s %v after the fault: versions %d to %d, and not %d to %d; the older one was there %v before",
				prog, r.Call, time.Duration(r.Start-c.struck), r.Low, r.High, low, high, time.Duration(r.Start-since)))
		}
	}
	return wrong
}

// of returns the events of a program that have a call's name.
func (c *cell) of(prog int, call string) (some []event) {
	for _, e := range c.events[prog] {
		if e.Call == call {
			some = append(some, e)
		}
	}
	return some
}
