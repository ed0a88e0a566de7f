package ckptfaults_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/morainefs/moraine/client/ckpt"
)

// partBytes is the size of each rank's slice: some stripes of the clients of incluster.
const partBytes = 90_000

// stepKey names a step of an attempt.
type stepKey struct {
	attempt uint32
	step    uint64
}

// model is what the trainers did. Methods may be called concurrently.
type model struct {
	mu sync.Mutex
	// steps are those that were begun.
	steps map[stepKey]saved
	// durable are the steps that Wait reported at level nvme, in that order; without removed ones.
	durable []stepKey
	// doomed are the steps whose only copy a row destroys, or has destroyed. unmarked are those of them that the
	// service has not marked as lost yet; marked is when it last did so.
	doomed, unmarked map[stepKey]bool
	marked           time.Time
}

// saved is what the ranks of a step save.
type saved struct {
	world   uint32
	replica uint64 // the number of the tensor that each rank has whole; 0: there is none
}

func newModel() *model {
	return &model{steps: map[stepKey]saved{}, doomed: map[stepKey]bool{}, unmarked: map[stepKey]bool{}}
}

func (m *model) begin(k stepKey, s saved) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.steps[k] = s
}

func (m *model) saved(k stepKey) saved {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.steps[k]
}

// doom says that the bytes of steps are about to be lost, the newest one too. Reads of them may fail, and never
// have other bytes.
func (m *model) doom(steps ...stepKey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, k := range steps {
		m.doomed[k], m.unmarked[k] = true, true
	}
}

// doomUndurable is doom for all steps that Wait has not reported at level nvme. None of them is the newest.
func (m *model) doomUndurable() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k := range m.steps {
		if !slices.Contains(m.durable, k) {
			m.doomed[k] = true
		}
	}
}

func (m *model) isDoomed(k stepKey) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.doomed[k]
}

// isLost says that the service has marked a step as lost: nothing promises any more that it is there.
func (m *model) isLost(k stepKey) {
	m.forget(k)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.unmarked[k] {
		delete(m.unmarked, k)
		m.marked = time.Now()
	}
}

// loses reports whether a doomed step was the newest one at a moment since then.
func (m *model) loses(since time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.unmarked) > 0 || m.marked.After(since)
}

func (m *model) committed(k stepKey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !slices.Contains(m.durable, k) {
		m.durable = append(m.durable, k)
	}
}

// forget is for a step whose removal was requested: it may be there or not.
func (m *model) forget(k stepKey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.durable = slices.DeleteFunc(m.durable, func(d stepKey) bool { return d == k })
}

func (m *model) mustBeThere() []stepKey {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.durable)
}

// newest returns the greatest number of a step that was begun.
func (m *model) newest() stepKey {
	m.mu.Lock()
	defer m.mu.Unlock()
	var newest stepKey
	for k := range m.steps {
		if k.attempt > newest.attempt || k.attempt == newest.attempt && k.step > newest.step {
			newest = k
		}
	}
	return newest
}

// keyOf names a step that the service has.
func keyOf(s ckpt.StepInfo) stepKey { return stepKey{s.Attempt, s.Step} }

// slice is what a rank saves in a step: no two steps of any attempts share bytes.
func (k stepKey) slice(rank uint32) []byte {
	rng := rand.New(rand.NewPCG(uint64(k.attempt)<<32|uint64(rank), k.step))
	p := make([]byte, partBytes)
	for i := 0; i+8 <= len(p); i += 8 {
		binary.LittleEndian.PutUint64(p[i:], rng.Uint64())
	}
	return p
}

// origin is the blob that a rank saves in a step.
func (k stepKey) origin(rank uint32) []byte {
	return fmt.Appendf(nil, "attempt %d step %d rank %d", k.attempt, k.step, rank)
}

// check loads all of a checkpoint and compares it with what its ranks saved. read reads the tensor.
func (m *model) check(ctx context.Context, k *ckpt.Checkpoint, read func(context.Context, *ckpt.Checkpoint) ([]byte, error)) error {
	key := keyOf(k.Info)
	step := m.saved(key)
	world := step.world
	if world == 0 || k.World() != world {
		return wrongf("attempt %d step %d has %d ranks; %d have begun it", key.attempt, key.step, k.World(), world)
	}
	got, err := read(ctx, k)
	if err != nil {
		return err
	}
	var want []byte
	for rank := range world {
		want = append(want, key.slice(rank)...)
		blob, err := k.ReadBlob(ctx, rank, "origin")
		if err != nil {
			return err
		}
		if !bytes.Equal(blob, key.origin(rank)) {
			return wrongf("other bytes in the blob of rank %d of attempt %d step %d: %q", rank, key.attempt, key.step, blob)
		}
	}
	if !bytes.Equal(got, want) {
		return wrongf("other bytes in attempt %d step %d", key.attempt, key.step)
	}
	return step.checkReplica(ctx, k)
}

// wrongError is a broken promise; other errors of a poller are outages.
type wrongError struct{ what string }

func (e *wrongError) Error() string { return e.what }

func wrongf(format string, args ...any) error { return &wrongError{fmt.Sprintf(format, args...)} }

// readTensor is a restore of the tensor.
func readTensor(ctx context.Context, k *ckpt.Checkpoint) ([]byte, error) {
	return k.ReadTensor(ctx, "w")
}
