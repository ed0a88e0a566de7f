package ckpt

import (
	"cmp"
	"context"
	"slices"

	"golang.org/x/sync/errgroup"
)

// small is a wanted range that is one short run of the cluster's file: reads of several such are
// made together.
type small struct {
	*wanted
	from *SliceInfo
	p    *plan
}

func (s *small) target() target { return target{s.p.file, s.dst[s.p.dst : s.p.dst+s.p.run]} }

// asSmall returns the range as a short run; nil if it is none.
func (k *Checkpoint) asSmall(w *wanted) *small {
	from := w.copies[0]
	if k.onNode(w.t, from) != nil {
		return nil
	}
	p := w.plan(from)
	if p == nil || len(p.counts) > 0 || p.run == 0 || p.run >= directRun {
		return nil
	}
	return &small{w, from, p}
}

// readAll reads all ranges, several at once.
func (k *Checkpoint) readAll(ctx context.Context, list []*wanted) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(readsAtOnce)
	var shorts []*small
	for _, w := range list {
		if s := k.asSmall(w); s != nil {
			shorts = append(shorts, s)
			continue
		}
		g.Go(func() error { return k.readWanted(gctx, w) })
	}
	eachGroup(shorts, k.opts.OverRead, func(w window, group []*small) {
		g.Go(func() error { return k.readGroup(gctx, w, group) })
	})
	return g.Wait()
}

// eachGroup calls yield with the short ranges that one read covers.
func eachGroup(shorts []*small, overRead float64, yield func(window, []*small)) {
	slices.SortFunc(shorts, func(a, b *small) int {
		return cmp.Or(cmp.Compare(a.from.File, b.from.File), cmp.Compare(a.p.file, b.p.file))
	})
	var w window
	first := 0
	for i, s := range shorts {
		t := s.target()
		if i > first && (s.from.File != shorts[first].from.File || !w.takes(t, overRead)) {
			yield(w, shorts[first:i])
			w, first = window{}, i
		}
		w.add(t)
	}
	if first < len(shorts) {
		yield(w, shorts[first:])
	}
}

// readGroup reads short ranges together. Where that finds damage, it reads each by itself, which
// finds the intact copies.
func (k *Checkpoint) readGroup(ctx context.Context, w window, group []*small) error {
	file := group[0].from.File
	err := k.readWindow(ctx, w, func(p []byte, off int64) error { return k.files.read(ctx, file, p, off) })
	if err != nil && !isDamage(err) {
		return err
	}
	for _, s := range group {
		if err == nil && k.checkDigest(ctx, s.t, s.from, s.p, s.p.sums(s.dst)) == nil {
			continue
		}
		if err := k.readWanted(ctx, s.wanted); err != nil {
			return err
		}
	}
	return nil
}
