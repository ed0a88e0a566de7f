package ckpt

import (
	"context"
	"slices"
	"strings"

	"github.com/morainefs/moraine/transport/wire"
	"golang.org/x/sync/errgroup"
)

// foldParts reads the headers of all parts, and returns the top of the index and the tensors. It
// reads several headers ahead, and merges them in order of rank.
func foldParts(ctx context.Context, c cluster, step *wire.Step, parts []*wire.Part) (*indexTop, map[string]*coverage, error) {
	world := step.GetWorld()
	if len(parts) != int(world) {
		return nil, nil, verdict("%d parts of %d ranks", len(parts), world)
	}
	for i, p := range parts {
		if p.GetRank() != uint32(i) {
			return nil, nil, verdict("part %d is of rank %d", i, p.GetRank())
		}
	}
	m := &merger{top: topOf(step), byName: make(map[string]*coverage)}
	readers := make(chan *headerReader, headersAtOnce)
	for range headersAtOnce {
		readers <- &headerReader{c: c}
	}
	ahead := make(chan chan *foldedPart, headersAtOnce)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(ahead)
		for _, p := range parts {
			folded := make(chan *foldedPart, 1)
			select {
			case ahead <- folded:
			case <-gctx.Done():
				return gctx.Err()
			}
			r := <-readers
			g.Go(func() error {
				defer func() { readers <- r }()
				f := &foldedPart{}
				err := f.read(gctx, r, step, p)
				if err != nil {
					f = nil
				}
				folded <- f
				return err
			})
		}
		return nil
	})
	rank := uint32(0)
	var err error
	for folded := range ahead {
		f := <-folded
		if f == nil || err != nil {
			continue // g has the error, or err is it
		}
		if err = m.merge(f, rank); err != nil {
			cancel()
		}
		rank++
	}
	if gerr := g.Wait(); err == nil {
		err = gerr
	}
	return m.top, m.byName, err
}

// merger gathers the slices of all parts by tensor.
type merger struct {
	top    *indexTop
	byName map[string]*coverage
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

// merge adds a part's files and slices to those of lower ranks.
func (m *merger) merge(f *foldedPart, rank uint32) error {
	base := len(m.top.files)
	m.top.files = append(m.top.files, f.files...)
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
			err := m.of(s.Name, i).add(rank, s.DType, s.Global, SliceInfo{File: base + n, Offset: s.Offset, Shape: s.Shape, Begin: s.Begin, Digest: s.Digest})
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
// a time. write keeps the pieces. indexOf takes the slices out of byName.
func indexOf(top *indexTop, byName map[string]*coverage, write func([]byte) error) error {
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
	return writeIndex(top, sizes, func(i, j int) ([]TensorInfo, error) {
		tensors := make([]TensorInfo, 0, j-i)
		for n := i; n < j; n++ {
			t, err := list[n].check()
			if err != nil {
				return nil, &Verdict{err.Error()}
			}
			tensors = append(tensors, t)
			list[n] = nil
		}
		return tensors, nil
	}, write)
}
