package localfiles

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/internal/crc"
)

// Manifest is the name of the blob that describes the files.
const Manifest = "moraine-files.json"

// format marks the manifest. A reader refuses any other.
const format = "moraine files 1"

// manifest is the content of the blob, as JSON.
type manifest struct {
	Format string  `json:"format"`
	Files  []entry `json:"files"`
}

// entry is one file. A safetensors file has its Header, everything before its data, and its data
// are the tensors of the header in order. Any other file has a Blob.
type entry struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	CRC    string `json:"crc32c"` // of the whole file, 8 hexadecimal digits
	Header []byte `json:"header,omitempty"`
	Blob   string `json:"blob,omitempty"`
}

// AddTo adds the files to a part. With lent, the part reads the bytes in place until Part.Done is
// closed (see ckpt.BeginOptions.Lent): it needs no memory for them. Otherwise it copies them.
func (f *Files) AddTo(ctx context.Context, part *ckpt.Part, lent bool) error {
	a := adder{part: part, lent: lent}
	m := manifest{Format: format}
	for i := range f.list {
		e, err := a.add(ctx, &f.list[i])
		if err != nil {
			return fmt.Errorf("%s: %w", f.list[i].path, err)
		}
		m.Files = append(m.Files, e)
	}
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return a.blob(ctx, Manifest, b, crc.Blocks(nil, b))
}

// adder adds bytes to a part, lent or copied.
type adder struct {
	part *ckpt.Part
	lent bool
}

func (a *adder) add(ctx context.Context, one *file) (entry, error) {
	e := entry{Name: one.name, Size: int64(len(one.mem)), Blob: one.blob}
	if one.header == nil {
		sums := crc.Blocks(nil, one.mem)
		e.CRC = fmt.Sprintf("%08x", crc.CombineBlocks(sums, e.Size))
		return e, a.blob(ctx, one.blob, one.mem, sums)
	}
	e.Header = one.mem[:one.header.DataStart]
	sum := crc.Sum(e.Header)
	for _, t := range one.header.Tensors {
		data := one.mem[one.header.DataStart+t.Begin : one.header.DataStart+t.End]
		sums := crc.Blocks(nil, data)
		sum = crc.Combine(sum, crc.CombineBlocks(sums, t.Size()), t.Size())
		if err := a.tensor(ctx, ckpt.Tensor{Name: t.Name, DType: t.DType, Shape: t.Shape, Data: data}, sums); err != nil {
			return e, err
		}
	}
	e.CRC = fmt.Sprintf("%08x", sum)
	return e, ctx.Err()
}

func (a *adder) tensor(ctx context.Context, t ckpt.Tensor, sums []uint32) error {
	if a.lent {
		return a.part.LendTensor(t, sums)
	}
	return a.part.AddTensor(ctx, t)
}

func (a *adder) blob(ctx context.Context, name string, data []byte, sums []uint32) error {
	if a.lent {
		return a.part.LendBlob(name, data, sums)
	}
	return a.part.AddBlob(ctx, name, data)
}
