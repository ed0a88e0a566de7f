package mountkills_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// task says what a program does.
type task struct {
	Operation string
	Dir       string // on the program's mount
	Prog      int    // 0 or 1, as its mount
	Seed      uint64
	Size      int64 // of the files
}

// event is a call, or a few that belong together, and its answer.
type event struct {
	Call string
	// Start and End are by the clock that all processes share, in nanoseconds.
	Start, End int64
	Err        string `json:",omitempty"` // the name of the errno
	// Wrong says what the program itself saw that no promise permits.
	Wrong string `json:",omitempty"`
	// File is which of several files.
	File int `json:",omitempty"`
	// Low and High are the oldest and the newest version that was read. A writer has one in both.
	Low, High int64 `json:",omitempty"`
	// Writes: the crash of a daemon may lose what was written. Changes: it may lose the answer.
	// Made: it may lose the file.
	Writes  bool `json:",omitempty"`
	Changes bool `json:",omitempty"`
	Made    bool `json:",omitempty"`
}

// program is one that uses a mount.
type program struct {
	task
	r    *rand.Rand
	out  *json.Encoder
	stop atomic.Bool
}

// beProgram is the process of a program. It writes its events, and ends when its input does.
func beProgram(spec string) {
	p := &program{out: json.NewEncoder(os.Stdout)}
	if err := json.Unmarshal([]byte(spec), &p.task); err != nil {
		fail(err)
	}
	debug.SetPanicOnFault(true) // memory that the mount does not fill
	p.r = random(p.Seed, fmt.Sprint(p.Operation, p.Prog))
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		p.stop.Store(true)
	}()
	for _, o := range operations {
		if o.name != p.Operation {
			continue
		}
		step, end, err := o.program(p)
		for err == nil && !p.stop.Load() {
			err = step()
			time.Sleep(time.Duration(p.r.IntN(4000)) * time.Microsecond)
		}
		if err == nil {
			err = end()
		}
		if err != nil {
			fail(err)
		}
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// at is a name on the mount, and mine and its are names that each program has for itself.
func (p *program) at(name string) string { return filepath.Join(p.Dir, name) }
func (p *program) mine(name string) string {
	return p.at(fmt.Sprint(name, p.Prog))
}
func (p *program) its(name string) string { return p.at(fmt.Sprint(name, 1-p.Prog)) }

// report makes a call, and reports it.
func (p *program) report(e event, call func(e *event) error) error {
	e.Start = monotonic()
	err := guarded(func() error { return call(&e) })
	e.End = monotonic()
	var wrong wrongBytes
	if errors.As(err, &wrong) {
		e.Wrong = string(wrong)
	} else {
		e.Err = nameOf(err)
	}
	if oops := p.out.Encode(e); oops != nil {
		fail(oops)
	}
	return err
}

// wrongBytes says what was read and must not be.
type wrongBytes string

func (w wrongBytes) Error() string { return string(w) }

// guarded makes a call. A fault of mapped memory is an error.
func guarded(call func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = wrongBytes(fmt.Sprint("mapped memory: ", r))
		}
	}()
	return call()
}

func nameOf(err error) string {
	var errno syscall.Errno
	switch {
	case err == nil:
		return ""
	case errors.As(err, &errno):
		return unix.ErrnoName(errno)
	}
	return err.Error()
}

// monotonic is the clock that all processes share.
func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		fail(err)
	}
	return ts.Nano()
}
