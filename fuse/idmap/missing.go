package idmap

import (
	"cmp"
	"slices"
)

// run is a sequence of IDs.
type run struct{ first, count uint32 }

// missing returns ranges that, with the given ones, map each ID to exactly one. They give the IDs of
// the cluster whose numbers are taken the numbers that are free: those whose IDs have others. The
// given ranges overlap nowhere.
func missing(ranges []Range) (add []Range) {
	var cluster, local []run
	for _, r := range ranges {
		cluster, local = append(cluster, run{r.Cluster, r.Count}), append(local, run{r.Local, r.Count})
	}
	taken, free := without(local, cluster), without(cluster, local)
	for len(taken) > 0 { // free has as many IDs: both are what is left of two sets of one size
		t, f := &taken[0], &free[0]
		n := min(t.count, f.count)
		add = append(add, Range{t.first, f.first, n})
		taken, free = cut(taken, n), cut(free, n)
	}
	return add
}

// without returns the IDs of a that are not in b, in order.
func without(a, b []run) (left []run) {
	a, b = slices.Clone(a), slices.Clone(b)
	for _, runs := range [][]run{a, b} {
		slices.SortFunc(runs, func(x, y run) int { return cmp.Compare(x.first, y.first) })
	}
	for _, x := range a {
		for _, y := range b {
			if !overlap(x.first, y.first, x.count, y.count) {
				continue
			}
			if x.first < y.first {
				left = join(left, run{x.first, y.first - x.first})
			}
			after := max(x.first+x.count, y.first+y.count) - (y.first + y.count)
			x = run{x.first + x.count - after, after}
		}
		if x.count > 0 {
			left = join(left, x)
		}
	}
	return left
}

// join appends a run, which may go on where the last one ends.
func join(runs []run, x run) []run {
	if n := len(runs); n > 0 && runs[n-1].first+runs[n-1].count == x.first {
		runs[n-1].count += x.count
		return runs
	}
	return append(runs, x)
}

// cut removes n IDs from the first run, which has as many.
func cut(runs []run, n uint32) []run {
	if runs[0].count == n {
		return runs[1:]
	}
	runs[0] = run{runs[0].first + n, runs[0].count - n}
	return runs
}
