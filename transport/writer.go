package transport

import (
	"errors"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// batchBytes is how many bytes of small frames leave in one write.
	batchBytes = 64 << 10
	// batchPayload is the largest payload that may share a write with others;
	// a larger one goes alone, in pieces of writePiece bytes.
	batchPayload = 64 << 10
	writePiece   = 1 << 20
)

// outFrame is an outgoing frame.
type outFrame struct {
	head    *buffer  // header and message; the writer releases it
	payload [][]byte // not copied
	size    int      // of payload
	// done, if not nil, gets one value when payload is no longer read; it has room
	// for it.
	done chan struct{}
	// release, if not nil, is called once when payload is no longer read.
	release func()

	abandoned atomic.Bool
	pooled    bool // only the writer has a reference to the frame
	taken     bool // by the writing goroutine; guarded by writer.mu
	finished  bool // guarded by writer.mu
}

var outFrames = sync.Pool{New: func() any { return new(outFrame) }}

// writer writes frames to a connection in the order of send. No goroutine waits for
// frames. A sender that finds no writer active writes its own frame and those that
// arrive meanwhile. A lone request thus costs no switch, and concurrent ones share
// system calls.
type writer struct {
	out   stream
	now   func() int64
	spawn func(func()) // starts a goroutine that the connection's owner waits for
	fail  func(error)  // called once, when a write failed; closes the connection

	// since is when the running write began or last made progress, 0 if there is
	// none. last is when one last ended. Nanoseconds of the connection's clock.
	since, last atomic.Int64
	bytes       atomic.Uint64

	mu    sync.Mutex // guards the fields below; not held over I/O
	queue []*outFrame
	busy  bool
	err   error

	// The fields below belong to the goroutine that set busy.
	small []byte
	vec   net.Buffers
	batch []*outFrame
	iov   net.Buffers
}

func newWriter(out stream, now func() int64, spawn func(func()), fail func(error)) *writer {
	w := &writer{out: out, now: now, spawn: spawn, fail: fail}
	w.last.Store(now())
	return w
}

// sending says which goroutine writes a frame if no writer is active.
type sending int

const (
	// later: another goroutine; the sender never blocks.
	later sending = iota
	// inline: the sender, which may block.
	inline
	// inCrowd is inline if others are about to send on the connection too. Runnable
	// goroutines go first, so that their frames leave with this one.
	inCrowd
)

// sendSmall sends a frame that has no payload, as send does. It takes head.
func (w *writer) sendSmall(head *buffer, how sending) error {
	f := outFrames.Get().(*outFrame)
	f.head, f.pooled = head, true
	return w.send(f, how)
}

// send queues f, and has it written as how says unless a writer is active. On error
// f was finished.
func (w *writer) send(f *outFrame, how sending) error {
	for _, p := range f.payload {
		f.size += len(p)
	}
	w.mu.Lock()
	if w.err != nil {
		err := w.err
		f.finished = true
		w.mu.Unlock()
		f.drop()
		return err
	}
	w.queue = append(w.queue, f)
	if w.busy {
		w.mu.Unlock()
		return nil
	}
	w.busy = true
	w.mu.Unlock()
	if how == later {
		w.spawn(w.flush)
		return nil
	}
	if how == inCrowd {
		runtime.Gosched()
	}
	if w.writeBatch() {
		w.spawn(w.flush)
	}
	return nil
}

// flush writes until the queue is empty.
func (w *writer) flush() {
	for w.writeBatch() {
	}
}

// writeBatch writes some frames. If none are left it clears busy and returns false.
func (w *writer) writeBatch() bool {
	w.mu.Lock()
	w.take()
	w.mu.Unlock()
	if len(w.batch) > 0 {
		w.since.Store(w.now())
		err := w.write()
		w.since.Store(0)
		w.last.Store(w.now())
		w.finishBatch()
		if err != nil {
			w.stop(err)
			return false
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queue) == 0 || w.err != nil {
		w.busy = false
		return false
	}
	return true
}

// take moves frames from the queue to the batch. w.mu is held.
func (w *writer) take() {
	bytes, n := 0, 0
	for _, f := range w.queue {
		if n > 0 && (f.size > batchPayload || bytes >= batchBytes) {
			break
		}
		n++
		f.taken = true
		bytes += len(f.head.b) + f.size
		if f.size > batchPayload {
			break
		}
	}
	w.batch = append(w.batch[:0], w.queue[:n]...)
	rest := copy(w.queue, w.queue[n:])
	clear(w.queue[rest:])
	w.queue = w.queue[:rest]
}

// write writes the batch: heads are gathered, payloads are not.
func (w *writer) write() error {
	if f := w.batch[0]; f.size > batchPayload {
		return w.writeLarge(f)
	}
	w.small, w.vec = w.small[:0], w.vec[:0]
	need := 0
	for _, f := range w.batch {
		need += len(f.head.b)
	}
	if cap(w.small) < need {
		w.small = make([]byte, 0, max(need, 16<<10)) // never grown later: vec points into it
	}
	from := 0
	for _, f := range w.batch {
		w.small = append(w.small, f.head.b...)
		if f.size == 0 {
			continue
		}
		w.vec = append(w.vec, w.small[from:])
		from = len(w.small)
		w.vec = append(w.vec, f.payload...)
	}
	if from < len(w.small) {
		w.vec = append(w.vec, w.small[from:])
	}
	err := w.writeVec(w.finishAbandoned)
	if cap(w.small) > 4*batchBytes {
		w.small = nil
	}
	return err
}

// writeVec writes w.vec at once. If a caller interrupts it to get its buffers back,
// the rest is copied, so that the connection stays whole, and interrupted is
// called.
func (w *writer) writeVec(interrupted func()) error {
	n := 0
	for _, b := range w.vec {
		n += len(b)
	}
	w.iov = w.vec
	for {
		err := w.out.writeVec(&w.iov)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			// First reset the deadline, then check for cancelled calls: a
			// cancelling caller does it in the opposite order.
			if err = w.out.SetWriteDeadline(time.Time{}); err == nil {
				if w.anyAbandoned() {
					w.iov = net.Buffers{join(w.iov, 0)}
					interrupted()
				}
				continue
			}
		}
		clear(w.vec)
		w.bytes.Add(uint64(n))
		return err
	}
}

func (w *writer) anyAbandoned() bool {
	for _, f := range w.batch {
		if f.abandoned.Load() {
			return true
		}
	}
	return false
}

// finishAbandoned ends the cancelled frames of the batch.
func (w *writer) finishAbandoned() {
	for _, f := range w.batch {
		if f.abandoned.Load() {
			w.finish(f)
		}
	}
}

// writeLarge writes one frame with a large payload piece by piece.
func (w *writer) writeLarge(f *outFrame) error {
	rest, off := f.payload, 0 // off: in rest[0]
	interrupted := func() {
		rest, off = [][]byte{join(rest, off)}, 0
		w.finish(f)
	}
	w.vec = append(w.vec[:0], f.head.b)
	room := writePiece
	for len(rest) > 0 {
		if room == 0 {
			if err := w.writeVec(interrupted); err != nil {
				return err
			}
			w.since.Store(w.now())
			w.vec, room = w.vec[:0], writePiece
			continue
		}
		n := min(room, len(rest[0])-off)
		if n > 0 {
			w.vec = append(w.vec, rest[0][off:off+n])
			room, off = room-n, off+n
		}
		if off == len(rest[0]) {
			rest, off = rest[1:], 0
		}
	}
	return w.writeVec(interrupted)
}

// join returns a copy of bufs from offset off of the first on.
func join(bufs [][]byte, off int) []byte {
	if len(bufs) == 0 {
		return nil
	}
	n := -off
	for _, b := range bufs {
		n += len(b)
	}
	p := append(make([]byte, 0, n), bufs[0][off:]...)
	for _, b := range bufs[1:] {
		p = append(p, b...)
	}
	return p
}

// abandon returns when the payload of f, which has a done, is no longer read. It
// reports whether any part of f may have been sent.
func (w *writer) abandon(f *outFrame) (sent bool) {
	w.mu.Lock()
	if !f.taken && !f.finished {
		for i, q := range w.queue {
			if q == f {
				w.queue = append(w.queue[:i], w.queue[i+1:]...)
				break
			}
		}
		f.finished = true
		w.mu.Unlock()
		f.drop()
		<-f.done
		return false
	}
	w.mu.Unlock()
	f.abandoned.Store(true)
	w.out.SetWriteDeadline(aLongTimeAgo) //nolint:errcheck // fails only on a closed connection, which ends the frame
	<-f.done
	return true
}

// finishBatch ends all frames of the batch.
func (w *writer) finishBatch() {
	for i, f := range w.batch {
		w.batch[i] = nil
		f.head.release()
		if f.pooled {
			f.recycle()
			continue
		}
		w.finish(f) // its owner may reuse it from here on
	}
	w.batch = w.batch[:0]
}

func (w *writer) finish(f *outFrame) {
	w.mu.Lock()
	first := !f.finished
	f.finished = true
	w.mu.Unlock()
	if first {
		f.settle()
	}
}

// settle signals f's owner that its payload is free again.
func (f *outFrame) settle() {
	if f.release != nil {
		f.release()
	}
	if f.done != nil {
		f.done <- struct{}{}
	}
}

// drop ends a frame of which nothing was written.
func (f *outFrame) drop() {
	f.head.release()
	if f.pooled {
		f.recycle()
		return
	}
	f.settle()
}

func (f *outFrame) recycle() {
	f.head, f.taken, f.finished = nil, false, false
	outFrames.Put(f)
}

// stop ends the writer: queued frames and later ones fail with err. A running write
// ends when the connection is closed.
func (w *writer) stop(err error) {
	w.mu.Lock()
	first := w.err == nil
	if first {
		w.err = err
	}
	queue := w.queue
	w.queue = nil
	for _, f := range queue {
		f.finished = true
	}
	w.mu.Unlock()
	for _, f := range queue {
		f.drop()
	}
	if first {
		w.fail(err)
	}
}
