package llama

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/internal/crc"
)

// Shard is one rank's part of the model: rows of every tensor.
type Shard struct {
	Rank, World uint32
	tensors     []Tensor
	rows        []rowRange
	data        [][]byte
	bytes       int64
}

type rowRange struct{ first, count int64 }

// NewShard allocates the memory of one rank.
func NewShard(m Model, rank, world uint32) *Shard {
	s := &Shard{Rank: rank, World: world, tensors: m.Tensors()}
	for i := range s.tensors {
		t := &s.tensors[i]
		per := (t.Shape[0] + int64(world) - 1) / int64(world)
		first := min(per*int64(rank), t.Shape[0])
		r := rowRange{first, min(per, t.Shape[0]-first)}
		s.rows = append(s.rows, r)
		s.data = append(s.data, make([]byte, r.count*(t.Bytes()/t.Shape[0])))
		s.bytes += int64(len(s.data[i]))
	}
	return s
}

// Data returns the memory of the rank's rows, of each tensor in turn. It stays the shard's.
func (s *Shard) Data() [][]byte { return s.data }

// Bytes returns the size of the rank's part.
func (s *Shard) Bytes() int64 { return s.bytes }

// offset returns where the rank's rows of tensor i begin, in bytes of the tensor.
func (s *Shard) offset(i int) int64 {
	return s.rows[i].first * (s.tensors[i].Bytes() / s.tensors[i].Shape[0])
}

// slice returns shape and offset of the rank's rows of tensor i.
func (s *Shard) slice(i int) (offset, shape []int64) {
	offset, shape = make([]int64, len(s.tensors[i].Shape)), slices.Clone(s.tensors[i].Shape)
	offset[0], shape[0] = s.rows[i].first, s.rows[i].count
	return offset, shape
}

// Fill writes the content of seed.
func (s *Shard) Fill(seed uint64) {
	for i, d := range s.data {
		Fill(d, seed, s.tensors[i].Name, s.offset(i))
	}
}

// Clear writes zeros, so that a restore changes something.
func (s *Shard) Clear() {
	for _, d := range s.data {
		clear(d)
	}
}

// AddTo adds all tensors, and a blob with the rank's random state, to a save.
func (s *Shard) AddTo(ctx context.Context, save *ckpt.Part) error {
	for i := range s.tensors {
		offset, shape := s.slice(i)
		err := save.AddTensor(ctx, ckpt.Tensor{Name: s.tensors[i].Name, DType: s.tensors[i].DType,
			Shape: shape, Global: s.tensors[i].Shape, Offset: offset, Data: s.data[i]})
		if err != nil {
			return err
		}
	}
	return save.AddBlob(ctx, "rng", fmt.Appendf(nil, "rank %d of %d", s.Rank, s.World))
}

// Restore reads the rank's rows of every tensor.
func (s *Shard) Restore(ctx context.Context, k *ckpt.Checkpoint) error {
	var reqs []ckpt.SliceRequest
	for i := range s.tensors {
		if len(s.data[i]) == 0 {
			continue
		}
		offset, shape := s.slice(i)
		reqs = append(reqs, ckpt.SliceRequest{Name: s.tensors[i].Name, Offset: offset, Shape: shape, Dst: s.data[i]})
	}
	return k.Restore(ctx, reqs)
}

// Check compares every byte with the content of seed.
func (s *Shard) Check(seed uint64) error {
	for i, d := range s.data {
		if at := Differs(d, seed, s.tensors[i].Name, s.offset(i)); at >= 0 {
			return fmt.Errorf("tensor %s differs at byte %d", s.tensors[i].Name, at)
		}
	}
	return nil
}

// Sum is the CRC32C of one rank's bytes of one tensor.
type Sum struct {
	Name   string
	Offset int64
	Len    int64
	CRC    uint32
}

// Sums returns the checksums of the rank's bytes.
func (s *Shard) Sums() []Sum {
	out := make([]Sum, len(s.data))
	for i, d := range s.data {
		out[i] = Sum{s.tensors[i].Name, s.offset(i), int64(len(d)), crc.Sum(d)}
	}
	return out
}

// SHA256 returns the digest of the rank's bytes of each tensor, in hex.
func (s *Shard) SHA256() map[string]string {
	digests := make(map[string]string, len(s.data))
	for i, d := range s.data {
		digests[s.tensors[i].Name] = fmt.Sprintf("%x", sha256.Sum256(d))
	}
	return digests
}

// Digest folds the checksums of all ranks into one of the whole model, which does
// not depend on the number of ranks. It fails if the ranks' bytes do not cover a
// tensor without gap or overlap.
func Digest(m Model, sums []Sum) (string, error) {
	sums = slices.Clone(sums)
	slices.SortFunc(sums, func(a, b Sum) int {
		if c := strings.Compare(a.Name, b.Name); c != 0 {
			return c
		}
		if a.Offset != b.Offset {
			return int(min(max(a.Offset-b.Offset, -1), 1))
		}
		return int(min(max(a.Len-b.Len, -1), 1))
	})
	tensors := m.Tensors()
	slices.SortFunc(tensors, func(a, b Tensor) int { return strings.Compare(a.Name, b.Name) })
	h := sha256.New()
	for i := range tensors {
		var whole uint32
		var at int64
		for ; len(sums) > 0 && sums[0].Name == tensors[i].Name; sums = sums[1:] {
			if sums[0].Offset != at && sums[0].Len > 0 {
				return "", fmt.Errorf("tensor %s: the next bytes begin at %d, want %d", sums[0].Name, sums[0].Offset, at)
			}
			whole, at = crc.Combine(whole, sums[0].CRC, sums[0].Len), at+sums[0].Len
		}
		if at != tensors[i].Bytes() {
			return "", fmt.Errorf("tensor %s: %d bytes of %d", tensors[i].Name, at, tensors[i].Bytes())
		}
		fmt.Fprintf(h, "%s %d %08x\n", tensors[i].Name, at, whole)
	}
	if len(sums) > 0 {
		return "", fmt.Errorf("tensor %s does not belong to the model", sums[0].Name)
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:16]), nil
}
