package stripeio

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/internal/bufpool"
	"github.com/morainefs/moraine/internal/limit"
)

// source is a range of a chunk in memory.
type source struct {
	index int
	lo    int64
	b     []byte
}

// covers returns the part [lo, lo+n) of the source, or nil if it lacks some of it.
func (s source) covers(lo int64, n int) []byte {
	if lo < s.lo || lo+int64(n) > s.lo+int64(len(s.b)) {
		return nil
	}
	return s.b[lo-s.lo:][:n]
}

// gatherer collects the same range of any k chunks of a stripe.
type gatherer struct {
	c       *Engine
	s       *Record
	exclude func(index int) bool // chunks not to read
	last    func(index int) bool // chunks to read only after all others
	// doubtful are chunks to read after the others, but before those in last; may be nil.
	doubtful func(index int) bool
	// wrong returns what is known to be wrong with a chunk; may be nil.
	wrong   func(index int) (error, bool)
	free    []source // ranges already in memory
	buffers *lease
}

// gather returns slices by index of chunk, k of them not nil, all of n bytes from lo. They lie
// in buffers of the lease or in free sources. After it returns, nothing writes to them.
func (g *gatherer) gather(ctx context.Context, lo int64, n int) ([][]byte, error) {
	have := make([][]byte, g.s.Scheme.Chunks())
	need := int(g.s.Scheme.K)
	for _, f := range g.free {
		if b := f.covers(lo, n); b != nil && need > 0 && have[f.index] == nil {
			have[f.index] = b
			need--
		}
	}
	if need == 0 {
		return have, nil
	}
	candidates := g.candidates(have)
	if len(candidates) < need {
		return nil, g.tooFew(g.known())
	}
	bufs, err := g.buffers.get(ctx, min(need+1, len(candidates)), n)
	if err != nil {
		return nil, err
	}
	return have, g.fetch(ctx, lo, need, candidates, bufs, have)
}

// known returns what is known to be wrong with the excluded chunks. With too many of them,
// gather sends no request.
func (g *gatherer) known() (errs []error) {
	for i := range g.s.Chunks {
		if g.wrong == nil || !g.exclude(i) {
			continue
		}
		if err, ok := g.wrong(i); ok {
			errs = append(errs, err)
		}
	}
	return errs
}

// isLate reports whether an excluded chunk was requested and nothing is known to be wrong with
// it: its server may still answer.
func (g *gatherer) isLate(index int) bool {
	if g.wrong == nil {
		return false
	}
	_, ok := g.wrong(index)
	return !ok
}

// candidates returns the chunks that may be read, the best first. The ring of
// chunks begins at the stripe's number, so that the load spreads.
func (g *gatherer) candidates(have [][]byte) []int {
	var first, doubtful, last []int
	n := len(have)
	for i := range n {
		at := (i + int(uint64(g.s.ID)%uint64(n))) % n
		switch {
		case have[at] != nil || g.exclude(at):
		case g.last(at):
			last = append(last, at)
		case g.doubtful != nil && g.doubtful(at):
			doubtful = append(doubtful, at)
		default:
			first = append(first, at)
		}
	}
	// A data chunk saves work: it need not be computed.
	k := int(g.s.Scheme.K)
	slices.SortStableFunc(first, func(a, b int) int { return boolInt(a >= k) - boolInt(b >= k) })
	return slices.Concat(first, doubtful, last)
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// fetch reads chunks in order of preference, the next one for each that fails, and one more if
// they are late.
func (g *gatherer) fetch(ctx context.Context, lo int64, need int, candidates []int, bufs [][]byte, have [][]byte) error {
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel()
	type result struct {
		index int
		buf   []byte
		err   error
	}
	results := make(chan result, len(candidates))
	under := 0
	next := func() {
		index, buf := candidates[0], bufs[0]
		candidates, bufs = candidates[1:], bufs[1:]
		under++
		g.c.reading.owe(int64(len(buf)))
		work.Go(func() { results <- result{index, buf, g.c.getChunk(ctx, g.s, index, lo, buf)} })
	}
	for range need {
		next()
	}
	var hedge <-chan time.Time
	if len(candidates) > 0 {
		hedge = g.c.clock.After(2 * g.c.pace.late(len(bufs[0])))
	}
	var errs []error
	for need > 0 {
		select {
		case r := <-results:
			under--
			if r.err == nil {
				have[r.index] = r.buf
				need--
				continue
			}
			errs = append(errs, r.err)
			bufs = append(bufs, r.buf)
			if len(candidates) > 0 {
				next()
			} else if under < need {
				return g.tooFew(append(g.known(), errs...))
			}
		case <-hedge:
			hedge = nil
			if len(candidates) > 0 && len(bufs) > 0 {
				next()
			}
		case <-ctx.Done():
			return retry.ContextError(ctx, "gather chunks")
		}
	}
	return nil
}

// tooFew returns the error for fewer than k readable chunks. It is Lost if chunks are lost or
// wrong, Unavailable if servers did not answer, and the server's refusal if there was one.
func (g *gatherer) tooFew(errs []error) error {
	unsure, bad := len(errs) == 0, 0
	for i := range g.s.Chunks {
		if g.exclude(i) {
			unsure = unsure || g.isLate(i)
		} else {
			unsure = unsure || g.last(i)
		}
	}
	for _, err := range errs {
		if isBad(moraine.KindOf(err)) {
			bad++
		} else {
			unsure = true
		}
	}
	kind := moraine.Lost
	if unsure && bad <= int(g.s.Scheme.M) { // with more bad chunks, no answer of the others helps
		kind = moraine.Unavailable
	}
	for _, err := range errs {
		if k := moraine.KindOf(err); isRefusal(k) {
			kind = k
		}
	}
	short := fmt.Errorf("fewer than %d of %d chunks can be read", g.s.Scheme.K, len(g.s.Chunks))
	if len(errs) > 0 {
		short = fmt.Errorf("%w: %w", short, errors.Join(errs...))
	}
	return &moraine.Error{Op: "rebuild", Ref: g.s.ID.String(), Kind: kind, Err: short}
}

// lease holds buffers and their share of the client's bound on read memory until release. A
// lease takes its whole share at once, so that none waits for more while it has some.
type lease struct {
	c     *Engine
	bound *limit.Semaphore // the bound of taken
	taken int64
	bufs  []*bufpool.Buffer
	byLen map[int][][]byte // for reuse
}

// newLease waits until it can take bytes, no longer than the client's patience. It takes at
// most the whole bound.
func (e *Engine) newLease(ctx context.Context, bytes int64) (*lease, error) {
	l := &lease{c: e, bound: e.Reads, taken: min(bytes, e.readBytes), byLen: map[int][][]byte{}}
	if err := e.Reads.Acquire(ctx, l.taken); err != nil {
		return nil, err
	}
	return l, nil
}

// tryLease is newLease without the wait: it returns nil if so many bytes are not free. It has
// its own bound. A holder of tryLease memory may still wait for a lease, so that memory must
// not delay the leases that others wait for.
func (e *Engine) tryLease(bytes int64) *lease {
	if !e.Helpers.TryAcquire(bytes) {
		return nil
	}
	return &lease{c: e, bound: e.Helpers, taken: bytes, byLen: map[int][][]byte{}}
}

// get returns count buffers of n bytes. It reuses those of an earlier get of the same n.
func (l *lease) get(ctx context.Context, count, n int) ([][]byte, error) {
	have := l.byLen[n]
	for len(have) < count {
		b, err := l.c.Pool.Get(ctx, n)
		if err != nil {
			return nil, err
		}
		l.bufs = append(l.bufs, b)
		have = append(have, b.Bytes())
	}
	l.byLen[n] = have
	return slices.Clone(have[:count]), nil
}

// own returns one buffer of n bytes that get does not reuse.
func (l *lease) own(ctx context.Context, n int) ([]byte, error) {
	b, err := l.c.Pool.Get(ctx, n)
	if err != nil {
		return nil, err
	}
	l.bufs = append(l.bufs, b)
	return b.Bytes(), nil
}

// release returns all memory. On a nil lease it does nothing.
func (l *lease) release() {
	if l == nil {
		return
	}
	for _, b := range l.bufs {
		b.Release()
	}
	l.bufs = nil
	l.bound.Release(l.taken)
}
