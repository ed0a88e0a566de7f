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
	// corruptWindow is over how long corrupt chunks are counted.
	corruptWindow = 24 * time.Hour
	// timedSamples is of how many operations the median is taken, timedLeast how many there
	// must be within timedWindow for it to say anything: of a device that does nothing, or
	// has just begun, nothing is said. The window is a small part of the time over which the
	// leader judges: a burst must not be told of for as long as it takes to be judged by it.
	timedSamples, timedLeast = 128, 16
	timedWindow              = 5 * time.Second
	// readBeside is beside how many others of the device a read may begin and count: beside
	// more it waits for them, which tells what is asked of the device and not what it can.
	readBeside = 2
)

// readClasses are up to how many bytes reads have that are held against each other; a last
// class has the longer ones. A short read here is not to be held against a long one there.
// The bounds lie between the usual lengths (64 KiB, 512 KiB, a chunk of 4 MiB), with the
// record's head or without it.
var readClasses = [wire.ReadClasses - 1]int{96 << 10, 768 << 10, 6 << 20}

// watched is a device's tier that notes how the device does: how long its puts
// and reads take, and which chunks it gives back wrong. One with too many of these is
// distrusted: it takes nothing more, and the service has all that it holds rebuilt
// from others. What it still holds is served meanwhile, each byte against its sum.
type watched struct {
	keeper
	clock    clock.Clock
	limit    int // corrupt chunks within corruptWindow; negative: any number
	distrust atomic.Pointer[moraine.Error]
	corrupts atomic.Uint64
	puts     timings
	// reads are those of the medium itself: what a read waits for beside it, memory above
	// all, is no fault of the device.
	reads *readTimings

	mu      sync.Mutex // guards what follows
	corrupt map[moraine.ChunkID]time.Time
}

// timings are how long the last operations of a kind took. The zero value has none. Safe
// for concurrent use.
type timings struct {
	mu   sync.Mutex // guards what follows
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

// micros is the median of late, 0 where there were too few.
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

// add notes a read that was to be of so many bytes and began beside others.
func (r *readTimings) add(now time.Time, bytes, others int, took time.Duration) {
	if others > readBeside {
		return
	}
	class, _ := slices.BinarySearch(readClasses[:], bytes)
	r[class].add(now, took)
}

// micros are the medians of late; nil where there is none.
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
	// One that its deadline ended would have taken longer: how much is not known, so that
	// one with a short deadline says nothing.
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

// note counts a chunk that is corrupt, once, however often it is read.
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
			Err: fmt.Errorf("%d chunks were corrupt within a day: the device is not to be trusted", len(w.corrupt))})
	}
}
