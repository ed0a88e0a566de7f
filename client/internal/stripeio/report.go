package stripeio

import (
	"context"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// reporter reports, in the background, lost or wrong chunks that reads found, so that they are
// repaired. Close delivers waiting reports: a command that reads one file and ends has reported
// its findings. A report that cannot be delivered is dropped: the next read, or a scrub, finds
// the chunk again. Safe for concurrent use.
type reporter struct {
	c    *Engine
	wake chan struct{}

	mu      sync.Mutex
	waiting map[reportedChunk]*wire.BadChunk
	// reported remembers recent reports, so that a file read a thousand times is reported once a
	// minute. A chunk of a newer record is separate: the service ignores reports by an old
	// record.
	reported map[reportedChunk]time.Time
}

// reportedChunk is a chunk of one version of a stripe record.
type reportedChunk struct {
	moraine.ChunkID
	version moraine.LayoutVersion
}

const (
	maxReports  = 256 // waiting reports; more are dropped
	maxReported = 4096
	reportAgain = time.Minute
	reportPause = 100 * time.Millisecond // to collect more
)

func newReporter(c *Engine) *reporter {
	return &reporter{c: c, wake: make(chan struct{}, 1), waiting: map[reportedChunk]*wire.BadChunk{},
		reported: map[reportedChunk]time.Time{}}
}

// add reports a bad chunk of the record s. The record may be outdated, because repair already
// rebuilt the chunk. The service compares the versions, so that it does not rebuild the chunk
// again.
func (r *reporter) add(s *Record, index int, kind moraine.Kind) {
	r.report(s, index, &wire.BadChunk{Kind: uint32(kind)})
}

// addParity reports a parity chunk that has its recorded checksum, but does not match the
// stripe's data: it was encoded wrongly.
func (r *reporter) addParity(s *Record, index int) {
	r.report(s, index, &wire.BadChunk{Kind: uint32(moraine.Corrupt), Parity: true})
}

func (r *reporter) report(s *Record, index int, b *wire.BadChunk) {
	chunk := reportedChunk{moraine.ChunkID{Stripe: s.ID, Index: uint8(index)}, s.Version}
	now := r.c.clock.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if at, ok := r.reported[chunk]; (ok && now.Sub(at) < reportAgain) || len(r.waiting) >= maxReports {
		return
	}
	if len(r.reported) >= maxReported {
		clear(r.reported)
	}
	r.reported[chunk] = now
	b.Stripe, b.Index, b.Device = uint64(s.ID), uint32(index), uint32(s.Chunks[index].Device)
	b.Version, b.AtVersion, b.Capability = uint32(s.Version), true, s.capability
	r.waiting[chunk] = b
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// run delivers reports until ctx ends.
func (r *reporter) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		}
		select {
		case <-ctx.Done():
			return
		case <-r.c.clock.After(reportPause):
		}
		r.deliver(ctx)
	}
}

func (r *reporter) deliver(ctx context.Context) {
	op := &wire.ReportBadChunks{}
	r.mu.Lock()
	sent := r.waiting
	for _, b := range sent {
		op.Chunks = append(op.Chunks, b)
	}
	r.waiting = map[reportedChunk]*wire.BadChunk{}
	r.mu.Unlock()
	if len(op.Chunks) == 0 {
		return
	}
	_, err := r.c.meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ReportBadChunks{ReportBadChunks: op}})
	if err != nil {
		if ctx.Err() == nil {
			r.c.log.Warn("bad chunks could not be reported", "chunks", len(op.Chunks), "err", err)
			return
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		for key, b := range sent { // Close delivers them
			r.waiting[key] = b
		}
		return
	}
	r.c.metrics.ChunksReported.Add(float64(len(op.Chunks)))
}
