package fuse

import (
	"bytes"
	"os"
	"strconv"
	"time"
)

// The kernel sends FUSE_INTERRUPT over the device, and the server reads the device
// only while there is memory for one more request. Writes that wait for servers can
// fill that memory, and the signal that would end one of them is then not read. So
// a call that has waited for long checks itself whether its caller has a signal.
// The kernel offers no other way: which request a read of the device returns is
// unknown before the read.

// signalInterval is how often a waiting call checks for a signal of its caller.
const signalInterval = 500 * time.Millisecond

// gaveUp reports whether the thread that made a call has a pending signal that it
// does not block, or ends because a signal killed it. It is false if the thread is
// not visible: it is in another PID namespace (the kernel then reports 0), or has
// ended.
func gaveUp(thread uint32) bool {
	if thread == 0 {
		return false
	}
	dir := "/proc/" + strconv.FormatUint(uint64(thread), 10)
	if status, err := os.ReadFile(dir + "/status"); err == nil && signalPending(status) {
		return true
	}
	stat, err := os.ReadFile(dir + "/stat")
	return err == nil && killed(stat)
}

// signalPending reads /proc/PID/status.
func signalPending(status []byte) bool {
	mask := func(name string) uint64 {
		_, rest, ok := bytes.Cut(status, []byte("\n"+name+":\t"))
		if !ok {
			return 0
		}
		line, _, _ := bytes.Cut(rest, []byte("\n"))
		v, _ := strconv.ParseUint(string(line), 16, 64)
		return v
	}
	return (mask("SigPnd")|mask("ShdPnd"))&^mask("SigBlk") != 0
}

const (
	// flagExiting is PF_EXITING of the kernel: the thread is exiting.
	flagExiting = 0x4
	// exitSignal are the bits of an exit code that hold the signal.
	exitSignal = 0x7f
)

// killed reads /proc/PID/stat. The close of a process that exits by itself waits
// like any other. For a killed process nothing waits.
func killed(stat []byte) bool {
	end := bytes.LastIndexByte(stat, ')') // of the command's name, which may contain anything
	fields := bytes.Fields(stat[end+1:])
	const flags, exitCode = 9 - 3, 52 - 3 // proc(5) counts from 1, and 3 is the first after the name
	if end < 0 || len(fields) <= exitCode {
		return false
	}
	f, _ := strconv.ParseUint(string(fields[flags]), 10, 64)
	code, _ := strconv.ParseInt(string(fields[exitCode]), 10, 64)
	return f&flagExiting != 0 && code&exitSignal != 0
}
