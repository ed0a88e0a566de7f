package vfs

import (
	"io"
	"io/fs"
	"sync/atomic"
	"syscall"
	"unsafe"
)

const blockSize = 4096

// page is the contents of one block of a Mem file. A page that is both live and
// durable, or reserved, is shared and never written: writers copy it.
type page [blockSize]byte

// reserved is the contents of a block that Allocate reserved. Read-only.
var reserved = new(page)

// memFile is an open file of a Mem. It stays usable after its name is removed.
type memFile struct {
	mem    *Mem
	node   *node
	name   string
	write  bool
	direct bool
	closed atomic.Bool
}

func (f *memFile) fail(op string, err error) error { return pathError(op, f.name, err) }

// check refuses what the kernel would: a closed file, a negative offset, a direct
// transfer that is not aligned to blocks.
func (f *memFile) check(op string, p []byte, off int64) error {
	switch {
	case f.closed.Load():
		return f.fail(op, fs.ErrClosed)
	case off < 0:
		return f.fail(op, syscall.EINVAL)
	case f.direct && len(p) > 0 &&
		(off%blockSize != 0 || len(p)%blockSize != 0 || uintptr(unsafe.Pointer(&p[0]))%blockSize != 0):
		return f.fail(op, syscall.EINVAL)
	}
	return nil
}

func (f *memFile) checkWrite(op string, p []byte, off int64) error {
	if !f.write {
		return f.fail(op, syscall.EBADF)
	}
	return f.check(op, p, off)
}

func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	if err := f.check("read", p, off); err != nil {
		return 0, err
	}
	f.mem.mu.RLock()
	defer f.mem.mu.RUnlock()
	n := f.node
	total := 0
	for total < len(p) && off < n.size {
		i, at := int(off/blockSize), off%blockSize
		want := min(int64(len(p)-total), blockSize-at, n.size-off)
		dst := p[total : total+int(want)]
		if pg := n.block(i); pg != nil {
			copy(dst, pg[at:])
		} else {
			clear(dst)
		}
		total += int(want)
		off += want
	}
	if total < len(p) {
		return total, io.EOF
	}
	return total, nil
}

func (f *memFile) WriteAt(p []byte, off int64) (int, error) {
	if err := f.checkWrite("write", p, off); err != nil {
		return 0, err
	}
	f.mem.mu.Lock()
	defer f.mem.mu.Unlock()
	total := 0
	for total < len(p) {
		i, at := int(off/blockSize), off%blockSize
		pg, err := f.mem.writable(f.node, i)
		if err != nil {
			return total, f.fail("write", err)
		}
		n := copy(pg[at:], p[total:])
		total += n
		off += int64(n)
		f.node.size = max(f.node.size, off)
	}
	return total, nil
}

// block returns the current block i, nil for a hole.
func (n *node) block(i int) *page {
	if i < len(n.live) {
		return n.live[i]
	}
	return nil
}

// setBlock replaces block i, and notes that it is not durable.
func (n *node) setBlock(i int, pg *page) {
	for len(n.live) <= i {
		n.live = append(n.live, nil)
	}
	for len(n.durable) <= i {
		n.durable = append(n.durable, nil)
	}
	if n.live[i] == n.durable[i] {
		n.dirty = append(n.dirty, i)
	}
	n.live[i] = pg
}

// writable returns block i of n for writing in place.
func (m *Mem) writable(n *node, i int) (*page, error) {
	old := n.block(i)
	if old != nil && old != reserved && old != n.durable[i] {
		return old, nil
	}
	if old == nil {
		if m.used+blockSize > m.capacity {
			return nil, syscall.ENOSPC
		}
		m.used += blockSize
	}
	pg := new(page)
	if old != nil {
		*pg = *old
	}
	n.setBlock(i, pg)
	return pg, nil
}

// drop turns blocks [from, to) of n into holes.
func (m *Mem) drop(n *node, from, to int) {
	for i := from; i < min(to, len(n.live)); i++ {
		if n.live[i] != nil {
			n.setBlock(i, nil)
			m.used -= blockSize
		}
	}
}

// truncate sets n's size; bytes that a later growth uncovers read as zeros.
func (m *Mem) truncate(n *node, size int64) error {
	if size < n.size {
		m.drop(n, int((size+blockSize-1)/blockSize), len(n.live))
		if at := size % blockSize; at != 0 && n.block(int(size/blockSize)) != nil {
			pg, err := m.writable(n, int(size/blockSize))
			if err != nil {
				return err
			}
			clear(pg[at:])
		}
	}
	n.size = size
	return nil
}

func (f *memFile) Sync() error {
	if err := f.check("sync", nil, 0); err != nil {
		return err
	}
	f.mem.mu.Lock()
	defer f.mem.mu.Unlock()
	n := f.node
	for _, i := range n.dirty {
		n.durable[i] = n.live[i]
	}
	n.dirty = n.dirty[:0]
	n.keptSize = n.size
	return nil
}

func (f *memFile) Truncate(size int64) error {
	if err := f.checkWrite("truncate", nil, size); err != nil {
		return err
	}
	f.mem.mu.Lock()
	defer f.mem.mu.Unlock()
	if err := f.mem.truncate(f.node, size); err != nil {
		return f.fail("truncate", err)
	}
	return nil
}

func (f *memFile) Allocate(off, n int64) error {
	if err := f.checkWrite("allocate", nil, off); err != nil {
		return err
	}
	f.mem.mu.Lock()
	defer f.mem.mu.Unlock()
	first, last := int(off/blockSize), int((off+n+blockSize-1)/blockSize)
	var need int64
	for i := first; i < last; i++ {
		if f.node.block(i) == nil {
			need += blockSize
		}
	}
	if f.mem.used+need > f.mem.capacity {
		return f.fail("allocate", syscall.ENOSPC)
	}
	f.mem.used += need
	for i := first; i < last; i++ {
		if f.node.block(i) == nil {
			f.node.setBlock(i, reserved)
		}
	}
	f.node.size = max(f.node.size, off+n)
	return nil
}

func (f *memFile) PunchHole(off, n int64) error {
	if err := f.checkWrite("punch hole", nil, off); err != nil {
		return err
	}
	if off%blockSize != 0 || n%blockSize != 0 || n <= 0 {
		return f.fail("punch hole", syscall.EINVAL)
	}
	f.mem.mu.Lock()
	defer f.mem.mu.Unlock()
	f.mem.drop(f.node, int(off/blockSize), int((off+n)/blockSize))
	return nil
}

func (f *memFile) Size() (int64, error) {
	if err := f.check("stat", nil, 0); err != nil {
		return 0, err
	}
	f.mem.mu.RLock()
	defer f.mem.mu.RUnlock()
	return f.node.size, nil
}

func (f *memFile) Direct() bool { return f.direct }
func (f *memFile) Name() string { return f.name }

func (f *memFile) Close() error {
	if f.closed.Swap(true) {
		return f.fail("close", fs.ErrClosed)
	}
	return nil
}
