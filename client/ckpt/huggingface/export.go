// Package huggingface writes a checkpoint as a directory that the libraries of Hugging Face load:
// whole tensors in model-00001-of-0000N.safetensors, and an index that says which file has which
// tensor. It also finds the files of such a directory, so that package localfiles can save them.
//
// One path through it: NewExport lays the tensors of a Checkpoint out in files -> File.Write streams
// each, resharded from the slices of the ranks -> the index comes last. Back: Find lists the files.
package huggingface

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/localfiles"
	"github.com/morainefs/moraine/client/ckpt/safetensors"
)

// IndexName is the name of the index.
const IndexName = "model.safetensors.index.json"

// DefaultShardBytes is the size at which a file ends, as in Hugging Face's libraries.
const DefaultShardBytes = 5_000_000_000

// maxIndex bounds the index that is read into memory.
const maxIndex = 256 << 20

// Options are the options of an export.
type Options struct {
	// ShardBytes bounds the bytes of the tensors of one file; a larger tensor has a file of its own.
	// Default DefaultShardBytes.
	ShardBytes int64
}

// Export is a checkpoint laid out as files.
type Export struct {
	// Files are in the order in which to write them: the index, which makes the directory complete,
	// is last.
	Files []File
	// Shards counts the safetensors files, and Tensors their tensors of TensorBytes together.
	Shards, Tensors int
	TensorBytes     int64
}

// File is one file of an export.
type File struct {
	Name string
	Size int64
	fill func(ctx context.Context, w io.Writer) error
}

// Write writes the file to w. It has at most 48 MiB of tensors in memory.
func (f *File) Write(ctx context.Context, w io.Writer) error { return f.fill(ctx, w) }

// NewExport lays out k. If k was saved from files (package localfiles), the export has their
// metadata, and those files that are no safetensors files. Blobs of trainers are not in it. k must
// stay open while the files are written.
func NewExport(ctx context.Context, k *ckpt.Checkpoint, opts Options) (*Export, error) {
	if opts.ShardBytes <= 0 {
		opts.ShardBytes = DefaultShardBytes
	}
	saved, err := localfiles.Saved(ctx, k)
	if err != nil {
		return nil, err
	}
	from, err := originOf(ctx, k, saved)
	if err != nil {
		return nil, err
	}
	shards, err := cut(ctx, k, opts.ShardBytes)
	if err != nil {
		return nil, err
	}
	e := &Export{Shards: len(shards)}
	weights := map[string]string{}
	for i, tensors := range shards {
		f, err := shardFile(k, fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, len(shards)), tensors, from.metadata)
		if err != nil {
			return nil, err
		}
		for _, t := range tensors {
			weights[t.Name] = f.Name
			e.TensorBytes += t.End - t.Begin
		}
		e.Tensors += len(tensors)
		e.Files = append(e.Files, f)
	}
	e.Files = append(e.Files, from.others...)
	index, err := from.index(weights, e.TensorBytes)
	if err != nil {
		return nil, err
	}
	e.Files = append(e.Files, File{IndexName, int64(len(index)), func(_ context.Context, w io.Writer) error {
		_, err := w.Write(index)
		return err
	}})
	return e, nil
}

// cut divides the tensors of k over files.
func cut(ctx context.Context, k *ckpt.Checkpoint, limit int64) (shards [][]safetensors.Tensor, err error) {
	size := limit + 1 // of the last file: the first tensor begins one
	err = k.Tensors(ctx, func(t *ckpt.TensorInfo) error {
		if size+t.Size() > limit {
			shards, size = append(shards, nil), 0
		}
		last := len(shards) - 1
		shards[last] = append(shards[last], safetensors.Tensor{Name: t.Name, DType: t.DType, Shape: t.Shape})
		size += t.Size()
		return nil
	})
	if err == nil && len(shards) == 0 {
		err = &moraine.Error{Op: "export", Kind: moraine.InvalidArgument, Err: fmt.Errorf("the step has no tensors: copy its files with `moraine ckpt restore`")}
	}
	return shards, err
}

// shardFile lays out one safetensors file, and puts the tensors into the order of the file.
func shardFile(k *ckpt.Checkpoint, name string, tensors []safetensors.Tensor, metadata map[string]string) (File, error) {
	if err := safetensors.Order(tensors); err != nil {
		return File{}, err
	}
	h := safetensors.Header{Metadata: metadata, Tensors: tensors}
	header, err := h.Encode()
	if err != nil {
		return File{}, err
	}
	names := make([]string, len(tensors))
	for i := range tensors {
		names[i] = tensors[i].Name
	}
	return File{name, int64(len(header)) + h.DataLen(), func(ctx context.Context, w io.Writer) error {
		if _, err := w.Write(header); err != nil {
			return err
		}
		return k.WriteTensors(ctx, w, names...)
	}}, nil
}

// origin is what an export keeps of the directory from which a step was imported.
type origin struct {
	metadata map[string]string          // of the safetensors files
	fields   map[string]json.RawMessage // of the index
	others   []File
}

// originOf reads what to keep.
func originOf(ctx context.Context, k *ckpt.Checkpoint, saved []localfiles.Original) (*origin, error) {
	o := &origin{metadata: map[string]string{"format": "pt"}, fields: map[string]json.RawMessage{}}
	paths := localfiles.Paths(saved)
	first := true
	for i := range saved {
		s := &saved[i]
		switch {
		case s.Header != nil && first:
			first = false
			h, err := safetensors.Parse(s.Header, s.Size)
			if err != nil {
				return nil, err
			}
			for key, v := range h.Metadata {
				o.metadata[key] = v
			}
		case s.Header != nil:
		case s.Name == IndexName:
			if s.Size > maxIndex {
				continue
			}
			var b bytes.Buffer
			if err := s.Write(ctx, k, &b); err != nil {
				return nil, err
			}
			_ = json.Unmarshal(b.Bytes(), &o.fields) // what is no index has nothing to keep
		default:
			o.others = append(o.others, File{paths[i], s.Size, func(ctx context.Context, w io.Writer) error { return s.Write(ctx, k, w) }})
		}
	}
	slices.SortFunc(o.others, func(a, b File) int { return strings.Compare(a.Name, b.Name) })
	return o, nil
}

// index encodes the index, with the fields of the imported one.
func (o *origin) index(weights map[string]string, bytes int64) ([]byte, error) {
	metadata := map[string]any{}
	if m := o.fields["metadata"]; m != nil {
		if err := json.Unmarshal(m, &metadata); err != nil || metadata == nil {
			metadata = map[string]any{}
		}
	}
	metadata["total_size"] = bytes
	fields := map[string]any{}
	for name, v := range o.fields {
		fields[name] = v
	}
	fields["metadata"], fields["weight_map"] = metadata, weights
	b, err := json.MarshalIndent(fields, "", "  ")
	return append(b, '\n'), err
}
