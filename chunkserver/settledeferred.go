package chunkserver

import (
	"context"
	"slices"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/tiers"
	"github.com/morainefs/moraine/tiers/mem"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// maxDeferredSteps is how many steps with deferred chunks a pass names; the next one names others if
	// there are more. It is also how many of their chunks a pass names.
	maxDeferredSteps = 1024
	// goneAfter is how long after the removal of its step a deferred chunk may still be recorded. After that it
	// belongs to another file too, and is written.
	goneAfter = time.Minute
	// dropBatch is how many deletions of chunks in memory one request reports.
	dropBatch = 256
)

// deferredSteps is what a settler knows of the steps whose chunks the device defers. The zero value knows
// nothing.
type deferredSteps struct {
	// gone has since when the metadata service says of a step that it was removed.
	gone map[uint64]time.Time
	turn int // of the steps that the next pass names first
	part int // of the chunks of removed steps that the next pass names first
	// dropped are chunks that were dropped, and are not reported yet.
	dropped []*wire.Deletion
}

// next returns the steps that this pass names, in turn, and forgets what is known of steps without
// deferred chunks.
func (s *deferredSteps) next(steps []uint64) []uint64 {
	for step := range s.gone {
		if _, deferred := slices.BinarySearch(steps, step); !deferred {
			delete(s.gone, step)
		}
	}
	if len(steps) <= maxDeferredSteps {
		return steps
	}
	s.turn %= len(steps)
	named := slices.Concat(steps[s.turn:], steps[:s.turn])[:maxDeferredSteps]
	s.turn += maxDeferredSteps
	return named
}

// judge notes what the metadata service says of the steps that a pass has named.
func (s *deferredSteps) judge(now time.Time, named []uint64, page *wire.MemoryReply) {
	if s.gone == nil {
		s.gone = make(map[uint64]time.Time)
	}
	before := make(map[uint64]time.Time)
	for _, step := range named {
		if at, known := s.gone[step]; known {
			before[step] = at
			delete(s.gone, step)
		}
	}
	for _, step := range page.GetGone() {
		at, known := before[step]
		if !known {
			at = now
		}
		s.gone[step] = at
	}
}

// ofGone returns deferred chunks of removed steps, in turn. The metadata service says which of them are dead.
func (s *deferredSteps) ofGone(tier *mem.Tier) (out []*wire.ChunkReport) {
	if len(s.gone) == 0 {
		return nil
	}
	headers := tier.Deferred().Of(func(step uint64) bool { _, gone := s.gone[step]; return gone })
	if s.part >= len(headers) {
		s.part = 0
	}
	end := min(s.part+maxDeferredSteps, len(headers))
	for _, h := range headers[s.part:end] {
		out = append(out, &wire.ChunkReport{Stripe: uint64(h.ID.Stripe), Index: uint32(h.ID.Index), Version: uint32(h.Version), Memory: true})
	}
	s.part = end
	return out
}

// drop gives back the memory of dead chunks that were never on the device, and reports that. The other dead
// ones are deleted as all are, after the grace.
func (st *settler) drop(ctx context.Context, dead []*wire.Deletion) error {
	if len(dead) > 0 {
		if err := st.dropNow(ctx, dead); err != nil {
			return err
		}
	}
	for len(st.steps.dropped) > 0 {
		n := min(len(st.steps.dropped), dropBatch)
		_, err := st.deps.Meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_DeletedChunks{
			DeletedChunks: &wire.DeletedChunks{Deleted: st.steps.dropped[:n]}}})
		if err != nil {
			return err
		}
		st.steps.dropped = st.steps.dropped[n:]
	}
	return nil
}

// dropNow drops chunks, and notes those that it dropped.
func (st *settler) dropNow(ctx context.Context, dead []*wire.Deletion) error {
	batch := make([]tiers.Deletion, len(dead))
	for n, w := range dead {
		batch[n] = tiers.Deletion{ID: chunkID(w.Stripe, w.Index), Below: moraine.LayoutVersion(w.Below)}
	}
	dropped, err := st.d.tier.Deferred().Drop(ctx, batch)
	st.deps.Metrics.Deleted.Add(float64(len(dropped)))
	for _, d := range dropped {
		st.steps.dropped = append(st.steps.dropped, &wire.Deletion{Device: uint32(st.d.id), Stripe: uint64(d.ID.Stripe),
			Index: uint32(d.ID.Index), Below: uint32(d.Below), InMemory: true})
	}
	return err
}

// writeDeferred has the chunks of steps written that go on to the device, and the recorded ones that
// outlived their step.
func (st *settler) writeDeferred(steps []uint64) {
	now := st.deps.Clock.Now()
	write := make(map[uint64]bool, len(steps))
	for _, step := range steps {
		write[step] = true
	}
	outlived := make(map[uint64]bool)
	for step, at := range st.steps.gone {
		if now.Sub(at) >= goneAfter {
			outlived[step] = true
		}
	}
	if len(write) == 0 && len(outlived) == 0 {
		return
	}
	st.d.tier.Deferred().Write(func(id moraine.ChunkID, step uint64) bool {
		_, recorded := st.recorded.memory[id]
		return write[step] || recorded && outlived[step]
	})
}
