package ckpt

import (
	"context"
	"path"
	"strconv"
	"strings"

	"github.com/morainefs/moraine/internal/adopted"
)

// The directory of one iteration of Megatron has, in the format torch_dist, the files of
// torch.distributed.checkpoint. In the format torch it has a directory for each model rank:
// mp_rank_TT, mp_rank_TT_PPP, mp_rank_TT_EEE or mp_rank_TT_PPP_EEE, for the tensor, pipeline and expert
// ranks. Nothing in it says how many there are. So a check finds a rank that is missing between
// others, and a file that was cut, and not that the last ranks of a dimension are missing. Package adopt
// compares the directory with the tracker, which Megatron writes when all ranks have written.

// megatronModel are the names of the file that each model rank has.
var megatronModel = []string{"model_optim_rng.pt", "model_rng.pt"}

// checkMegatron checks the directory of one iteration. That its tracker names it was checked before.
func (s *adoptedStep) checkMegatron(ctx context.Context) error {
	if _, ok := s.at[adopted.DCPMetadata]; ok {
		return s.checkDCP(ctx)
	}
	var ranks modelRanks
	for i := range s.files {
		f := &s.files[i]
		dir, name := path.Split(f.Path)
		dir = strings.TrimSuffix(dir, "/")
		if !strings.HasPrefix(dir, "mp_rank_") || strings.Contains(dir, "/") {
			continue
		}
		if err := ranks.add(dir, name); err != nil {
			return err
		}
	}
	return ranks.complete()
}

// modelRanks are the model ranks that have a directory.
type modelRanks struct {
	width int             // digits of the names are in so many groups
	has   map[string]bool // by directory: it has the file of the model
	most  []int           // the greatest rank of each dimension
	names []string        // of the directories, in order of their files
}

// maxModelRanks bounds the ranks of one dimension.
const maxModelRanks = 1 << 14

// add takes a file of a model rank.
func (r *modelRanks) add(dir, name string) error {
	if r.has == nil {
		r.has = map[string]bool{}
	}
	if _, known := r.has[dir]; !known {
		groups := strings.Split(strings.TrimPrefix(dir, "mp_rank_"), "_")
		if r.width == 0 {
			r.width, r.most = len(groups), make([]int, len(groups))
		}
		if len(groups) != r.width || r.width > 3 {
			return verdict("the directory %s is of another layout than %s", dir, strings.Join(r.names, ", "))
		}
		for d, g := range groups {
			n, err := strconv.Atoi(g)
			if err != nil || n < 0 || n >= maxModelRanks || rankName(d, n) != g {
				return verdict("the directory %s does not name a model rank", dir)
			}
			r.most[d] = max(r.most[d], n)
		}
		r.names = append(r.names, dir)
		r.has[dir] = false
	}
	for _, model := range megatronModel {
		r.has[dir] = r.has[dir] || name == model
	}
	return nil
}

// rankName is how Megatron writes a rank of a dimension.
func rankName(dimension, rank int) string {
	digits := strconv.Itoa(rank)
	width := 3
	if dimension == 0 {
		width = 2
	}
	return strings.Repeat("0", max(width-len(digits), 0)) + digits
}

// complete checks that each rank up to the greatest of each dimension has the file of its model.
func (r *modelRanks) complete() error {
	if len(r.names) == 0 {
		return verdict("the directory has neither %s nor a directory mp_rank_*", adopted.DCPMetadata)
	}
	all := 1
	for _, n := range r.most {
		all *= n + 1
		if all > maxModelRanks {
			return verdict("the directory has %d of more than %d model ranks", len(r.names), maxModelRanks)
		}
	}
	for n := range all {
		name := "mp_rank"
		for d, left := 0, n; d < r.width; d++ {
			rest := 1
			for _, m := range r.most[d+1:] {
				rest *= m + 1
			}
			name += "_" + rankName(d, left/rest)
			left %= rest
		}
		if !r.has[name] {
			return verdict("%s/%s is missing", name, megatronModel[0])
		}
	}
	return nil
}
