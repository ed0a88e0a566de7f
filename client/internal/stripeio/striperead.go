package stripeio

import (
	"context"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/internal/crc"
)

// stripeRead reads one range of a stripe. It reads chunks in parallel directly into the
// caller's slice. It rebuilds those that fail, or are late, from the same range of others
// (rebuild.go), and waits for no more than that needs.
type stripeRead struct {
	c *Engine
	s *Record
	// trust makes it use devices that failed recently like all others.
	trust bool
	wants []*chunkWant
	wait  wait // of its requests

	// leases have the memory for rebuilding, until the end of run.
	leases []*lease

	mu    sync.Mutex
	wrong map[int]error // errors of chunks, by index; nil: none

	alone aloneRead
	// one holds wants and its element, for a read of one chunk.
	one struct {
		want chunkWant
		list [1]*chunkWant
	}
}

// chunkWant is a wanted range [lo, lo+len(dst)) of one chunk.
type chunkWant struct {
	index  int
	lo     int64
	dst    []byte
	state  wantState
	cancel context.CancelFunc
	sums   crc.Tally // of what the request has put into dst
	// spare is where a late chunk is rebuilt, because its request still writes to dst.
	spare []byte
	// helper marks a chunk outside the wanted range, read to rebuild others from.
	helper bool
}

type wantState uint8

const (
	asked  wantState = iota // the request is running
	late                    // the request is running, and took too long
	failed                  // it failed, or was not made
	done                    // dst has the bytes
)

func (w *chunkWant) end() int64 { return w.lo + int64(len(w.dst)) }

// newStripeRead plans the read of [off, off+len(dst)) of a stripe's bytes.
func newStripeRead(c *Engine, s *Record, off int64, dst []byte, trust bool) *stripeRead {
	r := &stripeRead{c: c, s: s, trust: trust}
	if s.Scheme.IsCopies() {
		r.wantOne(chunkWant{index: r.bestCopy(), lo: off, dst: dst})
		return r
	}
	chunk := s.Scheme.ChunkLen(s.Length)
	if lo := off % chunk; lo+int64(len(dst)) <= chunk && len(dst) > 0 {
		r.wantOne(chunkWant{index: int(off / chunk), lo: lo, dst: dst})
		return r
	}
	for len(dst) > 0 {
		lo := off % chunk
		n := min(chunk-lo, int64(len(dst)))
		r.wants = append(r.wants, &chunkWant{index: int(off / chunk), lo: lo, dst: dst[:n]})
		dst, off = dst[n:], off+n
	}
	return r
}

// wantOne makes one chunk the only wanted one.
func (r *stripeRead) wantOne(w chunkWant) {
	r.one.want = w
	r.one.list[0] = &r.one.want
	r.wants = r.one.list[:]
}

// bestCopy returns the copy to read: a different one for each stripe, so that load spreads, and
// one on a healthy device if possible.
func (r *stripeRead) bestCopy() int {
	n := r.s.Scheme.Chunks()
	first := int(uint64(r.s.ID) % uint64(n))
	for i := range n {
		if at := (first + i) % n; r.usable(at) {
			return at
		}
	}
	return first
}

// usable reports whether a chunk's device is expected to answer.
func (r *stripeRead) usable(index int) bool {
	return r.trust || r.c.serves(r.s.Chunks[index].Device)
}

// note records the error of a chunk.
func (r *stripeRead) note(index int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.wrong == nil {
		r.wrong = map[int]error{}
	}
	r.wrong[index] = err
}

func (r *stripeRead) wrongWith(index int) (error, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	err, ok := r.wrong[index]
	return err, ok
}

// foundBad reports whether a chunk was lost, wrong, or not the record's.
func (r *stripeRead) foundBad() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, err := range r.wrong {
		if isBad(moraine.KindOf(err)) {
			return true
		}
	}
	return false
}

type wantResult struct {
	want *chunkWant
	err  error
}

// run reads. After it returns, with or without an error, none of its requests is running.
func (r *stripeRead) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	defer func() {
		cancel()
		work.Wait()
		for _, l := range r.leases {
			l.release()
		}
	}()
	for _, w := range r.wants {
		if !r.usable(w.index) {
			w.state = failed
		}
	}
	r.addHelpers(ctx)
	if err := r.c.reading.take(ctx, r.bytes()); err != nil {
		return err
	}
	r.wait = r.c.pace.queue.join()
	if len(r.wants) == 1 && r.wants[0].state == asked {
		if clk, ok := r.c.clock.(clock.Timed); ok {
			return r.runAlone(ctx, cancel, &work, clk)
		}
	}
	results := make(chan wantResult, len(r.wants))
	longest := 0
	for _, w := range r.wants {
		if w.state == failed {
			continue
		}
		longest = max(longest, len(w.dst))
		r.ask(ctx, cancel, &work, w, results)
	}
	late := r.c.pace.late(longest)
	return r.collect(ctx, &work, results, r.c.clock.After(late), late)
}

// ask begins to read a chunk into its place. end ends the whole read: with a single chunk,
// ending that is the same.
func (r *stripeRead) ask(ctx context.Context, end context.CancelFunc, work *sync.WaitGroup, w *chunkWant, results chan<- wantResult) {
	own, ended := ctx, func() {}
	w.cancel = end
	if len(r.wants) > 1 {
		own, w.cancel = context.WithCancel(ctx)
		ended = w.cancel
	}
	work.Go(func() {
		defer ended()
		results <- wantResult{w, r.c.getChunkSums(own, r.s, w.index, w.lo, w.dst, &w.sums)}
	})
}

// collect waits until each chunk has arrived or was rebuilt. When hedge fires, late after the
// requests, it hedges the missing ones.
func (r *stripeRead) collect(ctx context.Context, work *sync.WaitGroup, results <-chan wantResult, hedge <-chan time.Time, late time.Duration) error {
	var rebuilt chan error
	var rebuilding []*chunkWant
	var cause error // of a failed rebuild: no other is begun
	for {
		open, missing := r.count()
		if missing == 0 && open == 0 {
			return nil
		}
		if rebuilt == nil && cause == nil && open == 0 {
			rebuilding = r.missing()
			rebuilt = r.rebuildInBackground(ctx, work, rebuilding)
		}
		if rebuilt == nil && cause != nil && r.waiting() == 0 {
			return cause
		}
		select {
		case res := <-results:
			r.settle(res)
		case <-hedge:
			hedge = nil
			if r.hedge() {
				hedge = r.c.clock.After(late / 2)
			}
		case err := <-rebuilt:
			rebuilt = nil
			if cause = err; err == nil {
				return r.useRebuilt(rebuilding, results)
			}
		case <-ctx.Done():
			return retry.ContextError(ctx, "read stripe")
		}
	}
}

// addHelpers plans to read, at once, the other chunks that are necessary to rebuild those on
// devices known to be bad. It does so only if the rest of the read helps with that too, and
// there is memory. It only saves a round: gather reads what is missing afterwards.
func (r *stripeRead) addHelpers(ctx context.Context) {
	var gone *chunkWant
	lost := 0
	for _, w := range r.wants {
		if w.state == failed {
			gone = w
			lost++
		}
	}
	need := int(r.s.Scheme.K) - (len(r.wants) - lost)
	if gone == nil || !r.s.rebuildable() || need <= 0 || need > lost || r.s.Scheme.IsCopies() {
		return
	}
	for _, w := range r.wants {
		if w.lo > gone.lo || w.end() < gone.end() {
			return
		}
	}
	asked := map[int]bool{}
	for _, w := range r.wants {
		asked[w.index] = true
	}
	l := r.c.tryLease(int64(need * len(gone.dst)))
	if l == nil {
		return
	}
	r.leases = append(r.leases, l)
	for i := int(r.s.Scheme.K); i < len(r.s.Chunks) && need > 0; i++ {
		if asked[i] || !r.usable(i) {
			continue
		}
		buf, err := l.own(ctx, len(gone.dst))
		if err != nil {
			return
		}
		r.wants = append(r.wants, &chunkWant{index: i, lo: gone.lo, dst: buf, helper: true})
		need--
	}
}

// bytes returns how many bytes of chunks the read is about to request.
func (r *stripeRead) bytes() (n int64) {
	for _, w := range r.wants {
		if w.state == asked {
			n += int64(len(w.dst))
		}
	}
	return n
}

// count returns how many chunks the read waits for, and how many must be rebuilt.
func (r *stripeRead) count() (open, missing int) {
	for _, w := range r.wants {
		switch w.state {
		case asked:
			open++
		case late, failed:
			if !w.helper {
				missing++
			}
		}
	}
	return open, missing
}

// waiting counts the chunks whose request is running.
func (r *stripeRead) waiting() int {
	n := 0
	for _, w := range r.wants {
		if w.state == asked || w.state == late {
			n++
		}
	}
	return n
}

func (r *stripeRead) missing() []*chunkWant {
	var m []*chunkWant
	for _, w := range r.wants {
		if !w.helper && (w.state == late || w.state == failed) {
			m = append(m, w)
		}
	}
	return m
}

// settle processes the result of a request.
func (r *stripeRead) settle(res wantResult) {
	if res.err == nil {
		res.want.state = done
		res.want.sums.Keep()
		return
	}
	r.note(res.want.index, res.err)
	res.want.state = failed
}

// hedge stops waiting for the open chunks, if other chunks may replace them. It reports whether
// to try again later: while the client gets what it requested before, they are not late. If more are open than the others can replace, most are slow and not lost,
// and abandoning all would leave the read to the slowest. Also, answers bring more credit.
func (r *stripeRead) hedge() (again bool) {
	open, _ := r.count()
	if !r.s.rebuildable() || open == 0 {
		return false
	}
	if r.c.pace.queue.moves(&r.wait) {
		return true
	}
	unanswered := 0
	for _, w := range r.wants {
		if w.state != done {
			unanswered++
		}
	}
	if unanswered > int(r.s.Scheme.M) || !r.c.pace.spend(max(1, int(r.s.Scheme.K)-len(r.wants)+open)) {
		return true
	}
	r.c.metrics.ChunksHedged.Add(float64(open))
	for _, w := range r.wants {
		if w.state == asked {
			w.state = late
		}
	}
	return false
}

// useRebuilt ends the late requests, and copies the rebuilt bytes into place unless the request
// has brought them meanwhile.
func (r *stripeRead) useRebuilt(rebuilt []*chunkWant, results <-chan wantResult) error {
	for _, w := range r.wants {
		if w.state == late {
			w.cancel()
			dev := r.s.Chunks[w.index].Device
			if d, known := r.c.Topology.lookup(dev); known {
				r.c.health.lagged(dev, d.host)
			}
		}
	}
	for r.waiting() > 0 {
		res := <-results
		r.settle(res)
	}
	won := false
	for _, w := range rebuilt {
		if w.spare != nil && w.state != done {
			copy(w.dst, w.spare)
			won = true
		}
		w.state = done
	}
	r.c.metrics.StripesRebuilt.Inc()
	if won {
		r.c.metrics.HedgesWon.Inc()
	}
	return nil
}
