package ckpt

import (
	"context"
	"slices"

	"golang.org/x/sync/errgroup"
)

// Plan is what a restore is going to read. Its methods may be called concurrently, until the
// Checkpoint is closed.
type Plan struct {
	k      *Checkpoint
	wanted []*wanted
	bytes  int64
}

// PlannedRead is one read of a restore.
type PlannedRead struct {
	// File is the name of the file in the step's directory. Offset and Bytes are the range.
	File          string
	Offset, Bytes int64
	// OnNode says that the memory of this node has the range. Otherwise the read goes to the cluster,
	// which finds the nearest level.
	OnNode bool
}

// Plan finds out which ranges of which files a rank needs for some slices, cut in any way and whatever
// ranks saved them. It reads only what it needs of the index. The caller's buffers are filled by Run.
func (k *Checkpoint) Plan(ctx context.Context, reqs []SliceRequest) (*Plan, error) {
	lists := make([][]*wanted, len(reqs))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(readsAtOnce)
	for i := range reqs {
		g.Go(func() error {
			t, err := tensorPart(gctx, k, reqs[i].Name, reqs[i].Offset, reqs[i].Shape)
			if err == nil {
				lists[i], err = k.wantedOf(t, &reqs[i])
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	p := &Plan{k: k, wanted: slices.Concat(lists...)}
	for i := range reqs {
		p.bytes += int64(len(reqs[i].Dst))
	}
	return p, nil
}

// Bytes returns how many bytes the slices have, all together.
func (p *Plan) Bytes() int64 { return p.bytes }

// Reads returns the reads that Run makes. Run makes more if it meets damage.
func (p *Plan) Reads() (reads []PlannedRead) {
	var shorts []*small
	for _, w := range p.wanted {
		if s := p.k.asSmall(w); s != nil {
			shorts = append(shorts, s)
			continue
		}
		from := w.copies[0]
		here := p.k.onNode(w.t, from) != nil
		w.plan(from).each(w.dst, p.k.opts.OverRead, func(r window) bool {
			reads = append(reads, p.read(from, r, here))
			return true
		})
	}
	eachGroup(shorts, p.k.opts.OverRead, func(r window, group []*small) { reads = append(reads, p.read(group[0].from, r, false)) })
	return reads
}

func (p *Plan) read(from *SliceInfo, w window, here bool) PlannedRead {
	return PlannedRead{File: p.k.top.files[from.File].Name, Offset: w.targets[0].file, Bytes: w.length(), OnNode: here}
}

// Run reads all slices, several at once, each range from the nearest level that has it: the memory of
// this node, that of chunkservers, nvme, the bucket. Short ranges that are near each other in a file are
// read together; see ReadOptions. It returns the first error; the content of the buffers is then
// undefined.
func (p *Plan) Run(ctx context.Context) error { return p.k.readAll(ctx, p.wanted) }
