package chunkserver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/tiers"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// corruptWindow is the period over which corrupt chunks are counted.
	corruptWindow = 24 * time.Hour
	// timedSamples is how many operations the median covers. timedLeast is how many
	// must be within timedWindow for a result: an idle or new device reports none.
	// The window is a small part of the time over which the leader judges: a burst
	// must not be reported for as long as that.
	timedSamples, timedLeast = 128, 16
	timedWindow              = 5 * time.Second
	// readBeside is how many other reads of the device may run when a counted read
	// begins. With more, the read waits for them, which shows the load of the
	// device and not its speed.
	readBeside = 2
)

// readClasses are the upper limits, in bytes, of the classes of reads that are
// compared with each other; a last class has the longer ones. Short reads of one
// device must not be compared with long reads of another. The limits lie between
// the usual lengths (64 KiB, 512 KiB, a chunk of 4 MiB), with the record's head or
// without it.
var readClasses = [wire.ReadClasses - 1]int{96 << 10, 768 << 10, 6 << 20}

// watched is a device's tier that measures the device: how long its puts and reads
// take, and which chunks are corrupt. A device with too many corrupt chunks is
// distrusted: it accepts no more, and the metadata service has its chunks rebuilt
// from others. Meanwhile it serves what it still holds, each byte verified against
// its checksum.
type watched struct {
	keeper
	clock    clock.Clock
	limit    int // corrupt chunks within corruptWindow; negative: no limit
	distrust atomic.Pointer[moraine.Error]
	corrupts atomic.Uint64
	puts     timings
	// reads are those of the medium itself. Other waits of a read, above all for
	// memory, are not the fault of the device.
	reads *readTimings

	mu      sync.Mutex // guards the fields below
	corrupt map[moraine.ChunkID]time.Time
}

// timings are the durations of the last operations of a kind. The zero value has
// none. Safe for concurrent use.
type timings struct {
	mu   sync.Mutex // guards the fields below
	last [timedSamples]timed
	next int
}

type timed struct {
	at   time.Time
	took time.Duration
}

func (t *timings) add(now time.Time, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last[t.next] = timed{now, took}
	t.next = (t.next + 1) % timedSamples
}

// micros is the median of the recent operations in microseconds, or 0 if there were
// too few.
func (t *timings) micros(now time.Time) uint64 {
	t.mu.Lock()
	var took []time.Duration
	for _, p := range t.last {
		if !p.at.IsZero() && now.Sub(p.at) <= timedWindow {
			took = append(took, p.took)
		}
	}
	t.mu.Unlock()
	if len(took) < timedLeast {
		return 0
	}
	slices.Sort(took)
	return max(uint64(took[len(took)/2].Microseconds()), 1)
}

// readTimings are timings of reads, by their length.
type readTimings [len(readClasses) + 1]timings

// add notes a read of the given length that began beside others.
func (r *readTimings) add(now time.Time, bytes, others int, took time.Duration) {
	if others > readBeside {
		return
	}
	class, _ := slices.BinarySearch(readClasses[:], bytes)
	r[class].add(now, took)
}

// micros are the medians of the recent reads; nil if there is none.
func (r *readTimings) micros(now time.Time) []uint64 {
	out := make([]uint64, len(r))
	some := false
	for i := range r {
		out[i] = r[i].micros(now)
		some = some || out[i] > 0
	}
	if !some {
		return nil
	}
	return out
}

func watch(tier keeper, c clock.Clock, limit int) *watched {
	return &watched{keeper: tier, clock: c, limit: limit, reads: &readTimings{}, corrupt: make(map[moraine.ChunkID]time.Time)}
}

// Put implements tiers.Tier.
func (w *watched) Put(ctx context.Context, h tiers.Header, data []byte, sums []uint32) error {
	began := w.clock.Now()
	err := w.keeper.Put(ctx, h, data, sums)
	now := w.clock.Now()
	took := now.Sub(began)
	// A put that its deadline ended shows only a lower bound of its time. It counts
	// only if that bound is already above the observed time.
	late := errors.Is(ctx.Err(), context.DeadlineExceeded) && uint64(took.Microseconds()) > w.puts.micros(now)
	if err == nil || late {
		w.puts.add(now, took)
	}
	return err
}

// Get implements tiers.Tier.
func (w *watched) Get(ctx context.Context, id moraine.ChunkID, off int64, dst []byte) (tiers.Header, error) {
	h, err := w.keeper.Get(ctx, id, off, dst)
	w.note(id, err)
	return h, err
}

// View implements tiers.Viewer.
func (w *watched) View(ctx context.Context, id moraine.ChunkID, off, n int64) (*tiers.View, error) {
	v, err := w.keeper.View(ctx, id, off, n)
	w.note(id, err)
	return v, err
}

// Err implements tiers.Tier.
func (w *watched) Err() error {
	if err := w.keeper.Err(); err != nil {
		return err
	}
	if e := w.distrust.Load(); e != nil {
		return e
	}
	return nil
}

// note counts a corrupt chunk once, however often it is read.
func (w *watched) note(id moraine.ChunkID, err error) {
	if err == nil || !errors.Is(err, moraine.Corrupt) {
		return
	}
	now := w.clock.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, known := w.corrupt[id]; !known {
		w.corrupts.Add(1)
	}
	w.corrupt[id] = now
	for other, at := range w.corrupt {
		if now.Sub(at) > corruptWindow {
			delete(w.corrupt, other)
		}
	}
	if w.limit >= 0 && len(w.corrupt) > w.limit {
		w.distrust.CompareAndSwap(nil, &moraine.Error{Op: "chunkserver", Ref: id.String(), Kind: moraine.IOError,
			Err: fmt.Errorf("%d chunks were corrupt within a day: the device is out of service; replace it", len(w.corrupt))})
	}
}
