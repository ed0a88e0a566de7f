package fusebench

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// clockTicks is USER_HZ, which is 100 on every Linux that Go runs on.
const clockTicks = 100

// looked is the CPU of some processes at one moment.
type looked struct {
	pids func() []int
	at   map[int]float64
}

// look reads the CPU of the processes; pids is nil where they are unknown.
func look(pids func() []int) looked {
	if pids == nil {
		return looked{}
	}
	return looked{pids, cpuOf(pids())}
}

// used returns the CPU seconds since then; nil where the processes are unknown. A process that is
// new had used nothing.
func (l looked) used() *float64 {
	if l.pids == nil {
		return nil
	}
	sum := 0.0
	for pid, used := range cpuOf(l.pids()) {
		sum += used - l.at[pid]
	}
	return &sum
}

// cpuOf returns the CPU time in seconds, user and system, of each process.
func cpuOf(pids []int) map[int]float64 {
	used := map[int]float64{}
	for _, pid := range pids {
		if s, ok := processCPU(pid); ok {
			used[pid] = s
		}
	}
	return used
}

func processCPU(pid int) (seconds float64, ok bool) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	// The name in parentheses may hold blanks and parentheses; fields are counted after it.
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	if len(fields) < 13 {
		return 0, false
	}
	utime, _ := strconv.ParseFloat(fields[11], 64)
	stime, _ := strconv.ParseFloat(fields[12], 64)
	return (utime + stime) / clockTicks, true
}

// ownCPU returns the CPU seconds of this process.
func ownCPU() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return (time.Duration(u.Utime.Nano()) + time.Duration(u.Stime.Nano())).Seconds()
}

// commandCPU returns the CPU seconds of a command that has ended, with those of its children.
func commandCPU(s *os.ProcessState) float64 { return (s.UserTime() + s.SystemTime()).Seconds() }
