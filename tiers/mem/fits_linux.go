package mem

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
)

var errNoRoom = errors.New("the machine does not have as much")

// fits fails where the machine, or the control group that the process is in, does
// not have n bytes: better said now than by the kernel, which would kill.
func fits(n int64) error {
	if have, ok := available("/proc/meminfo"); ok && n > have {
		return fmt.Errorf("%w: %d MiB are available", errNoRoom, have>>20)
	}
	if have, ok := groupLeft("/sys/fs/cgroup"); ok && n > have {
		return fmt.Errorf("%w: its control group has %d MiB left", errNoRoom, have>>20)
	}
	return nil
}

// available reads MemAvailable.
func available(path string) (int64, bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	for _, line := range bytes.Split(text, []byte("\n")) {
		fields := bytes.Fields(line)
		if len(fields) == 3 && string(fields[0]) == "MemAvailable:" {
			kib, err := strconv.ParseInt(string(fields[1]), 10, 64)
			return kib << 10, err == nil
		}
	}
	return 0, false
}

// groupLeft reads what a control group (version 2) may still take; as a process in
// a container sees it, it is at the root. What it caches of files counts as left: the
// kernel gives it up first, and after a start in the same group it is nearly all.
func groupLeft(dir string) (int64, bool) {
	number := func(name string) (int64, bool) {
		text, err := os.ReadFile(dir + "/" + name)
		if err != nil {
			return 0, false
		}
		n, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64)
		return n, err == nil // "max" is no number: there is no limit
	}
	limit, ok := number("memory.max")
	used, ok2 := number("memory.current")
	return limit - max(0, used-groupCache(dir)), ok && ok2
}

// groupCache reads how much of a control group's memory is cached files; those of
// memory file systems are not in it.
func groupCache(dir string) (n int64) {
	text, err := os.ReadFile(dir + "/memory.stat")
	if err != nil {
		return 0
	}
	for _, line := range bytes.Split(text, []byte("\n")) {
		fields := bytes.Fields(line)
		if len(fields) == 2 && (string(fields[0]) == "inactive_file" || string(fields[0]) == "active_file") {
			size, _ := strconv.ParseInt(string(fields[1]), 10, 64)
			n += size
		}
	}
	return n
}
