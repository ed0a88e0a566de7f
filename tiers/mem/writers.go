package mem

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/morainefs/moraine"
)

const (
	// calm is how many chunks of a device are written behind concurrently while there is room
	// for more: each holds up what others sync on the same disk, such as the commit of the file that
	// the chunks belong to. writers is how many it may be when the room gets short: enough for
	// them to share syncs.
	calm    = 2
	writers = 8
	// retryPause is how long a chunk waits after the device had no space for it.
	retryPause = time.Second
	// lastTries is how often such a chunk is retried after the end was requested.
	lastTries = 3
)

// Admit allows Take, from now on, to leave chunks that are written behind. Run must
// follow.
func (t *Tier) Admit() { t.behind.accept(true) }

// Run writes behind the chunks that Take has taken, until ctx ends. It returns when
// all of them are written. An error names those that could not be. It is called
// once.
func (t *Tier) Run(ctx context.Context) error {
	t.behind.running.Add(1)
	defer t.behind.running.Done()
	t.behind.accept(true)
	var g errgroup.Group
	for range writers {
		g.Go(func() error { return t.writeBehind(context.WithoutCancel(ctx)) })
	}
	<-ctx.Done()
	t.behind.accept(false)
	return g.Wait()
}

// writeBehind is one writer.
func (t *Tier) writeBehind(ctx context.Context) error {
	var lost error
	for {
		d := t.behind.next()
		if d == nil {
			return lost
		}
		err := t.clean(ctx, d)
		t.behind.wrote()
		if err != nil {
			t.m.deps.Log.Error("memory chunk write failed", "chunk", d.key.id.String(), "err", err)
			lost = errors.Join(lost, err)
		}
	}
}

// clean writes one chunk. It retries while the device is full. If the write fails,
// the chunk stays in memory for as long as the process lives.
func (t *Tier) clean(ctx context.Context, d *dirtyChunk) error {
	tries := 0
	for {
		err := t.write(ctx, d)
		if err == nil {
			return nil
		}
		if last := !t.behind.admits(); last {
			tries++
		}
		if !errors.Is(err, moraine.NoSpace) || tries >= lastTries {
			return t.fail(d, err)
		}
		t.behind.rest(func() { <-t.m.deps.Clock.After(retryPause) })
	}
}

// write puts a chunk on the device, unless the chunk was canceled.
func (t *Tier) write(ctx context.Context, d *dirtyChunk) error {
	if err := t.claims.Take(ctx, d.key.id); err != nil {
		return gaveUp("mem.write", d.key.id, err)
	}
	defer t.claims.Drop(d.key.id)
	t.behind.mu.Lock()
	canceled := d.canceled
	t.behind.mu.Unlock()
	if !canceled {
		t.verify(d)
		err := t.lower.Put(ctx, d.held.header, d.data, d.sums)
		// Put brought a later version, which has replaced this one.
		if err != nil && !errors.Is(err, moraine.Stale) {
			return err
		}
	}
	t.finish(d)
	return nil
}

// fail ends the write of a chunk without success. The chunk stays in memory, unless
// its write was canceled meanwhile.
func (t *Tier) fail(d *dirtyChunk, err error) error {
	t.behind.mu.Lock()
	d.err, d.failed = err, true
	canceled := d.canceled
	t.behind.mu.Unlock()
	close(d.done)
	if canceled {
		t.release(d)
	}
	return err
}

// finish ends a dirty chunk: it is on the device, or will never be. The caller
// holds the claim.
func (t *Tier) finish(d *dirtyChunk) {
	t.behind.mu.Lock()
	t.behind.remove(d, false)
	t.behind.mu.Unlock()
	t.release(d)
	close(d.done)
}

// release returns the memory of a dirty chunk.
func (t *Tier) release(d *dirtyChunk) {
	size := d.size()
	t.m.cache.cleaned(d.held)
	t.m.dirty.Release(size)
}

// cancelWrite ends a dirty chunk that need not be written. Its writer, if it has one,
// notices that. deleted is for Left. The caller holds the claim.
func (t *Tier) cancelWrite(id moraine.ChunkID, deleted bool) {
	t.behind.mu.Lock()
	d := t.behind.chunks[id]
	failed, waits := d != nil && d.failed, false
	if d != nil {
		t.behind.remove(d, deleted)
		d.canceled = true
		waits = t.behind.undefer(d)
	}
	t.behind.mu.Unlock()
	t.m.cache.drop(t.key(id))
	if failed || waits { // no writer has it
		t.release(d)
	}
	if waits {
		close(d.done)
	}
}
