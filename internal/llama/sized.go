package llama

import (
	"slices"
	"strings"
)

// Sized returns a model of at most so many bytes, with the published names and shapes: weights
// and, as in Demo, the optimizer state of a few of them. Layer follows layer; the embedding and
// the output matrix, of 1 GiB each, come after the last one.
func Sized(bytes int64) Model {
	m := Demo()
	m.Layers, m.AtMost = PublishedLayers, bytes
	return m
}

// cut keeps as many tensors as fit into AtMost, and as many rows of the next one.
func (m Model) cut(all []Tensor) []Tensor {
	if m.AtMost <= 0 {
		return all
	}
	first := max(0, slices.IndexFunc(all, func(t Tensor) bool { return strings.HasPrefix(t.Name, "model.layers.") }))
	var out []Tensor
	left := m.AtMost
	for _, t := range slices.Concat(all[first:], all[:first]) {
		row := t.Bytes() / t.Shape[0]
		rows := min(t.Shape[0], left/row)
		if rows == 0 {
			break
		}
		whole := rows == t.Shape[0]
		t.Shape = slices.Clone(t.Shape) // a weight shares it with its optimizer state
		t.Shape[0] = rows
		out = append(out, t)
		if left -= rows * row; !whole {
			break
		}
	}
	return out
}
