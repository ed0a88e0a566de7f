package ckpt

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/morainefs/moraine/client/ckpt/safetensors"
)

// claim is one rank's slice of a tensor, as its header describes it.
type claim struct {
	rank uint32
	SliceInfo
}

// coverage gathers the slices of one tensor from all ranks.
type coverage struct {
	name   string
	dtype  DType
	global []int64
	from   uint32 // the rank whose header gave dtype and global
	// claims name the files of their rank, by number. first has the number of each rank's first file
	// in the index; nil: claims have the numbers of the index.
	claims packedClaims
	first  []int
	shared []sharedClaim
}

// sharedClaim is a slice that a rank has, and that the rank by stores.
type sharedClaim struct {
	claim
	by uint32
}

// add adds a slice. It fails if ranks disagree on the tensor.
func (c *coverage) add(rank uint32, dtype DType, global []int64, s SliceInfo) error {
	if err := c.agree(rank, dtype, global); err != nil {
		return err
	}
	if volume(s.Shape) > 0 {
		c.claims.add(rank, &s)
	}
	return nil
}

// share adds a slice that the rank by stores for rank.
func (c *coverage) share(rank, by uint32, dtype DType, global []int64, s SliceInfo) error {
	if err := c.agree(rank, dtype, global); err != nil {
		return err
	}
	if volume(s.Shape) > 0 {
		c.shared = append(c.shared, sharedClaim{claim{rank, s}, by})
	}
	return nil
}

func (c *coverage) agree(rank uint32, dtype DType, global []int64) error {
	if c.global == nil {
		c.dtype, c.global, c.from = dtype, global, rank
	}
	if c.dtype != dtype || !slices.Equal(c.global, global) {
		return fmt.Errorf("tensor %q: rank %d declares %s %v, rank %d declares %s %v",
			c.name, c.from, c.dtype, c.global, rank, dtype, global)
	}
	return nil
}

// checkShared fails unless each shared slice is stored, in the same place and with the same bytes. It
// does not matter which rank stores it. unique are the stored slices, in order of offset and shape.
func (c *coverage) checkShared(unique []claim) error {
	for i := range c.shared {
		s := &c.shared[i]
		n, found := slices.BinarySearchFunc(unique, s.claim, compareRegions)
		switch {
		case !found:
			return fmt.Errorf("tensor %q: rank %d saved nothing of %s, because rank %d was to store it, and no rank has", c.name, s.rank, s.region(), s.by)
		case unique[n].Digest != s.Digest:
			return fmt.Errorf("tensor %q: ranks %d and %d both have %s, with different bytes", c.name, unique[n].rank, s.rank, s.region())
		}
	}
	return nil
}

// compareRegions orders slices by offset, then by shape.
func compareRegions(a, b claim) int {
	return cmp.Or(slices.Compare(a.Offset, b.Offset), slices.Compare(a.Shape, b.Shape))
}

// check returns the tensor with its slices in order of offset, if they cover its shape exactly.
// Slices of the same range are replicas, and must have the same digest. check refuses any other
// overlap, because headers do not show whether the overlapping bytes agree.
func (c *coverage) check(left *effort) (TensorInfo, error) {
	t := TensorInfo{Name: c.name, DType: c.dtype, Shape: c.global}
	claims := c.claims.unpack(len(c.global))
	slices.SortFunc(claims, func(a, b claim) int {
		return cmp.Or(compareRegions(a, b), int(a.rank)-int(b.rank))
	})
	t.Slices = make([]SliceInfo, len(claims))
	for i := range claims {
		if c.first != nil {
			claims[i].File += c.first[claims[i].rank]
		}
		t.Slices[i] = claims[i].SliceInfo
	}
	if len(claims) == 0 {
		t.Slices = nil
	}
	unique, err := c.unique(claims)
	if err != nil {
		return t, err
	}
	if err := c.checkShared(unique); err != nil {
		return t, err
	}
	if inRow(unique, c.global) {
		return t, nil
	}
	a, b, err := overlap(unique, len(c.global), left)
	if err != nil {
		return t, fmt.Errorf("tensor %q: %w", c.name, err)
	}
	if a != nil {
		return t, fmt.Errorf("tensor %q: %s of rank %d overlaps %s of rank %d", c.name, a.region(), a.rank, b.region(), b.rank)
	}
	var covered int64
	for i := range unique {
		covered += volume(unique[i].Shape)
	}
	if covered != volume(c.global) {
		missing := "a part of it"
		if len(unique) <= maxGapSlices {
			missing = region(gap(unique, c.global))
		}
		return t, fmt.Errorf("tensor %q of shape %v: %s is in no part (slices came from %s)",
			c.name, c.global, missing, ranksOf(c.claims.unpack(len(c.global))))
	}
	return t, nil
}

// unique returns the claims with one of each set of replicas. It fails if two have different bytes.
func (c *coverage) unique(claims []claim) ([]claim, error) {
	n := 0
	for i := range claims {
		k := &claims[i]
		if n == 0 || compareRegions(claims[n-1], *k) != 0 {
			if n != i {
				claims[n] = *k
			}
			n++
			continue
		}
		if claims[n-1].Digest != k.Digest {
			return nil, fmt.Errorf("tensor %q: ranks %d and %d both saved %s, with different bytes",
				c.name, claims[n-1].rank, k.rank, k.region())
		}
	}
	return claims[:n], nil
}

// inRow reports whether the claims, in order of offset, fill the shape one after the other along one
// dimension. Most tensors are cut like that, and need no search for overlaps and gaps.
func inRow(claims []claim, global []int64) bool {
	var at, rest int64 = 0, 1
	row := -1
	for d := range global {
		if len(claims) > 0 && claims[0].Shape[d] != global[d] {
			if row >= 0 {
				return false
			}
			row = d
		}
		rest *= global[d]
	}
	if row < 0 {
		return len(claims) == 1 && rest > 0
	}
	for i := range claims {
		k := &claims[i]
		for d := range global {
			if d != row && (k.Offset[d] != 0 || k.Shape[d] != global[d]) {
				return false
			}
		}
		if k.Offset[row] != at {
			return false
		}
		at += k.Shape[row]
	}
	return at == global[row]
}

// ranksOf names the ranks that saved a slice.
func ranksOf(claims []claim) string {
	var r []uint32
	for i := range claims {
		r = append(r, claims[i].rank)
	}
	slices.Sort(r)
	r = slices.Compact(r)
	switch len(r) {
	case 0:
		return "no rank"
	case 1:
		return fmt.Sprintf("rank %d", r[0])
	}
	return "ranks " + rankList(r)
}

func (k *claim) region() string { return region(k.Offset, k.Shape) }

// region formats a slice as Python does: [0:4, 8:16].
func region(offset, shape []int64) string {
	var b strings.Builder
	b.WriteByte('[')
	for i := range offset {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%d:%d", offset[i], offset[i]+shape[i])
	}
	b.WriteByte(']')
	return b.String()
}

// maxGapSlices is the number of slices up to which a verdict names the range that is missing: to find it
// may take the square of that.
const maxGapSlices = 16384

// maxComparisons bounds the comparisons of slices in the check of one step: some seconds. 10,000 ranks with
// 1,000 tensors, each cut along two dimensions, need half of it. But slices can be cut so that each pair
// would have to be compared.
const maxComparisons = 1 << 32

// effort is what is left of the comparisons of one check.
type effort struct {
	ctx  context.Context
	left int64
}

// spend takes n comparisons. It fails when none are left, and when the check is canceled.
func (e *effort) spend(n int) error {
	e.left -= int64(n)
	if e.left < 0 {
		return &Verdict{"the slices are cut so that a check for overlaps takes too long: cut tensors along one dimension, or in a grid"}
	}
	return e.ctx.Err()
}

// overlap returns two claims that share an element, or nil. It sweeps along the dimension with
// the most different offsets. So slices cut along one dimension, or in a grid, cost little more
// than sorting them.
func overlap(claims []claim, dims int, left *effort) (a, b *claim, err error) {
	if len(claims) < 2 {
		return nil, nil, nil
	}
	if dims == 0 {
		return &claims[0], &claims[1], nil
	}
	d := sweepDim(claims, dims)
	order := make([]*claim, len(claims))
	for i := range claims {
		order[i] = &claims[i]
	}
	slices.SortFunc(order, func(a, b *claim) int { return cmp.Compare(a.Offset[d], b.Offset[d]) })
	var active []*claim
	for _, k := range order {
		if err := left.spend(2 * len(active)); err != nil {
			return nil, nil, err
		}
		active = slices.DeleteFunc(active, func(a *claim) bool { return a.Offset[d]+a.Shape[d] <= k.Offset[d] })
		for _, a := range active {
			if intersects(a, k) {
				return a, k, nil
			}
		}
		active = append(active, k)
	}
	return nil, nil, nil
}

func sweepDim(claims []claim, dims int) int {
	list := make([]SliceInfo, len(claims))
	for i := range claims {
		list[i] = claims[i].SliceInfo
	}
	return keyDim(list, dims)
}

func intersects(a, b *claim) bool {
	for d := range a.Offset {
		if a.Offset[d] >= b.Offset[d]+b.Shape[d] || b.Offset[d] >= a.Offset[d]+a.Shape[d] {
			return false
		}
	}
	return true
}

// gap returns a range of global that no claim covers. The claims must not overlap and must
// leave out at least one element. gap narrows one dimension after the other to a band that some
// claims cross completely, and whose elements they cannot fill.
func gap(claims []claim, global []int64) (offset, shape []int64) {
	offset, shape = make([]int64, len(global)), clone(global)
	for d := range global {
		var cuts []int64
		for i := range claims {
			cuts = append(cuts, claims[i].Offset[d], claims[i].Offset[d]+claims[i].Shape[d])
		}
		cuts = append(cuts, offset[d], offset[d]+shape[d])
		slices.Sort(cuts)
		cuts = slices.Compact(cuts)
		rest := volume(shape[d+1:])
		for i := 0; i+1 < len(cuts); i++ {
			across := crossing(claims, d, cuts[i], cuts[i+1])
			var filled int64
			for j := range across {
				filled += volume(across[j].Shape[d+1:])
			}
			if filled < rest {
				offset[d], shape[d], claims = cuts[i], cuts[i+1]-cuts[i], across
				break
			}
		}
	}
	return offset, shape
}

// crossing returns the claims that span [from, to) of dimension d.
func crossing(claims []claim, d int, from, to int64) []claim {
	var out []claim
	for i := range claims {
		if claims[i].Offset[d] <= from && claims[i].Offset[d]+claims[i].Shape[d] >= to {
			out = append(out, claims[i])
		}
	}
	return out
}

// tensorSize returns the bytes of a shape that was checked before.
func tensorSize(d DType, shape []int64) int64 {
	n, err := safetensors.SizeOf(d, shape)
	if err != nil {
		panic(fmt.Sprintf("ckpt: size of %s %v: %v", d, shape, err))
	}
	return n
}
