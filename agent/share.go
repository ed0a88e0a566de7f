package agent

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
	"github.com/morainefs/moraine/client/ckpt/safetensors"
)

// layout has the slices whose bytes a part stores. It does not change once a part has it.
type layout map[sliceKey]bool

// sliceKey names a slice and its bytes.
type sliceKey struct {
	place string            // name, type and place in the whole tensor
	sums  [sha256.Size]byte // of the sums of its blocks: slices with the same have the same digest
}

// layOut decides which tensors the part stores, once: those that no other rank of the step stores with
// the same bytes, as far as the agent knows. It returns the sums of the tensors, then of the blobs. The
// decision is in the manifest before a byte is written, and before another rank of the node relies on
// it: the next agent must not decide otherwise, or two ranks could each leave a tensor to the other.
//
// A slice that a part leaves out is stored by some part, for these reasons:
//
//   - A part leaves a slice to one of this node only if that one has decided to store it.
//   - A part leaves a group to a rank of another node only if that rank was the first to claim it, and the
//     service never says otherwise. That rank then leaves none of the group to other nodes: its
//     groups follow from its seal alone, so it asks for the same one again. It
//     stores the slice, or leaves it to a part of its own node that does.
//   - A part that gets no answer stores its groups.
//
// If a part fails, its step is aborted. Whatever else is missing, the check of the step finds.
func (w writer) layOut() ([][]uint32, error) {
	m := w.p.manifest
	sums := m.blockSums(w.p.slot.mem)
	if m.Open.World == 1 {
		return sums, nil
	}
	keys := make([]sliceKey, len(m.Seal.Tensors))
	for i := range keys {
		keys[i] = sliceKey{placeOf(&m.Seal.Tensors[i]), hashOf(sums[i])}
	}
	var elsewhere map[int]uint32
	if !m.Decided {
		elsewhere = w.claim(keys)
	}
	if err := w.a.work.Err(); err != nil {
		return nil, err // the next agent decides
	}
	return sums, w.decide(keys, elsewhere)
}

// decide makes the part's layout final. elsewhere are the tensors that ranks of the step have claimed.
func (w writer) decide(keys []sliceKey, elsewhere map[int]uint32) error {
	m, stored := w.p.manifest, layout{}
	w.a.layouts.Lock()
	defer w.a.layouts.Unlock()
	others := w.others()
	if !m.Decided {
		m.Shared = map[int]uint32{}
	}
	for i, key := range keys {
		if !m.Decided && m.Seal.Tensors[i].Bytes > 0 {
			if by, ok := storedBy(others, key); ok {
				m.Shared[i] = by
			} else if by, ok := elsewhere[i]; ok {
				m.Shared[i] = by
			}
		}
		if _, shared := m.Shared[i]; !shared {
			stored[key] = true
		}
	}
	if !m.Decided {
		m.Decided = true
		if err := m.write(w.a.cfg.Dir, w.p.slot.name); err != nil {
			return err
		}
		w.a.metrics.SharedBytes.Add(float64(m.sharedBytes()))
	}
	w.a.mu.Lock()
	defer w.a.mu.Unlock()
	w.p.layout = stored
	return nil
}

// others returns the layouts of the other parts of the step on this node, by rank.
func (w writer) others() map[uint32]layout {
	w.a.mu.Lock()
	defer w.a.mu.Unlock()
	out := map[uint32]layout{}
	for _, q := range w.a.parts {
		if q != w.p && q.layout != nil && q.key.sameStep(w.p.key) && (q.state == agentproto.Local || q.state == agentproto.Committed) {
			out[q.key.rank] = q.layout
		}
	}
	return out
}

// storedBy returns the rank whose part stores a slice.
func storedBy(layouts map[uint32]layout, key sliceKey) (rank uint32, ok bool) {
	for rank, l := range layouts {
		if l[key] {
			return rank, true
		}
	}
	return 0, false
}

// placeOf names a tensor's slice, without its bytes.
func placeOf(t *agentproto.Tensor) string {
	global, offset := t.Global, t.Offset
	if global == nil && offset == nil {
		global, offset = t.Shape, make([]int64, len(t.Shape))
	}
	return fmt.Sprintf("%q %s %v %v %v", t.Name, t.DType, global, offset, t.Shape)
}

// hashOf returns a hash of sums.
func hashOf(sums []uint32) [sha256.Size]byte {
	b := make([]byte, 0, 4*len(sums))
	for _, s := range sums {
		b = binary.LittleEndian.AppendUint32(b, s)
	}
	return sha256.Sum256(b)
}

// sharedBytes returns how many bytes of the part other ranks store.
func (m *manifest) sharedBytes() (n int64) {
	for i := range m.Shared {
		n += m.Seal.Tensors[i].Bytes
	}
	return n
}

// lendTo adds the tensors and blobs of a slot to a part.
func (m *manifest) lendTo(part *ckpt.Part, mem []byte, sums [][]uint32) error {
	for i, t := range m.Seal.Tensors {
		dtype, err := safetensors.ParseDType(t.DType)
		if err != nil {
			return &moraine.Error{Op: "agent.Seal", Ref: t.Name, Kind: moraine.InvalidArgument, Err: err}
		}
		tensor := ckpt.Tensor{Name: t.Name, DType: dtype, Shape: t.Shape, Global: t.Global, Offset: t.Offset, Data: mem[t.At : t.At+t.Bytes]}
		if by, shared := m.Shared[i]; shared {
			err = part.ShareTensor(tensor, sums[i], by)
		} else {
			err = part.LendTensor(tensor, sums[i])
		}
		if err != nil {
			return err
		}
	}
	for i, b := range m.Seal.Blobs {
		if err := part.LendBlob(b.Name, mem[b.At:b.At+b.Bytes], sums[len(m.Seal.Tensors)+i]); err != nil {
			return err
		}
	}
	return nil
}
