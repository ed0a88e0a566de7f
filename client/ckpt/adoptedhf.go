package ckpt

import (
	"context"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/morainefs/moraine/client/ckpt/safetensors"
	"github.com/morainefs/moraine/internal/adopted"
	"github.com/morainefs/moraine/internal/limit"
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
	if err := s.checkShards(tensorsOf); err != nil {
		return err
	}
	if err := s.checkTrainer(); err != nil {
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
	// Of each header only the tensors that the index lists stay: all of them are about as many bytes as the
	// index.
	listed := make([]*listedTensors, len(files))
	budget := &headerBudget{inUse: headersLimit(), left: headersRead}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(headersAtOnce)
	for n, i := range files {
		g.Go(func() (err error) {
			listed[n], err = s.listed(gctx, i, tensorsOf[s.files[i].Path], budget)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for n, i := range files {
		if err := s.addTensors(byName, i, listed[n]); err != nil {
			return err
		}
	}
	return nil
}

const (
	// headersInUse bounds the headers in memory while an adoption is checked, and headersRead those that it
	// reads, in bytes. A header of an ordinary file has some 100 KiB.
	headersInUse = 2 * safetensors.MaxHeader
	headersRead  = 4 << 30
)

// headerBudget is what the headers of an adoption may take. Somebody may adopt many clones of a file with
// a very long header.
type headerBudget struct {
	inUse *limit.Semaphore
	mu    sync.Mutex
	left  int64 // guarded by mu
}

// headersLimit bounds the headers in memory. Those that have a share read and parse, each by the client's
// patience.
func headersLimit() *limit.Semaphore {
	return limit.NewSemaphore(headersInUse, limit.Resource{Name: "memory for headers of adopted files", Patience: 10 * time.Minute, Advice: "look for slow chunkservers"})
}

// take takes n bytes until release.
func (b *headerBudget) take(ctx context.Context, n int64) (release func(), err error) {
	b.mu.Lock()
	b.left -= n
	left := b.left
	b.mu.Unlock()
	if left < 0 {
		return nil, verdict("the headers of the safetensors files have more than %d bytes: the directory is not adopted", int64(headersRead))
	}
	n = min(n, headersInUse)
	if err := b.inUse.Acquire(ctx, n); err != nil {
		return nil, err
	}
	return func() { b.inUse.Release(n) }, nil
}

// listedTensors are the tensors of a file that an index lists, in order of name.
type listedTensors struct {
	dataStart int64
	tensors   []safetensors.Tensor
}

// listed reads the header of file i, and returns the tensors in want: nil for all.
func (s *adoptedStep) listed(ctx context.Context, i int, want []string, budget *headerBudget) (*listedTensors, error) {
	h, release, err := s.header(ctx, i, budget)
	if err != nil {
		return nil, err
	}
	defer release()
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
	out := &listedTensors{dataStart: h.DataStart, tensors: make([]safetensors.Tensor, 0, len(want))}
	for _, name := range want {
		t := at[name]
		if t == nil {
			return nil, verdict("file %s lacks tensor %q, which %s lists", s.files[i].Path, name, adopted.HFIndex)
		}
		out.tensors = append(out.tensors, safetensors.Tensor{Name: strings.Clone(t.Name), DType: t.DType, Shape: slices.Clone(t.Shape), Begin: t.Begin, End: t.End})
	}
	return out, nil
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

// shardName is the name of one file of a sharded model.
var shardName = regexp.MustCompile(`^model-\d+-of-\d+\.safetensors$`)

// checkShards fails if there is a shard that nothing lists: its index is still to be written, and the index or
// the model in one file that is there is of an earlier save.
func (s *adoptedStep) checkShards(listed map[string][]string) error {
	for i := range s.files {
		name := s.files[i].Path
		if _, ok := listed[name]; !ok && shardName.MatchString(name) {
			return verdict("no %s lists the file %s: the index is written last, and one that is there is of an earlier save", adopted.HFIndex, name)
		}
	}
	return nil
}

// checkTrainer fails if the state of a Trainer is missing, but the optimizer is there. It asks for less than a
// policy (adopted.IsTrainers): a user who adopts by hand may have renamed the directory, or have no state to keep.
func (s *adoptedStep) checkTrainer() error {
	_, args := s.at[adopted.TrainerArgs]
	_, optimizer := s.at[adopted.TrainerOptimizer]
	if _, state := s.at[adopted.TrainerState]; args && optimizer && !state {
		return verdict("there is no %s, which the Trainer writes after %s: the checkpoint is not complete", adopted.TrainerState, adopted.TrainerOptimizer)
	}
	return nil
}

// addTensors adds the tensors of file i that the index lists.
func (s *adoptedStep) addTensors(byName map[string]*coverage, i int, listed *listedTensors) error {
	f := &s.files[i]
	f.Kind = AdoptedTensors
	for n := range listed.tensors {
		t := &listed.tensors[n]
		if t.Name == "" || len(t.Name) > MaxNameLen {
			return verdict("file %s: a tensor cannot be named %q", f.Path, t.Name)
		}
		cov := &coverage{name: t.Name}
		byName[t.Name] = cov
		slice := SliceInfo{File: i, Offset: make([]int64, len(t.Shape)), Shape: t.Shape, Begin: listed.dataStart + t.Begin}
		if err := cov.add(f.Rank, t.DType, t.Shape, slice); err != nil {
			return &Verdict{err.Error()}
		}
	}
	return nil
}
