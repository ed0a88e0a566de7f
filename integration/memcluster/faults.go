package memcluster

import (
	"context"
	"math/rand/v2"

	"github.com/morainefs/moraine"
)

// Faults says what a host does wrong.
type Faults struct {
	// Weak puts reach only level memory.
	Weak bool
	// Rotten makes the host serve other bytes of chunks than it states, unless it must
	// verify them.
	Rotten bool
	// Garble makes it serve other bytes of objects than it states.
	Garble bool
}

// Break replaces the faults of the host.
func (h *Host) Break(f Faults) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.faults = f
}

// Before makes fn receive each request to the host before it is served; fn may fail
// or delay it. nil is for none.
func (h *Host) Before(fn func(ctx context.Context, req any) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.before = fn
}

func (h *Host) hook(ctx context.Context, req any) error {
	h.mu.Lock()
	before := h.before
	h.mu.Unlock()
	if before == nil {
		return nil
	}
	return before(ctx, req)
}

// reached is the level that a put of that level reaches.
func (h *Host) reached(level uint32) uint32 {
	if h.faults.Weak {
		return uint32(moraine.Memory)
	}
	return level
}

// garbled returns other bytes of the same number.
func garbled(data []byte) []byte {
	other := make([]byte, len(data))
	_, _ = rand.NewChaCha8([32]byte{99}).Read(other)
	return other
}
