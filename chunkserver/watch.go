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
)

const (
	// corruptWindow is over how long corrupt chunks are counted.
	corruptWindow = 24 * time.Hour
	// putSamples is of how many puts the median is taken, putLeast how many there
	// must be within putWindow for it to say anything.
	putSamples, putLeast = 128, 16
	putWindow            = 30 * time.Second
)

// watched is a device's tier that notes how the device does: how long its puts
// take, and which chunks it gives back wrong. One with too many of these is
// distrusted: it takes nothing more, and the service has all that it holds rebuilt
// from others. What it still holds is served meanwhile, each byte against its sum.
type watched struct {
	keeper
	clock    clock.Clock
	limit    int // corrupt chunks within corruptWindow; negative: any number
	distrust atomic.Pointer[moraine.Error]
	corrupts atomic.Uint64

	mu      sync.Mutex // guards what follows
	corrupt map[moraine.ChunkID]time.Time
	puts    [putSamples]timedPut
	next    int
}

type timedPut struct {
	at   time.Time
	took time.Duration
}

func watch(tier keeper, c clock.Clock, limit int) *watched {
	return &watched{keeper: tier, clock: c, limit: limit, corrupt: make(map[moraine.ChunkID]time.Time)}
}

// Put implements tiers.Tier.
func (w *watched) Put(ctx context.Context, h tiers.Header, data []byte, sums []uint32) error {
	began := w.clock.Now()
	err := w.keeper.Put(ctx, h, data, sums)
	if err == nil {
		now := w.clock.Now()
		w.mu.Lock()
		w.puts[w.next] = timedPut{now, now.Sub(began)}
		w.next = (w.next + 1) % putSamples
		w.mu.Unlock()
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

// putMicros is the median time of the puts of late, 0 where there were too few.
func (w *watched) putMicros() uint64 {
	now := w.clock.Now()
	w.mu.Lock()
	var took []time.Duration
	for _, p := range w.puts {
		if !p.at.IsZero() && now.Sub(p.at) <= putWindow {
			took = append(took, p.took)
		}
	}
	w.mu.Unlock()
	if len(took) < putLeast {
		return 0
	}
	slices.Sort(took)
	return max(uint64(took[len(took)/2].Microseconds()), 1)
}
