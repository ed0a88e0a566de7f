package mem

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/bufpool"
	"github.com/morainefs/moraine/internal/limit"
)

const block = moraine.BlockSize

// shortEvery is how often a call that waits has memory freed for it.
const shortEvery = 100 * time.Millisecond

// ArenaConfig says which memory an arena uses.
type ArenaConfig struct {
	// Bytes is the size of the whole memory, rounded down to whole blocks. Nothing
	// of the arena lies outside of it. At least bufpool.MaxSize.
	Bytes int64
	// Path is the source of the memory. It is a DAX device, or a directory of a
	// hugetlbfs or DAX file system, in which the arena makes a file without a
	// name. Empty: memory of the machine, in huge pages if the kernel has them.
	Path string
	// Node selects the NUMA node of the memory, counted from 1: 1 is the machine's
	// node 0. 0: the kernel chooses.
	Node int
	// Prefault maps all of the memory at once. Chunks then never wait for a page,
	// and the machine cannot run out of this memory later.
	Prefault bool
	// Wait limits and reports how long Get waits, in addition to its context. The
	// zero value neither limits nor reports.
	Wait limit.Resource
}

func (c *ArenaConfig) validate() error {
	bad := func(format string, args ...any) error {
		return &moraine.Error{Op: "mem.Open", Kind: moraine.InvalidArgument, Err: fmt.Errorf(format, args...)}
	}
	switch {
	case c.Bytes < bufpool.MaxSize:
		return bad("arena of %d bytes is too small: it needs at least %d", c.Bytes, bufpool.MaxSize)
	case c.Bytes/block >= int64(none):
		return bad("arena of %d bytes is larger than 16 TiB", c.Bytes)
	case c.Node < 0 || c.Node > maxNode:
		return bad("invalid NUMA node %d", c.Node-1)
	}
	return nil
}

// Arena is one piece of page-aligned memory. It lends the buffers into which chunks
// are received and read, and those in which chunks are kept. Its methods may be
// called concurrently.
type Arena struct {
	mem []byte
	// reclaim frees cached memory, as little as it can at a time. It returns false
	// if there is none. It is set before the arena is used, and called without mu.
	reclaim func() bool
	// short is called, without mu, before a call waits for so many bytes, and again while it waits.
	short func(bytes int64)
	wait  limit.Resource

	mu      sync.Mutex // guards the fields below
	runs    *runs
	waiting list.List // of *waiter, in order of arrival
	waits   uint64
	lent    int // number of buffers
	closed  bool
}

// waiter is a waiting call of Get.
type waiter struct {
	blocks int
	first  chan int // capacity 1; receives the first block of the run
}

// OpenArena maps the memory. Errors: InvalidArgument; NoSpace if the machine, the
// node or the path has too little memory; NotFound, IOError of Path.
func OpenArena(cfg ArenaConfig) (*Arena, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cfg.Bytes = cfg.Bytes / block * block
	mem, err := mapArena(cfg)
	if err != nil {
		return nil, &moraine.Error{Op: "mem.Open", Ref: cfg.Path, Kind: kindOf(err),
			Err: fmt.Errorf("map %d MiB: %w", cfg.Bytes>>20, err)}
	}
	cfg.Wait.Name = cmp.Or(cfg.Wait.Name, "memory of chunks")
	return &Arena{mem: mem, wait: cfg.Wait, runs: newRuns(len(mem) / block), reclaim: func() bool { return false }, short: func(int64) {}}, nil
}

// Get lends a buffer of n bytes, 1 to bufpool.MaxSize. If no memory is free, it
// evicts cached chunks. If there are none, it waits in order of arrival, as
// ArenaConfig.Wait says. Errors: TooLarge, Canceled (by ctx), Timeout (by ctx or
// ArenaConfig.Wait), Unavailable (closed).
func (a *Arena) Get(ctx context.Context, n int) (*bufpool.Buffer, error) {
	if n < 1 || n > bufpool.MaxSize {
		return nil, &moraine.Error{Op: "mem.Get", Kind: moraine.TooLarge, Err: fmt.Errorf("buffer of %d bytes is too large", n)}
	}
	w := &waiter{blocks: (n + block - 1) / block, first: make(chan int, 1)}
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		return nil, &moraine.Error{Op: "mem.Get", Kind: moraine.Unavailable, Err: errors.New("arena is closed")}
	}
	place := a.waiting.PushBack(w)
	a.serve()
	a.mu.Unlock()
	for { // the loop sees what is idle once we are queued; serve gives us what becomes idle later
		select {
		case first := <-w.first:
			return a.buffer(first, n), nil
		default:
		}
		if !a.reclaim() {
			break
		}
	}
	a.mu.Lock()
	a.waits++
	a.mu.Unlock()
	var first int
	err := a.wait.Wait(ctx, func(ctx context.Context) error {
		again := time.NewTicker(shortEvery)
		defer again.Stop()
		for {
			a.short(int64(w.blocks) * block)
			select {
			case first = <-w.first:
				return nil
			case <-again.C: // what it freed may lie apart
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
	if err != nil {
		a.leave(place, w)
		return nil, err
	}
	return a.buffer(first, n), nil
}

// leave removes a waiter from the queue, and returns what it may have been given at
// the last moment.
func (a *Arena) leave(place *list.Element, w *waiter) {
	a.mu.Lock()
	defer a.mu.Unlock()
	select {
	case first := <-w.first:
		a.give(first)
	default:
		a.waiting.Remove(place)
		a.serve() // it may have blocked a waiter that needs less
	}
}

// awaited reports whether a call waits for memory.
func (a *Arena) awaited() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.waiting.Len() > 0
}

// serve gives free memory to the waiters, in order. The caller holds mu.
func (a *Arena) serve() {
	for e := a.waiting.Front(); e != nil; e = a.waiting.Front() {
		w := e.Value.(*waiter)
		first, ok := a.runs.take(w.blocks)
		if !ok {
			return
		}
		a.waiting.Remove(e)
		a.lent++
		w.first <- first
	}
}

func (a *Arena) buffer(first, n int) *bufpool.Buffer {
	from := first * block
	return bufpool.Foreign(a.mem[from:from+n:from+(n+block-1)/block*block], func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.give(first)
	})
}

// give takes a run back. The caller holds mu.
func (a *Arena) give(first int) {
	a.runs.give(first)
	a.lent--
	a.serve()
	a.unmapIfDone()
}

// pressed reports whether a call waits for memory.
func (a *Arena) pressed() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.waiting.Len() > 0
}

// Close stops lending; calls that already wait are still served. The memory is
// unmapped when the last buffer is returned.
func (a *Arena) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	a.unmapIfDone()
}

func (a *Arena) unmapIfDone() {
	if !a.closed || a.lent > 0 || a.waiting.Len() > 0 || a.mem == nil {
		return
	}
	if err := unmapArena(a.mem); err != nil {
		panic(fmt.Sprintf("mem: unmap %d bytes: %v", len(a.mem), err))
	}
	a.mem = nil
}

// ArenaStats is the state of an arena at one moment.
type ArenaStats struct {
	Bytes      int64 // size of the arena
	InUseBytes int64 // lent, and cached
	Waiting    int64 // calls of Get that wait now
	Waits      uint64
}

// Stats returns the arena's state.
func (a *Arena) Stats() ArenaStats {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := int64(len(a.runs.length))
	return ArenaStats{Bytes: all * block, InUseBytes: (all - int64(a.runs.free)) * block, Waiting: int64(a.waiting.Len()), Waits: a.waits}
}
