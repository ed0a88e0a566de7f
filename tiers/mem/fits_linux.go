package mem

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
)

var errNoRoom = errors.New("machine has too little memory")

// fits fails if the machine, or the control group of the process, has less than n
// bytes. An error here is better than a later kill by the kernel.
func fits(n int64) error {
	if have, ok := available("/proc/meminfo"); ok && n > have {
		return fmt.Errorf("%w: only %d MiB are available", errNoRoom, have>>20)
	}
	if have, ok := groupLeft("/sys/fs/cgroup"); ok && n > have {
		return fmt.Errorf("%w: its control group has only %d MiB left", errNoRoom, have>>20)
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

// groupLeft returns how much memory a control group (version 2) may still allocate.
// A process in a container sees its group at the root. Cached files of the group
// count as free: the kernel evicts them first, and after a restart in the same
// group they are nearly everything.
func groupLeft(dir string) (int64, bool) {
	number := func(name string) (int64, bool) {
		text, err := os.ReadFile(dir + "/" + name)
		if err != nil {
			return 0, false
		}
		n, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64)
		return n, err == nil // "max" is not a number: there is no limit
	}
	limit, ok := number("memory.max")
	used, ok2 := number("memory.current")
	return limit - max(0, used-groupCache(dir)), ok && ok2
}

// groupCache returns how much of a control group's memory is cached files, without
// those of memory file systems.
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
