package stripeio

import (
	"context"
	"errors"
	"sync"

	"github.com/morainefs/moraine"
)

// target is a range of a chunk to rebuild.
type target struct {
	index int
	lo    int64
	out   []byte
}

// rebuildPiece bounds the bytes of each chunk that are gathered at once.
const rebuildPiece = moraine.DefaultChunkSize

// pieceOf returns how many bytes of each chunk of s may be gathered at once.
func (e *Engine) pieceOf(s *Record) int64 {
	fits := e.readBytes / 2 / int64(s.Scheme.K+1)
	return max(moraine.BlockSize, min(rebuildPiece, fits/moraine.BlockSize*moraine.BlockSize))
}

// rebuildInBackground rebuilds missing chunks. The channel gets one result. It rebuilds chunks
// whose request failed in place, late ones in a spare buffer.
func (r *stripeRead) rebuildInBackground(ctx context.Context, work *sync.WaitGroup, missing []*chunkWant) chan error {
	var free []source
	for _, w := range r.wants {
		if w.state == done {
			free = append(free, source{w.index, w.lo, w.dst})
		}
	}
	spare := map[*chunkWant]bool{}
	for _, w := range missing {
		spare[w] = w.state == late
	}
	result := make(chan error, 1)
	work.Go(func() { result <- r.rebuild(ctx, missing, spare, free) })
	return result
}

func (r *stripeRead) rebuild(ctx context.Context, missing []*chunkWant, spare map[*chunkWant]bool, free []source) error {
	if r.s.limited && !r.s.rebuildable() {
		err, _ := r.wrongWith(missing[0].index)
		return &moraine.Error{Op: "rebuild", Ref: r.s.ID.String(), Kind: moraine.Unavailable,
			Err: errors.Join(errors.New("other chunks of the stripe contain bytes that this session may not read: servers repair the stripe"), err)}
	}
	piece := r.c.pieceOf(r.s)
	need, longest := int64(0), int64(0)
	for _, w := range missing {
		longest = max(longest, min(piece, int64(len(w.dst))))
		if spare[w] {
			need += int64(len(w.dst))
		}
	}
	l, err := r.c.newLease(ctx, need+longest*int64(buffersFor(r.s, missing, free)))
	if err != nil {
		return err
	}
	r.leases = append(r.leases, l)
	gone := map[int]bool{}
	var targets []target
	for _, w := range missing {
		gone[w.index] = true
		out := w.dst
		if spare[w] {
			if w.spare, err = l.own(ctx, len(w.dst)); err != nil {
				return err
			}
			out = w.spare
		}
		targets = append(targets, target{w.index, w.lo, out})
	}
	g := &gatherer{c: r.c, s: r.s, free: free, buffers: l,
		exclude: func(i int) bool { return gone[i] },
		wrong:   r.wrongWith,
		last: func(i int) bool {
			_, bad := r.wrongWith(i)
			return bad || !r.usable(i)
		}}
	for _, group := range sameRanges(targets) {
		if err := r.c.rebuildGroup(ctx, g, group, piece, nil); err != nil {
			return err
		}
		if err := r.c.verifyRebuilt(ctx, g, group, piece); err != nil {
			return err
		}
	}
	return nil
}

// buffersFor returns the maximum number of buffers for rebuilding at a time.
// They are for the chunks not in memory, and for one more in case one is late.
func buffersFor(s *Record, missing []*chunkWant, free []source) int {
	most := 0
	for _, w := range missing {
		need := int(s.Scheme.K)
		for _, f := range free {
			if f.covers(w.lo, len(w.dst)) != nil {
				need--
			}
		}
		if need > 0 {
			most = max(most, need+1)
		}
	}
	return most
}

// sameRanges groups targets of the same range, which are rebuilt together.
func sameRanges(targets []target) [][]target {
	var groups [][]target
next:
	for _, t := range targets {
		for i, g := range groups {
			if g[0].lo == t.lo && len(g[0].out) == len(t.out) {
				groups[i] = append(g, t)
				continue next
			}
		}
		groups = append(groups, []target{t})
	}
	return groups
}

// rebuildGroup rebuilds targets of one range, piece by piece. It calls each, if not nil, with
// each piece of the first target, in order.
func (e *Engine) rebuildGroup(ctx context.Context, g *gatherer, group []target, piece int64, each func([]byte)) error {
	coder, err := e.coders.Get(g.s.Scheme)
	if err != nil {
		return err
	}
	want := make([][]byte, g.s.Scheme.Chunks())
	length := int64(len(group[0].out))
	for at := int64(0); at < length; at += piece {
		n := min(piece, length-at)
		have, err := g.gather(ctx, group[0].lo+at, int(n))
		if err != nil {
			return err
		}
		for _, t := range group {
			want[t.index] = t.out[at : at+n]
		}
		if err := coder.Reconstruct(have, want); err != nil {
			return err
		}
		if each != nil {
			each(want[group[0].index])
		}
	}
	return nil
}
