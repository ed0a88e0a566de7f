package ckpt_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/transport/wire"
)

// step is the step as the service has it now.
func (w *wideStep) step() *wire.Step {
	s := &wire.Step{Key: w.key, World: w.world, Sealed: w.world, State: wire.StepState_STEP_STATE_SEALED}
	if w.order == nil {
		return s
	}
	n := w.now()
	switch {
	case n < 0:
		s.State, s.Sealed, s.Reason = wire.StepState_STEP_STATE_ABORTED, 0, "rank 9 gave up"
	case n < len(w.order):
		s.State, s.Sealed = wire.StepState_STEP_STATE_OPEN, uint32(n)
	}
	return s
}

// sealed reports whether a rank has sealed its part.
func (w *wideStep) sealed(rank uint32) bool {
	return w.order == nil || slices.Contains(w.order[:max(0, min(w.now(), len(w.order)))], rank)
}

// sealing is a wideStep whose ranks seal one after the other. Reads of headers are counted.
type sealing struct {
	*wideStep
	mu    sync.Mutex
	seals int
	reads map[moraine.InodeID]int
	fails map[moraine.InodeID]error // of the first read
	// early counts the reads before the last seal.
	early int
}

func newSealing(world uint32, tensors int, order []uint32) *sealing {
	s := &sealing{reads: map[moraine.InodeID]int{}, fails: map[moraine.InodeID]error{},
		wideStep: &wideStep{fakeCluster: newFake(), world: world, tensors: tensors, key: &wire.StepKey{Run: 7, Attempt: 1, Step: 1}, order: order}}
	s.next = 1 << 40
	s.now = func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.seals
	}
	return s
}

// Meta lets some more ranks seal before each look at the step.
func (s *sealing) Meta(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	if req.GetGetStep() != nil {
		s.mu.Lock()
		if s.seals >= 0 {
			s.seals = min(s.seals+3, len(s.order))
		}
		s.mu.Unlock()
	}
	return s.wideStep.Meta(ctx, req)
}

// Open counts, and fails where the test says so.
func (s *sealing) Open(ctx context.Context, inode moraine.InodeID) (ckpt.FileReader, error) {
	s.mu.Lock()
	s.reads[inode]++
	if s.seals < len(s.order) {
		s.early++
	}
	err := s.fails[inode]
	delete(s.fails, inode)
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return s.wideStep.Open(ctx, inode)
}

// TestAStepIsFoldedAsItsRanksSeal checks a step whose ranks seal in a random order, with a header that cannot
// be read at first. The index is that of a step whose ranks had all sealed, each header is read once, and
// most are read before the last seal.
func TestAStepIsFoldedAsItsRanksSeal(t *testing.T) {
	const world, tensors = 64, 3
	whole := newSealing(world, tensors, nil)
	want, err := ckpt.CheckStepOn(t.Context(), whole, whole.key)
	require.NoError(t, err)

	r := rand.New(rand.NewPCG(1, 2))
	order := make([]uint32, world)
	for i, rank := range r.Perm(world) {
		order[i] = uint32(rank)
	}
	s := newSealing(world, tensors, order)
	bad := moraine.InodeID(order[5] + 1000)
	s.fails[bad] = fail(moraine.Corrupt, "a bit has flipped")
	got, err := ckpt.CheckStepOn(t.Context(), s, s.key)
	require.NoError(t, err)
	require.Equal(t, whole.files[want.Inode], s.files[got.Inode])
	for rank := range uint32(world) {
		inode, reads := moraine.InodeID(rank+1000), 1
		if inode == bad {
			reads = 2
		}
		require.Equal(t, reads, s.reads[inode], "rank %d", rank)
	}
	require.Greater(t, s.early, world/2)
}

// TestAStepThatIsAbortedWhileItIsFolded ends the check without a verdict.
func TestAStepThatIsAbortedWhileItIsFolded(t *testing.T) {
	s := newSealing(64, 1, []uint32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9})
	s.seals = -1
	_, err := ckpt.CheckStepOn(t.Context(), s, s.key)
	require.ErrorIs(t, err, moraine.Aborted)
	require.ErrorContains(t, err, "rank 9 gave up")
}
