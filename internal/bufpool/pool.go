// Package bufpool lends the buffers in which chunks travel. They are page-aligned,
// so that they can go to a device with O_DIRECT, and outside of the
// garbage-collected heap. They stay mapped between uses. Their total is limited: a
// caller that would exceed the limit waits. That wait is the backpressure of the
// data path.
//
// The package does not know the contents of the buffers: they are never cleared,
// and hold their previous bytes.
//
// One path through it: Get waits for its bytes of the limit (in order of arrival).
// It takes a free buffer of the size class or maps one, and returns it.
// Buffer.Release puts it back and wakes a waiting caller.
package bufpool

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/limit"
)

// MaxSize is the largest buffer that a Pool lends, in bytes: a chunk of the largest
// size with its header fits.
const MaxSize = moraine.MaxChunkSize + moraine.MaxChunkSize/4

// Config sets the limits of a Pool.
type Config struct {
	// LimitBytes limits the bytes lent at any time, counted by size class, and the
	// bytes kept mapped. Default 256 MiB; at least MaxSize.
	LimitBytes int64
	// Wait limits and reports how long Get waits, in addition to its context. The
	// zero value neither limits nor reports.
	Wait limit.Resource
}

func (c *Config) setDefaults() {
	c.LimitBytes = cmp.Or(c.LimitBytes, 256<<20)
	c.Wait.Name = cmp.Or(c.Wait.Name, "buffers")
	c.LimitBytes = max(c.LimitBytes, MaxSize)
}

// Pool lends buffers. Its methods may be called concurrently.
type Pool struct {
	limit  int64
	budget *limit.Semaphore

	inUse, mapped, waiting atomic.Int64
	waits                  atomic.Uint64

	mu     sync.Mutex // guards the fields below
	free   [classes][][]byte
	closed bool
}

// New makes a pool. It maps nothing yet.
func New(cfg Config) *Pool {
	cfg.setDefaults()
	return &Pool{limit: cfg.LimitBytes, budget: limit.NewSemaphore(cfg.LimitBytes, cfg.Wait)}
}

// Get lends a buffer of n bytes, 1 to MaxSize. While the pool's limit is reached,
// it waits as Config.Wait says. The caller owns the buffer until Release. Errors:
// TooLarge, Canceled (by ctx), Timeout (by ctx or Config.Wait), NoSpace (the
// machine has no memory to map).
func (p *Pool) Get(ctx context.Context, n int) (*Buffer, error) {
	class, err := classOf(n)
	if err != nil {
		return nil, err
	}
	size := classSize(class)
	if !p.budget.TryAcquire(size) {
		p.waits.Add(1)
		p.waiting.Add(1)
		err := p.budget.Acquire(ctx, size)
		p.waiting.Add(-1)
		if err != nil {
			return nil, err
		}
	}
	return p.lend(class, n)
}

// TryGet is Get without the wait. It returns nil if the limit is reached, if n is
// out of range, and if the machine has no memory.
func (p *Pool) TryGet(n int) *Buffer {
	class, err := classOf(n)
	if err != nil || !p.budget.TryAcquire(classSize(class)) {
		return nil
	}
	b, err := p.lend(class, n)
	if err != nil {
		return nil
	}
	return b
}

// lend finds or maps memory for a buffer whose bytes of the limit are taken.
func (p *Pool) lend(class, n int) (*Buffer, error) {
	size := classSize(class)
	mem := p.takeFree(class)
	if mem == nil {
		p.shrinkFor(size)
		var err error
		if mem, err = mapMemory(int(size)); err != nil {
			p.mapped.Add(-size)
			p.budget.Release(size)
			return nil, &moraine.Error{Op: "bufpool.Get", Kind: moraine.NoSpace,
				Err: fmt.Errorf("map %d bytes: %w", size, err)}
		}
	}
	p.inUse.Add(size)
	return &Buffer{pool: p, class: class, mem: mem, bytes: mem[:n:roundUp(n)]}, nil
}

func (p *Pool) takeFree(class int) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.free[class]
	if len(list) == 0 {
		return nil
	}
	mem := list[len(list)-1]
	list[len(list)-1] = nil
	p.free[class] = list[:len(list)-1]
	return mem
}

// shrinkFor counts size more bytes as mapped, and unmaps free buffers of other
// classes until the mapped bytes are within the limit. The lent bytes always are.
func (p *Pool) shrinkFor(size int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mapped.Add(size)
	for class := classes - 1; class >= 0 && p.mapped.Load() > p.limit; class-- {
		for len(p.free[class]) > 0 && p.mapped.Load() > p.limit {
			last := len(p.free[class]) - 1
			p.unmap(p.free[class][last])
			p.free[class] = p.free[class][:last]
		}
	}
}

// unmap returns memory to the system.
func (p *Pool) unmap(mem []byte) {
	if err := unmapMemory(mem); err != nil {
		panic(fmt.Sprintf("bufpool: unmap %d bytes: %v", len(mem), err))
	}
	p.mapped.Add(-int64(len(mem)))
}

// Close unmaps free buffers. Buffers still lent stay valid and are unmapped when
// released. A closed pool may still lend; it then keeps no buffers.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for class := range p.free {
		for _, mem := range p.free[class] {
			p.unmap(mem)
		}
		p.free[class] = nil
	}
}

// Stats is the pool's state at one moment.
type Stats struct {
	LimitBytes  int64
	InUseBytes  int64  // lent, by size class
	MappedBytes int64  // lent and free
	Waiting     int64  // callers of Get that wait now
	Waits       uint64 // calls of Get that had to wait, since New
}

// Stats returns the pool's state.
func (p *Pool) Stats() Stats {
	return Stats{LimitBytes: p.limit, InUseBytes: p.inUse.Load(), MappedBytes: p.mapped.Load(),
		Waiting: p.waiting.Load(), Waits: p.waits.Load()}
}
