// Package llama is a stand-in for a trainer of Llama 3 8B. Its tensors have the
// published names and shapes, and are cut over ranks by rows as FSDP cuts them. A
// seeded generator fills them, and can reproduce any byte. Demonstrations,
// benchmarks and tests save and restore it. It does no arithmetic on the tensors,
// and the values mean nothing.
//
// One path through it: NewShard(Demo(), rank, world) makes a shard, Fill(seed)
// fills it, and AddTo adds it to a save. After a restore with any number of ranks,
// Restore reads a Checkpoint, and Check(seed) compares it. Digest of all ranks'
// Sums equals that of the saved model.
package llama

import (
	"fmt"

	"github.com/morainefs/moraine/client/ckpt"
)

// The published sizes of Llama 3 8B.
const (
	PublishedLayers = 32
	vocab           = 128256
	hidden          = 4096
	intermediate    = 14336
	kvRows          = 1024 // 8 key-value heads of 128
)

// Model says how much of the model there is.
type Model struct {
	// Layers of PublishedLayers.
	Layers int
	// Trained says which weights are trained. Those have a master copy and two
	// moments in fp32 beside the bf16 weight, 14 bytes an element in all; the
	// frozen ones have 2. nil: all.
	Trained func(weight string) bool
	// Divide divides every dimension of the published shapes, for tests with little
	// memory. 0 and 1: the published shapes.
	Divide int64
	// AtMost bounds the bytes of all tensors together; 0: no bound. The layers come first then,
	// and the last tensor may have fewer rows.
	AtMost int64
}

// Demo is a checkpoint of about 2.5 GiB. The embedding and the output matrix alone
// have 2.0 GiB in bf16, and one layer with all its optimizer state has 2.8. Depth
// alone therefore cannot be scaled to 2 GiB. This is one layer, every weight by its
// published name and shape. It has the fp32 state of a fine-tuning run that trains
// the norms and the key and value projections, and freezes the rest.
func Demo() Model {
	return Model{Layers: 1, Trained: func(w string) bool {
		return isNorm(w) || hasSuffix(w, "k_proj.weight") || hasSuffix(w, "v_proj.weight")
	}}
}

// Small has the names of two layers, all trained, and a 64th of each
// dimension: about 12 MiB.
func Small() Model { return Model{Layers: 2, Divide: 64} }

// Tensor is one whole tensor of the checkpoint.
type Tensor struct {
	Name  string
	DType ckpt.DType
	Shape []int64
}

// Bytes returns the size of the tensor.
func (t *Tensor) Bytes() int64 {
	n := int64(t.DType.Size())
	for _, s := range t.Shape {
		n *= s
	}
	return n
}

// Tensors lists the tensors of the checkpoint: the weights in the model's
// order, each followed by its optimizer state if it is trained.
func (m Model) Tensors() []Tensor {
	var out []Tensor
	add := func(name string, shape ...int64) {
		if m.Divide > 1 {
			for i := range shape {
				shape[i] /= m.Divide
			}
		}
		out = append(out, Tensor{name, ckpt.BF16, shape})
		if m.Trained == nil || m.Trained(name) {
			for _, state := range []string{"master", "exp_avg", "exp_avg_sq"} {
				out = append(out, Tensor{"optimizer." + name + "." + state, ckpt.F32, shape})
			}
		}
	}
	add("model.embed_tokens.weight", vocab, hidden)
	for i := range m.Layers {
		l := fmt.Sprintf("model.layers.%d.", i)
		add(l+"self_attn.q_proj.weight", hidden, hidden)
		add(l+"self_attn.k_proj.weight", kvRows, hidden)
		add(l+"self_attn.v_proj.weight", kvRows, hidden)
		add(l+"self_attn.o_proj.weight", hidden, hidden)
		add(l+"mlp.gate_proj.weight", intermediate, hidden)
		add(l+"mlp.up_proj.weight", intermediate, hidden)
		add(l+"mlp.down_proj.weight", hidden, intermediate)
		add(l+"input_layernorm.weight", hidden)
		add(l+"post_attention_layernorm.weight", hidden)
	}
	add("model.norm.weight", hidden)
	add("lm_head.weight", vocab, hidden)
	return m.cut(out)
}

// Bytes returns the size of all tensors together.
func (m Model) Bytes() int64 {
	var n int64
	for _, t := range m.Tensors() {
		n += t.Bytes()
	}
	return n
}

func isNorm(w string) bool { return hasSuffix(w, "norm.weight") }

func hasSuffix(s, suffix string) bool {
	return len(s) >= len(suffix) && s[len(s)-len(suffix):] == suffix
}
