package bufpool

import (
	"sync/atomic"

	"github.com/morainefs/moraine"
)

// Buffer is memory lent by a Pool, or by an arena. It has one owner at a time.
// Ownership moves by return, or by a call whose comment says that it takes the
// buffer.
type Buffer struct {
	pool     *Pool // nil: release frees it
	class    int
	mem      []byte
	bytes    []byte
	release  func()
	released atomic.Bool
}

// Foreign makes a Buffer from memory that no Pool has lent. release is called once
// and frees the memory. bytes must be as Buffer.Bytes says.
func Foreign(bytes []byte, release func()) *Buffer { return &Buffer{bytes: bytes, release: release} }

// Bytes returns the memory, of the requested length. Its capacity is the next
// multiple of moraine.BlockSize, and so is its address. Its contents are
// undefined at first. It must not be used after Release.
func (b *Buffer) Bytes() []byte { return b.bytes }

// Held is how much of its Pool's memory the buffer uses; 0 for a Foreign one.
func (b *Buffer) Held() int64 {
	if b.pool == nil {
		return 0
	}
	return classSize(b.class)
}

// Release returns the buffer. A second Release panics: two owners would overwrite
// each other's bytes.
func (b *Buffer) Release() {
	if b.released.Swap(true) {
		panic("bufpool: buffer released twice")
	}
	p, mem := b.pool, b.mem
	b.mem, b.bytes = nil, nil
	if p == nil {
		b.release()
		return
	}
	size := classSize(b.class)
	p.mu.Lock()
	if p.closed {
		p.unmap(mem)
	} else {
		p.free[b.class] = append(p.free[b.class], mem)
	}
	p.mu.Unlock()
	p.inUse.Add(-size)
	p.budget.Release(size)
}

func roundUp(n int) int {
	return (n + moraine.BlockSize - 1) &^ (moraine.BlockSize - 1)
}
