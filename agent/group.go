package agent

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
)

// Ranks of different nodes agree about groups of slices, not about each slice: that is one small request
// for a part. The groups of a part follow from its seal alone, and not from what other ranks have or do.
// So the next agent, or another rank with the same slices, makes the same groups.

const (
	// leastGroup is how many bytes a group must have to be worth a request.
	leastGroup = 1 << 20
	// groupsOfKind bounds the groups of whole tensors, and those of slices of larger ones.
	groupsOfKind = ckpt.MaxClaims / 2
	// mostNumbers bounds what groupKey.numbers tells apart.
	mostNumbers = 3
)

// group is some slices of a part that a rank stores for all ranks, or leaves to one.
type group struct {
	id      ckpt.GroupID
	tensors []int // by number in the seal
	bytes   int64
}

// groupKey is what the slices of a group have in common. Replicas of a whole model share all groups,
// ranks with the same shards those of slices, and other ranks the whole tensors. Experts that each rank
// has for itself are in a group of their own: their names have one number more than those of
// the other tensors of their layer.
type groupKey struct {
	whole   bool   // it is the whole tensor
	first   string // component of the name, up to a '.' or '/'
	numbers int    // in the name
}

// groupsOf returns the groups of a part that have leastGroup bytes. keys has its tensors.
func groupsOf(seal *agentproto.Seal, keys []sliceKey) (out []group) {
	byKey := map[groupKey]*group{}
	for i := range seal.Tensors {
		t := &seal.Tensors[i]
		if t.Bytes == 0 {
			continue
		}
		k := keyOf(t)
		g := byKey[k]
		if g == nil {
			g = &group{}
			byKey[k] = g
		}
		g.tensors, g.bytes = append(g.tensors, i), g.bytes+t.Bytes
	}
	for _, whole := range []bool{true, false} {
		for _, g := range largest(byKey, whole) {
			if g.bytes >= leastGroup {
				g.id = idOf(g.tensors, keys)
				out = append(out, g)
			}
		}
	}
	return out
}

// largest returns the groups of whole tensors, or of slices: the largest ones, and one with all others.
func largest(byKey map[groupKey]*group, whole bool) (out []group) {
	var order []groupKey
	for k := range byKey {
		if k.whole == whole {
			order = append(order, k)
		}
	}
	slices.SortFunc(order, func(a, b groupKey) int {
		return cmp.Or(cmp.Compare(byKey[b].bytes, byKey[a].bytes), strings.Compare(a.first, b.first), cmp.Compare(a.numbers, b.numbers))
	})
	for _, k := range order {
		if g := byKey[k]; len(out) < groupsOfKind {
			out = append(out, *g)
		} else {
			last := &out[groupsOfKind-1]
			last.tensors, last.bytes = append(last.tensors, g.tensors...), last.bytes+g.bytes
		}
	}
	return out
}

func keyOf(t *agentproto.Tensor) groupKey {
	k := groupKey{whole: t.Global == nil || slices.Equal(t.Global, t.Shape), first: t.Name}
	if end := strings.IndexAny(t.Name, "./"); end >= 0 {
		k.first = t.Name[:end]
	}
	for i := 0; i < len(t.Name) && k.numbers < mostNumbers; i++ {
		if digit(t.Name[i]) && (i == 0 || !digit(t.Name[i-1])) {
			k.numbers++
		}
	}
	return k
}

func digit(c byte) bool { return '0' <= c && c <= '9' }

// idOf names the slices of a group and their bytes, whatever their order in the part.
func idOf(tensors []int, keys []sliceKey) (id ckpt.GroupID) {
	lines := make([]string, 0, len(tensors))
	for _, i := range tensors {
		lines = append(lines, fmt.Sprintf("%s %x\n", keys[i].place, keys[i].sums)) // a name is quoted: it has no line feed
	}
	slices.Sort(lines)
	h := sha256.New()
	for _, line := range lines {
		h.Write([]byte(line))
	}
	copy(id[:], h.Sum(nil))
	return id
}
