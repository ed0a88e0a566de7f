package agent

import (
	"context"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
)

// claimWait bounds how long a part waits for the answer of the service before it stores all groups
// itself: an election may take a few seconds.
const claimWait = 5 * time.Second

// claim asks the service which groups of the part ranks of other nodes store, and returns their tensors
// with the rank. If it gets no answer, that is none: the part stores them.
func (w writer) claim(keys []sliceKey) map[int]uint32 {
	groups := w.unsettled(groupsOf(&w.p.manifest.Seal, keys), keys)
	if len(groups) == 0 || w.allHere() {
		return nil
	}
	ids := make([]ckpt.GroupID, len(groups))
	for i := range groups {
		ids[i] = groups[i].id
	}
	ctx, cancel := context.WithTimeout(w.a.work, claimWait)
	defer cancel()
	ranks, err := w.p.save.Claim(ctx, ids)
	switch moraine.KindOf(err) {
	case moraine.Aborted, moraine.Fenced:
		return nil // the write finds out
	}
	if err != nil {
		w.a.metrics.ClaimsFailed.Inc()
		w.a.log.Warn("no answer which slices other nodes store: this node stores them too", "run", w.p.key.path, "step", w.p.key.step, "rank", w.p.key.rank, "err", err)
		return nil
	}
	return w.leftTo(groups, ranks)
}

// leftTo returns the tensors of groups that other ranks have claimed, with the rank.
func (w writer) leftTo(groups []group, ranks []uint32) map[int]uint32 {
	by := map[int]uint32{}
	for n, rank := range ranks {
		if rank == w.p.key.rank {
			continue
		}
		for _, i := range groups[n].tensors {
			by[i] = rank
		}
	}
	return by
}

// unsettled returns the groups with a slice that no other part of the node stores.
func (w writer) unsettled(groups []group, keys []sliceKey) (out []group) {
	others := w.others()
	for _, g := range groups {
		for _, i := range g.tensors {
			if _, ok := storedBy(others, keys[i]); !ok {
				out = append(out, g)
				break
			}
		}
	}
	return out
}

// allHere reports whether all ranks of the step are on this node: they need not ask anybody.
func (w writer) allHere() bool {
	w.a.mu.Lock()
	defer w.a.mu.Unlock()
	p, here := w.p, map[uint32]bool{}
	for _, q := range w.a.parts {
		if q.key.sameStep(p.key) {
			here[q.key.rank] = true
		}
	}
	w.addOpen(p, here)
	return len(here) == int(p.manifest.Open.World)
}

// addOpen adds the ranks that have the run of a part open on this node. The caller holds the mutex.
func (w writer) addOpen(p *part, here map[uint32]bool) {
	for key := range w.a.runs {
		if key.uid == p.key.uid && key.path == p.key.path && key.launch == p.run.key.launch && !key.readOnly {
			here[key.rank] = true
		}
	}
}
