package state

import (
	"slices"

	"github.com/morainefs/moraine"
)

// Protects returns how many failure domains may be lost at once, whichever
// they are, with the stripe still readable: the greatest j such that the j
// domains with the most chunks hold, together with the chunks that are missing
// already, no more than M. domains names the domain of each chunk that is
// there; chunks that are not are left out. It is at most M.
func Protects(scheme moraine.Scheme, domains []string) int {
	spare := len(domains) - int(scheme.K)
	if spare <= 0 {
		return 0
	}
	var counts []int
	seen := make(map[string]int, len(domains))
	for _, d := range domains {
		i, ok := seen[d]
		if !ok {
			i = len(counts)
			seen[d] = i
			counts = append(counts, 0)
		}
		counts[i]++
	}
	slices.SortFunc(counts, func(a, b int) int { return b - a })
	j := 0
	for _, n := range counts {
		if spare -= n; spare < 0 {
			break
		}
		j++
	}
	return min(j, int(scheme.M))
}
