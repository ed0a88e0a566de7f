package main

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
)

// The model is a vector that gradient descent with momentum moves to a target. The ranks have its
// blocks among them. All sums go over whole blocks, in order, so that no result depends on the
// number of ranks.
const (
	blocks     = 64
	block      = 512 // parameters
	parameters = blocks * block

	rate     = 0.05
	momentum = 0.9
	noise    = 0.2
)

// shard is one rank's share of the model and of the optimizer.
type shard struct {
	first      int // block
	weight     []float64
	velocities []float64
}

// newShard returns the share of a rank, as it is before the first step.
func newShard(rank, world uint32) *shard {
	first := int(rank) * blocks / int(world)
	n := (int(rank)+1)*blocks/int(world) - first
	return &shard{first: first, weight: make([]float64, n*block), velocities: make([]float64, n*block)}
}

// step trains one step on the batch of a seed, and returns the loss of each block of the share.
func (s *shard) step(seed uint64) []float64 {
	losses := make([]float64, len(s.weight)/block)
	for b := range losses {
		batch := rand.New(rand.NewPCG(seed, uint64(s.first+b)))
		for i := range block {
			at := b*block + i
			target := math.Sin(float64(s.first*block + at))
			miss := s.weight[at] - target + noise*(batch.Float64()-0.5)
			losses[b] += miss * miss
			s.velocities[at] = momentum*s.velocities[at] + miss
			s.weight[at] -= rate * s.velocities[at]
		}
	}
	return losses
}

// toBytes and fromBytes convert a tensor, F64.
func toBytes(v []float64) []byte {
	b := make([]byte, 0, 8*len(v))
	for _, x := range v {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(x))
	}
	return b
}

func fromBytes(v []float64, b []byte) {
	for i := range v {
		v[i] = math.Float64frombits(binary.LittleEndian.Uint64(b[8*i:]))
	}
}
