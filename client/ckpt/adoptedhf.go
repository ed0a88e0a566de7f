package ckpt

import (
	"context"
	"encoding/json"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/morainefs/moraine/client/ckpt/safetensors"
	"github.com/morainefs/moraine/internal/adopted"
)

// maxHFIndex bounds the index of a sharded model, in bytes.
const maxHFIndex = 64 << 20

// checkHF checks that each file that the index lists is whole and has the tensors that the index
// says. It adds the tensors to byName.
func (s *adoptedStep) checkHF(ctx context.Context, byName map[string]*coverage) error {
	tensorsOf, err := s.weightMap(ctx)
	if err != nil {
		return err
	}
	var files []int
	for path := range tensorsOf {
		if err := s.needs(path, 0, adopted.HFIndex); err != nil {
			return err
		}
		files = append(files, s.at[path])
	}
	slices.Sort(files)
	headers := make([]*safetensors.Header, len(files))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(headersAtOnce)
	for n, i := range files {
		g.Go(func() (err error) {
			headers[n], err = s.header(gctx, i)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for n, i := range files {
		if err := s.addTensors(byName, i, headers[n], tensorsOf[s.files[i].Path]); err != nil {
			return err
		}
	}
	return nil
}

// weightMap returns the tensors of each file as the index lists them. nil instead of a list: all that
// the file has.
func (s *adoptedStep) weightMap(ctx context.Context) (map[string][]string, error) {
	b, ok, err := s.read(ctx, adopted.HFIndex, maxHFIndex)
	if err != nil {
		return nil, err
	}
	if !ok {
		if _, ok := s.at[adopted.HFModel]; !ok {
			return nil, verdict("there is neither %s nor %s: the checkpoint is not complete", adopted.HFIndex, adopted.HFModel)
		}
		return map[string][]string{adopted.HFModel: nil}, nil
	}
	var index struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(b, &index); err != nil {
		return nil, verdict("file %s: %v", adopted.HFIndex, err)
	}
	if len(index.WeightMap) == 0 {
		return nil, verdict("file %s lists no tensor", adopted.HFIndex)
	}
	out := map[string][]string{}
	for tensor, file := range index.WeightMap {
		out[file] = append(out[file], tensor)
	}
	return out, nil
}

// addTensors adds the tensors of file i that the index lists.
func (s *adoptedStep) addTensors(byName map[string]*coverage, i int, h *safetensors.Header, want []string) error {
	f := &s.files[i]
	f.Kind = AdoptedTensors
	at := make(map[string]*safetensors.Tensor, len(h.Tensors))
	for n := range h.Tensors {
		at[h.Tensors[n].Name] = &h.Tensors[n]
	}
	if want == nil {
		for name := range at {
			want = append(want, name)
		}
	}
	slices.Sort(want)
	for _, name := range want {
		t := at[name]
		if t == nil {
			return verdict("file %s lacks tensor %q, which %s lists", f.Path, name, adopted.HFIndex)
		}
		if name == "" || len(name) > MaxNameLen {
			return verdict("file %s: a tensor cannot be named %q", f.Path, name)
		}
		cov := &coverage{name: name}
		byName[name] = cov
		slice := SliceInfo{File: i, Offset: make([]int64, len(t.Shape)), Shape: t.Shape, Begin: h.DataStart + t.Begin}
		if err := cov.add(f.Rank, t.DType, t.Shape, slice); err != nil {
			return &Verdict{err.Error()}
		}
	}
	return nil
}
