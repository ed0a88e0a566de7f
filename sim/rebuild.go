package sim

import (
	"maps"
	"math"
	"math/bits"
	"slices"
)

// soon counts as now, in seconds.
const soon = 1e-9

// speed is how many chunks per second the remaining hosts rebuild of stripes that
// miss so many.
func (e *episode) speed(missing int) float64 {
	chunks := e.f.RebuildRate * float64(max(e.hosts, 1)) / e.f.ChunkBytes
	if e.f.StripesPerSecond > 0 {
		chunks = min(chunks, e.f.StripesPerSecond*float64(missing))
	}
	return chunks
}

// start is when the rebuild of a group may begin.
func (e *episode) start(set uint32) float64 {
	at := 0.0
	for b, u := range e.units {
		if set&(1<<b) != 0 {
			at = max(at, u.declaredDead)
		}
	}
	return at
}

// order returns the groups, those that miss the most chunks first.
func order(groups map[uint32]float64) []uint32 {
	sets := make([]uint32, 0, len(groups))
	for set := range groups {
		sets = append(sets, set)
	}
	slices.SortFunc(sets, func(a, b uint32) int {
		if d := bits.OnesCount32(b) - bits.OnesCount32(a); d != 0 {
			return d
		}
		return int(a) - int(b)
	})
	return sets
}

// untilWhole is how long the rebuild of everything takes without further losses.
func (e *episode) untilWhole() float64 { return e.rebuild(maps.Clone(e.groups), math.Inf(1)) }

// untilBetter is how long the rebuild takes of the stripes that miss the most
// chunks.
func (e *episode) untilBetter() float64 {
	worst := map[uint32]float64{}
	most := 0
	for _, set := range order(e.groups) {
		if n := bits.OnesCount32(set); n >= most {
			worst[set], most = e.groups[set], n
		}
	}
	return e.rebuild(worst, math.Inf(1))
}

// advance lets d seconds pass.
func (e *episode) advance(d float64) {
	e.rebuild(e.groups, d)
	e.now += d
}

// rebuild rebuilds groups for at most d seconds, and returns after how many
// everything was whole. All chunks that a stripe misses are rebuilt together.
func (e *episode) rebuild(groups map[uint32]float64, d float64) (took float64) {
	order := order(groups)
	for took < d && len(groups) > 0 {
		step, at := d-took, uint32(0)
		for _, set := range order {
			n, ok := groups[set]
			if !ok {
				continue
			}
			if wait := e.start(set) - (e.now + took); wait > soon {
				step = min(step, wait)
				continue
			}
			if at == 0 {
				at = set
				missing := bits.OnesCount32(set)
				step = min(step, n*float64(missing)/e.speed(missing))
			}
		}
		if at != 0 {
			missing := bits.OnesCount32(at)
			groups[at] -= step * e.speed(missing) / float64(missing)
			if groups[at] < 1e-9 {
				delete(groups, at)
			}
		}
		took += step
	}
	return took
}
