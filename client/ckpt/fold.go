package ckpt

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/morainefs/moraine/transport/wire"
	"golang.org/x/sync/errgroup"
)

// folder reads the headers of the parts of one step, and gathers their slices by tensor.
type folder struct {
	c       cluster
	step    *wire.Step
	m       *merger
	readers chan *headerReader
	// done are the ranks whose parts are folded, and left how many are not.
	done []bool
	left int
	// broken is why parts contradict each other; nil: they do not.
	broken error
}

func newFolder(c cluster, step *wire.Step) *folder {
	world := int(step.GetWorld())
	f := &folder{c: c, step: step, m: &merger{top: topOf(step), byName: make(map[string]*coverage), files: make([][]FileInfo, world)},
		readers: make(chan *headerReader, headersAtOnce), done: make([]bool, world), left: world}
	for range headersAtOnce {
		f.readers <- &headerReader{c: c}
	}
	return f
}

// take folds the parts that are not folded yet, in the order of the list. It reads several headers
// ahead. After an error, parts may be left; those that were folded are not read again.
func (f *folder) take(ctx context.Context, parts []*wire.Part) error {
	ahead := make(chan chan *foldedPart, headersAtOnce)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(ahead)
		for _, p := range parts {
			if rank := p.GetRank(); int(rank) >= len(f.done) {
				return verdict("a part is of rank %d of %d", rank, len(f.done))
			} else if f.done[rank] {
				continue
			}
			folded := make(chan *foldedPart, 1)
			select {
			case ahead <- folded:
			case <-gctx.Done():
				return gctx.Err()
			}
			r := <-f.readers
			g.Go(func() error {
				defer func() { f.readers <- r }()
				one := &foldedPart{rank: p.GetRank()}
				err := one.read(gctx, r, f.step, p)
				if err != nil {
					one = nil
				}
				folded <- one
				return err
			})
		}
		return nil
	})
	var ranks []uint32
	for folded := range ahead {
		one := <-folded
		if one == nil || f.broken != nil {
			continue
		}
		if f.broken = f.m.merge(one); f.broken != nil {
			cancel()
		}
		ranks = append(ranks, one.rank)
	}
	err := g.Wait()
	for _, rank := range ranks { // the goroutine above reads done
		f.done[rank] = true
		f.left--
	}
	return cmp.Or(f.broken, err)
}

// end returns the top of the index and the tensors, once all parts are folded.
func (f *folder) end() (*indexTop, map[string]*coverage, error) {
	if f.left > 0 {
		return nil, nil, verdict("%d parts of %d ranks", len(f.done)-f.left, len(f.done))
	}
	first := make([]int, len(f.done))
	for rank, files := range f.m.files {
		first[rank] = len(f.m.top.files)
		f.m.top.files = append(f.m.top.files, files...)
	}
	for _, cov := range f.m.byName {
		cov.first = first
	}
	return f.m.top, f.m.byName, nil
}

// merger gathers the slices of all parts by tensor, in any order of ranks.
type merger struct {
	top    *indexTop
	byName map[string]*coverage
	files  [][]FileInfo // of each rank
	// recent are the tensors of the part before, in order: the next part mostly has the same.
	recent []*coverage
}

// of returns the tensor of a name, which is the i-th that its file stores. -1: another rank stores it.
func (m *merger) of(name string, i int) *coverage {
	if i >= 0 && i < len(m.recent) && m.recent[i].name == name {
		return m.recent[i]
	}
	cov := m.byName[name]
	if cov == nil {
		cov = &coverage{name: name}
		m.byName[name] = cov
	}
	switch {
	case i == len(m.recent):
		m.recent = append(m.recent, cov)
	case i >= 0 && i < len(m.recent):
		m.recent[i] = cov
	}
	return cov
}

// merge adds a part's files and slices.
func (m *merger) merge(f *foldedPart) error {
	rank := f.rank
	m.files[rank] = f.files
	for n, h := range f.headers {
		for i := range h.shared {
			s := &h.shared[i]
			err := m.of(s.Name, -1).share(rank, s.by, s.DType, s.Global, SliceInfo{Offset: s.Offset, Shape: s.Shape, Digest: s.Digest})
			if err != nil {
				return &Verdict{err.Error()}
			}
		}
		for i := range h.slices {
			s := &h.slices[i]
			err := m.of(s.Name, i).add(rank, s.DType, s.Global, SliceInfo{File: n, Offset: s.Offset, Shape: s.Shape, Begin: s.Begin, Digest: s.Digest})
			if err != nil {
				return &Verdict{err.Error()}
			}
		}
	}
	return nil
}

// topOf returns the top of a step's index without its files.
func topOf(step *wire.Step) *indexTop {
	top := &indexTop{world: step.GetWorld()}
	top.key.Run, top.key.Attempt, top.key.Step = step.GetKey().GetRun(), step.GetKey().GetAttempt(), step.GetKey().GetStep()
	return top
}

// indexOf checks that the slices cover all tensors, and gives the encoded index to write, a piece at
// a time. write keeps the pieces. indexOf takes the slices out of byName. comparisons bounds its work, see
// maxComparisons.
func indexOf(ctx context.Context, top *indexTop, byName map[string]*coverage, write func([]byte) error, comparisons int64) error {
	list := make([]*coverage, 0, len(byName))
	for _, cov := range byName {
		list = append(list, cov)
	}
	slices.SortFunc(list, func(a, b *coverage) int { return strings.Compare(a.name, b.name) })
	clear(byName)
	sizes := make([]blockSize, len(list))
	for i, cov := range list {
		sizes[i] = blockSize{entrySize(cov.name, len(cov.global)), cov.claims.count}
	}
	left := &effort{ctx, comparisons}
	return writeIndex(top, sizes, func(i, j int) ([]TensorInfo, error) {
		tensors := make([]TensorInfo, 0, j-i)
		for n := i; n < j; n++ {
			t, err := list[n].check(left)
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if err != nil {
				return nil, &Verdict{err.Error()}
			}
			tensors = append(tensors, t)
			list[n] = nil
		}
		return tensors, nil
	}, write)
}
