package mem

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/claim"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/tiers"
)

// Tier is a device's tier with the host's memory over it. It implements tiers.Tier,
// Viewer and Deleter. After a Put the chunk is on the device; only Take also keeps
// it in memory.
type Tier struct {
	m       *Memory
	number  int
	cluster moraine.UUID
	lower   Lower
	claims  claim.Set[moraine.ChunkID]
	behind  *behind

	lifeMu sync.RWMutex // guards closed; call calls.Add only while holding it
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

// put writes a chunk to the device unless it contradicts a dirty chunk. The caller
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
		t.cancelWrite(h.ID, false)
	}
	return nil
}

// alreadyThere returns the answer to a put of h where old exists with the same or a
// greater version.
func alreadyThere(old, h *tiers.Header) error {
	switch {
	case old.Version > h.Version:
		return &moraine.Error{Op: "mem.Put", Ref: h.ID.String(), Kind: moraine.Stale,
			Err: fmt.Errorf("tier has version %d, the put has version %d", old.Version, h.Version)}
	case *old != *h:
		return &moraine.Error{Op: "mem.Put", Ref: h.ID.String(), Kind: moraine.Exists,
			Err: fmt.Errorf("tier has other bytes of version %d", h.Version)}
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

// View implements tiers.Viewer. It also verifies what is in memory: a chunk may be
// there for days.
func (t *Tier) View(ctx context.Context, id moraine.ChunkID, off, n int64) (*tiers.View, error) {
	return t.lend(ctx, id, off, n, true)
}

// Lend is View for a caller that itself verifies the bytes against View.CRC, as
// each receiver on the network does. For a chunk in memory, Lend checksums only
// blocks that are lent in part, since CRC then covers bytes and not kept checksums.
// A caller that finds a mismatch calls View, which drops the damaged chunk.
func (t *Tier) Lend(ctx context.Context, id moraine.ChunkID, off, n int64) (*tiers.View, error) {
	return t.lend(ctx, id, off, n, false)
}

// LendCached is Lend of a chunk in memory. It waits for nothing, and returns nil if the chunk is
// not there, or is not right: then Lend says what is wrong.
func (t *Tier) LendCached(id moraine.ChunkID, off, n int64) *tiers.View {
	if t.begin("mem.Get") != nil {
		return nil
	}
	defer t.calls.Done()
	h := t.m.cache.pinIf(t.key(id), off, n)
	if h == nil {
		return nil
	}
	v, err := h.view(off, n, t.m.cache, false)
	if err != nil {
		return nil
	}
	return v
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
		t.m.deps.Log.Error("memory chunk checksum mismatch", "chunk", id.String(), "err", err)
		if t.behind.header(id) != nil {
			return nil, err // the only copy is here
		}
		t.m.cache.dropClean(t.key(id), 0)
	}
	if v := promote(ctx, t, id, off, n); v != nil {
		return v, nil
	}
	v, err := load(ctx, t, id, off, n)
	if err == nil && n < v.Header.Length {
		t.m.scattered.note(t.key(id), off, n, v.Header.Length)
	}
	return v, err
}

// view lends a range of a pinned chunk; on error the chunk is unpinned. It verifies
// blocks that are lent whole only if verified is set.
func (h *held) view(off, n int64, c *cache, verified bool) (*tiers.View, error) {
	fail := func(kind moraine.Kind, err error) (*tiers.View, error) {
		c.unpin(h)
		return nil, &moraine.Error{Op: "mem.Get", Ref: h.key.id.String(), Kind: kind, Err: err}
	}
	if off < 0 || n < 0 || off > h.header.Length || n > h.header.Length-off {
		return fail(moraine.InvalidArgument, fmt.Errorf("range of %d bytes at offset %d exceeds the chunk of %d bytes", n, off, h.header.Length))
	}
	first, last := off/block, (off+n+block-1)/block
	for i := first; i < last; i++ {
		if !verified && i*block >= off && min((i+1)*block, h.header.Length) <= off+n {
			continue
		}
		if crc.Sum(h.data[i*block:min((i+1)*block, h.header.Length)]) != h.sums[i] {
			return fail(moraine.Corrupt, fmt.Errorf("chunk checksum mismatch in memory, block %d", i))
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

// load reads from the device, and caches the result if it is a whole chunk.
func load(ctx context.Context, t *Tier, id moraine.ChunkID, off, n int64) (*tiers.View, error) {
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
	h := &held{key: key, header: v.Header, data: v.Data, memory: cmp.Or(v.Memory, int64(cap(v.Data))), sums: v.BlockCRCs, free: v.Release, upTo: n}
	if !t.m.cache.keep(f, h) {
		return v, nil
	}
	lent := tiers.NewView(h.header, h.data, v.CRC, func() { t.m.cache.unpin(h) })
	lent.BlockCRCs = h.sums
	return lent, nil
}

// Delete implements tiers.Tier.
func (t *Tier) Delete(ctx context.Context, id moraine.ChunkID, below moraine.LayoutVersion) error {
	return t.deleteAll(ctx, []tiers.Deletion{{ID: id, Below: below}}, false)
}

// DeleteAll implements tiers.Deleter.
func (t *Tier) DeleteAll(ctx context.Context, deletions []tiers.Deletion) error {
	return t.deleteAll(ctx, deletions, true)
}

// deleteAll is DeleteAll. ordered is for Left: the metadata service knows of the deletions.
func (t *Tier) deleteAll(ctx context.Context, deletions []tiers.Deletion, ordered bool) error {
	const op = "mem.Delete"
	if err := t.begin(op); err != nil {
		return err
	}
	defer t.calls.Done()
	for _, d := range deletions {
		if t.behind.header(d.ID) == nil {
			continue
		}
		// A writer behind holds the claim. After it, the chunk is on the device and
		// is deleted there, or will never be on it.
		if err := t.claims.Take(ctx, d.ID); err != nil {
			return gaveUp(op, d.ID, err)
		}
		if h := t.behind.header(d.ID); h != nil && h.Version < d.Below {
			t.cancelWrite(d.ID, ordered)
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

// List implements tiers.Tier. It lists the chunks of the device and the dirty ones.
func (t *Tier) List(ctx context.Context, from moraine.ChunkID, limit int) ([]tiers.Header, error) {
	if err := t.begin("mem.List"); err != nil {
		return nil, err
	}
	defer t.calls.Done()
	// List the dirty ones first: a chunk written in between is then in both lists.
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
	// Count a chunk that was written meanwhile twice rather than not at all: the
	// device must not seem to have more space than it has.
	bytes = max(bytes, before)
	u.Chunks += uint64(chunks)
	u.UsedBytes += uint64(bytes)
	return u
}

// Err implements tiers.Tier.
func (t *Tier) Err() error { return t.lower.Err() }

// Close implements tiers.Tier. It waits for Run, which writes the dirty chunks; the
// ctx of Run must end. A second Close does nothing.
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
	for _, h := range t.behind.from(moraine.ChunkID{}) { // those that could not be written
		t.cancelWrite(h.ID, false)
	}
	t.m.cache.dropTier(t.number)
	return t.lower.Close()
}

// gaveUp returns the error of a call whose ctx ended.
func gaveUp(op string, id moraine.ChunkID, err error) error {
	kind := moraine.Canceled
	if err == context.DeadlineExceeded {
		kind = moraine.Timeout
	}
	return &moraine.Error{Op: op, Ref: id.String(), Kind: kind, Err: err}
}
