package ckptfaults_test

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// rot flips bits in the memory of the victims. An answer to a reader shares the memory of its server, so
// a bit of it changes after it was sent.
type rot struct {
	w *world
	// memory is held for writing while a bit flips, and for reading while an answer is sent.
	memory  sync.RWMutex
	armed   bool
	flipped map[moraine.ChunkID]bool
}

// over is an Option of the cluster.
func (r *rot) over(node string, s transport.ChunkService) transport.ChunkService {
	if !slices.Contains(victims, node) {
		return s
	}
	return rotting{s, r}
}

// arm makes a bit of each chunk flip once, after it was read. It returns how many did so before.
func (r *rot) arm(armed bool) (flipped int) {
	r.memory.Lock()
	defer r.memory.Unlock()
	flipped = len(r.flipped)
	r.armed, r.flipped = armed, map[moraine.ChunkID]bool{}
	return flipped
}

func (r *rot) flip(id moraine.ChunkID, payload [][]byte) {
	r.memory.Lock()
	defer r.memory.Unlock()
	// The server's writer has passed this lock, too: it waits for the end of the hold.
	if !r.armed || r.flipped[id] || !r.w.hold.On() || len(payload) == 0 || len(payload[0]) == 0 {
		return
	}
	r.flipped[id] = true
	payload[0][len(payload[0])/2] ^= 1 << 2
}

// rotting is the service of a victim.
type rotting struct {
	transport.ChunkService
	rot *rot
}

// GetChunk implements transport.ChunkService.
func (s rotting) GetChunk(ctx context.Context, req *wire.GetChunk) (*wire.GetChunkReply, [][]byte, func(), error) {
	s.rot.memory.RLock()
	reply, payload, release, err := s.ChunkService.GetChunk(ctx, req)
	if err != nil {
		s.rot.memory.RUnlock()
		return reply, payload, release, err
	}
	id := moraine.ChunkID{Stripe: moraine.StripeID(req.GetStripe()), Index: uint8(req.GetIndex())}
	return reply, payload, func() {
		s.rot.memory.RUnlock()
		s.rot.flip(id, payload)
		release()
	}, nil
}

// flipInMemory: a bit of chunks of a step changes in the memory of as many hosts as a stripe can lose,
// while the step is nowhere else. It is loaded all the same, and again after the devices have it.
func flipInMemory(ctx context.Context, w *world) error {
	for range 5 { // a step may have no data chunk on the victims
		flipped, err := w.flipOneStep(ctx)
		if err != nil {
			return err
		}
		if flipped > 0 {
			w.log("%d chunks", flipped)
			return w.relaunch(ctx, launch{})
		}
	}
	return fmt.Errorf("no reader has read a chunk of %v", victims)
}

func (w *world) flipOneStep(ctx context.Context) (flipped int, err error) {
	defer w.holdMemory()()
	w.rot.arm(true)
	defer w.rot.arm(false)
	err = w.team.commit(ctx, moments{sealed: func(parts []*ckpt.Part) error {
		if err := w.reachesMemory(ctx, parts[0]); err != nil {
			return err
		}
		k, err := w.reader.Resolve(ctx, ckpt.ResolveOptions{Step: w.team.next - 1, Exact: true, Level: moraine.Memory})
		if err != nil {
			return err
		}
		defer k.Close()
		if err := w.m.check(ctx, k, readTensor); err != nil {
			return err
		}
		flipped = w.rot.arm(false)
		if err := w.m.check(ctx, k, readTensor); err != nil {
			return err
		}
		w.hold.End()
		return nil
	}})
	return flipped, err
}
