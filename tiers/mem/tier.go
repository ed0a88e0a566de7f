package mem

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/claim"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/tiers"
)

// Tier is a device's tier with the host's memory over it. It implements
// tiers.Tier, Viewer and Deleter: a Put is on the device when it returns, and is
// kept in memory only by Take.
type Tier struct {
	m       *Memory
	number  int
	cluster moraine.UUID
	lower   Lower
	claims  claim.Set[moraine.ChunkID]
	behind  *behind

	lifeMu sync.RWMutex // guards closed; calls.Add only under it
	closed bool
	calls  sync.WaitGroup
}

var (
	_ tiers.Tier    = (*Tier)(nil)
	_ tiers.Viewer  = (*Tier)(nil)
	_ tiers.Deleter = (*Tier)(nil)
)

func (t *Tier) key(id moraine.ChunkID) chunkKey { return chunkKey{t.number, id} }

// begin admits a call, which must call t.calls.Done at its end.
func (t *Tier) begin(op string) error {
	t.lifeMu.RLock()
	defer t.lifeMu.RUnlock()
	if t.closed {
		return &moraine.Error{Op: op, Kind: moraine.Unavailable}
	}
	t.calls.Add(1)
	return nil
}

// Put implements tiers.Tier.
func (t *Tier) Put(ctx context.Context, h tiers.Header, data []byte, sums []uint32) error {
	const op = "mem.Put"
	if err := t.begin(op); err != nil {
		return err
	}
	defer t.calls.Done()
	if err := t.claims.Take(ctx, h.ID); err != nil {
		return gaveUp(op, h.ID, err)
	}
	defer t.claims.Drop(h.ID)
	if err := t.put(ctx, h, data, sums); err != nil {
		return err
	}
	t.m.cache.dropOther(t.key(h.ID), &h)
	return nil
}

// put writes to the device what does not contradict a dirty chunk. The caller
// holds the claim.
func (t *Tier) put(ctx context.Context, h tiers.Header, data []byte, sums []uint32) error {
	old := t.behind.header(h.ID)
	if old != nil && old.Version >= h.Version && *old != h {
		return alreadyThere(old, &h)
	}
	if err := t.lower.Put(ctx, h, data, sums); err != nil {
		return err
	}
	if old != nil && *old != h {
		t.forgo(h.ID)
	}
	return nil
}

// alreadyThere is the answer to a put of h where old, of no smaller version, is.
func alreadyThere(old, h *tiers.Header) error {
	switch {
	case old.Version > h.Version:
		return &moraine.Error{Op: "mem.Put", Ref: h.ID.String(), Kind: moraine.Stale,
			Err: fmt.Errorf("version %d is here, %d was put", old.Version, h.Version)}
	case *old != *h:
		return &moraine.Error{Op: "mem.Put", Ref: h.ID.String(), Kind: moraine.Exists,
			Err: fmt.Errorf("other bytes of version %d are here", h.Version)}
	}
	return nil
}

// Get implements tiers.Tier.
func (t *Tier) Get(ctx context.Context, id moraine.ChunkID, off int64, dst []byte) (tiers.Header, error) {
	v, err := t.View(ctx, id, off, int64(len(dst)))
	if err != nil {
		return tiers.Header{}, err
	}
	defer v.Release()
	copy(dst, v.Data)
	return v.Header, nil
}

// View implements tiers.Viewer. What is in memory is verified too: a chunk may lie
// there for days.
func (t *Tier) View(ctx context.Context, id moraine.ChunkID, off, n int64) (*tiers.View, error) {
	return t.lend(ctx, id, off, n, true)
}

// Lend is View for who holds the bytes against View.CRC himself, as who gets them over
// the network must anyway: of what is in memory, where nobody has touched it for long, only
// blocks of which a part is lent are summed, since CRC is then made of the bytes and not of
// the kept sums. Who finds that the bytes are others asks View, which drops what is wrong.
func (t *Tier) Lend(ctx context.Context, id moraine.ChunkID, off, n int64) (*tiers.View, error) {
	return t.lend(ctx, id, off, n, false)
}

func (t *Tier) lend(ctx context.Context, id moraine.ChunkID, off, n int64, verified bool) (*tiers.View, error) {
	if err := t.begin("mem.Get"); err != nil {
		return nil, err
	}
	defer t.calls.Done()
	if h := t.m.cache.pin(t.key(id), off, n); h != nil {
		v, err := h.view(off, n, t.m.cache, verified)
		if !errors.Is(err, moraine.Corrupt) {
			return v, err
		}
		t.m.deps.Log.Error("a chunk in memory does not match its checksums", "chunk", id.String(), "err", err)
		if t.behind.header(id) != nil {
			return nil, err // it is nowhere else
		}
		t.m.cache.dropClean(t.key(id), 0)
	}
	return t.load(ctx, id, off, n)
}

// view lends a range of a pinned chunk; on error it is not pinned any more. Blocks that
// are lent whole are summed only if they are to be verified.
func (h *held) view(off, n int64, c *cache, verified bool) (*tiers.View, error) {
	fail := func(kind moraine.Kind, err error) (*tiers.View, error) {
		c.unpin(h)
		return nil, &moraine.Error{Op: "mem.Get", Ref: h.key.id.String(), Kind: kind, Err: err}
	}
	if off < 0 || n < 0 || off > h.header.Length || n > h.header.Length-off {
		return fail(moraine.InvalidArgument, fmt.Errorf("%d bytes at %d of a chunk of %d", n, off, h.header.Length))
	}
	first, last := off/block, (off+n+block-1)/block
	for i := first; i < last; i++ {
		if !verified && i*block >= off && min((i+1)*block, h.header.Length) <= off+n {
			continue
		}
		if crc.Sum(h.data[i*block:min((i+1)*block, h.header.Length)]) != h.sums[i] {
			return fail(moraine.Corrupt, fmt.Errorf("block %d of the chunk in memory does not match its checksum", i))
		}
	}
	sum := h.header.CRC
	if n < h.header.Length {
		sum = crc.Range(h.data[off:off+n], h.sums, off, h.header.Length)
	}
	v := tiers.NewView(h.header, h.data[off:off+n:off+n], sum, func() { c.unpin(h) })
	v.BlockCRCs = h.sums
	return v, nil
}

// load reads from the device, and keeps what it read if that is a whole chunk.
func (t *Tier) load(ctx context.Context, id moraine.ChunkID, off, n int64) (*tiers.View, error) {
	key := t.key(id)
	if off != 0 || n <= 0 {
		return t.lower.View(ctx, id, off, n)
	}
	f, mine := t.m.cache.begin(key)
	v, err := t.lower.View(ctx, id, off, n)
	if !mine {
		return v, err
	}
	if err != nil || v.Header.Length != n || v.BlockCRCs == nil {
		t.m.cache.forget(key, f)
		return v, err
	}
	h := &held{key: key, header: v.Header, data: v.Data, sums: v.BlockCRCs, free: v.Release, upTo: n}
	if !t.m.cache.keep(f, h) {
		return v, nil
	}
	lent := tiers.NewView(h.header, h.data, v.CRC, func() { t.m.cache.unpin(h) })
	lent.BlockCRCs = h.sums
	return lent, nil
}

// Delete implements tiers.Tier.
func (t *Tier) Delete(ctx context.Context, id moraine.ChunkID, below moraine.LayoutVersion) error {
	return t.DeleteAll(ctx, []tiers.Deletion{{ID: id, Below: below}})
}

// DeleteAll implements tiers.Deleter.
func (t *Tier) DeleteAll(ctx context.Context, deletions []tiers.Deletion) error {
	const op = "mem.Delete"
	if err := t.begin(op); err != nil {
		return err
	}
	defer t.calls.Done()
	for _, d := range deletions {
		if t.behind.header(d.ID) == nil {
			continue
		}
		// Who writes it behind holds the claim meanwhile: afterwards it is on the
		// device, and deleted there, or will never be.
		if err := t.claims.Take(ctx, d.ID); err != nil {
			return gaveUp(op, d.ID, err)
		}
		if h := t.behind.header(d.ID); h != nil && h.Version < d.Below {
			t.forgo(d.ID)
		}
		t.claims.Drop(d.ID)
	}
	if err := t.lower.DeleteAll(ctx, deletions); err != nil {
		return err
	}
	for _, d := range deletions {
		t.m.cache.dropClean(t.key(d.ID), d.Below)
		t.behind.forgetRotten(d)
	}
	return nil
}

// List implements tiers.Tier: what the device has, and what is to come to it.
func (t *Tier) List(ctx context.Context, from moraine.ChunkID, limit int) ([]tiers.Header, error) {
	if err := t.begin("mem.List"); err != nil {
		return nil, err
	}
	defer t.calls.Done()
	// Dirty ones first: what is cleaned in between is in both.
	dirty := t.behind.from(from)
	below, err := t.lower.List(ctx, from, limit)
	if err != nil || len(dirty) == 0 || limit <= 0 {
		return below, err
	}
	return merge(below, dirty, limit), nil
}

// Usage implements tiers.Tier.
func (t *Tier) Usage() tiers.Usage {
	_, before := t.behind.more()
	u := t.lower.Usage()
	chunks, bytes := t.behind.more()
	// What was written meanwhile rather counts twice than not at all: there would seem to
	// be room that there is not.
	bytes = max(bytes, before)
	u.Chunks += uint64(chunks)
	u.UsedBytes += uint64(bytes)
	return u
}

// Err implements tiers.Tier.
func (t *Tier) Err() error { return t.lower.Err() }

// Close implements tiers.Tier. It waits for Run, whose ctx must end, and which
// writes what is dirty. A second Close does nothing.
func (t *Tier) Close() error {
	t.lifeMu.Lock()
	if t.closed {
		t.lifeMu.Unlock()
		return nil
	}
	t.closed = true
	t.lifeMu.Unlock()
	t.calls.Wait()
	t.behind.running.Wait()
	t.forgoAll()
	t.m.cache.dropTier(t.number)
	return t.lower.Close()
}

// contextError is the error of a call whose ctx ended.
func gaveUp(op string, id moraine.ChunkID, err error) error {
	kind := moraine.Canceled
	if err == context.DeadlineExceeded {
		kind = moraine.Timeout
	}
	return &moraine.Error{Op: op, Ref: id.String(), Kind: kind, Err: err}
}
