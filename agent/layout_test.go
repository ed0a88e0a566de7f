package agent

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
)

// layouts is a step of several nodes whose parts are laid out in any order. The service is a map: it
// answers the first rank that claimed a group.
type layouts struct {
	t      *testing.T
	rng    *rand.Rand
	nodes  []*Agent
	claims map[ckpt.GroupID]uint32
	ranks  []*ranked
}

// ranked is a rank's part, and what it knows between its claim and its decision.
type ranked struct {
	w         writer
	keys      []sliceKey
	asked     bool
	elsewhere map[int]uint32
	sealed    map[int]uint32 // what the part in the cluster shares; nil: it is not there yet
}

// newLayouts makes a step whose ranks have some of a few slices in common, in groups that overlap.
func newLayouts(t *testing.T, rng *rand.Rand) *layouts {
	s := &layouts{t: t, rng: rng, claims: map[ckpt.GroupID]uint32{}}
	for range 2 + rng.IntN(2) {
		s.nodes = append(s.nodes, &Agent{cfg: Config{Dir: t.TempDir()}, parts: map[partKey]*part{}, runs: map[runKey]*run{}, metrics: NewMetrics(nil)})
	}
	world := 3 + rng.IntN(6)
	for rank := range world {
		a := s.nodes[rng.IntN(len(s.nodes))]
		m := &manifest{Version: manifestVersion, Open: agentproto.Open{World: uint32(world)}, Seal: agentproto.Seal{SumsAt: 1}}
		r := &ranked{}
		for _, name := range []string{"a.1", "a.2", "b.1.2", "b.2.1", "c", "c.x"} {
			if rng.IntN(3) > 0 {
				m.Seal.Tensors = append(m.Seal.Tensors, tensor(name, 1<<20))
				r.keys = append(r.keys, sliceKey{name, sha256.Sum256([]byte(name))})
			}
		}
		p := &part{key: partKey{rank: uint32(rank)}, slot: &slot{name: fmt.Sprint("slot-", rank)}, manifest: m, state: agentproto.Local}
		a.parts[p.key] = p
		r.w = writer{a, p}
		s.ranks = append(s.ranks, r)
	}
	return s
}

// claim asks for a part as writer.claim does. The request may be lost, or only its reply.
func (s *layouts) claim(r *ranked) {
	r.asked, r.elsewhere = true, nil
	lost := s.rng.IntN(6)
	if r.w.p.manifest.Decided || lost == 0 {
		return
	}
	groups := r.w.unsettled(groupsOf(&r.w.p.manifest.Seal, r.keys), r.keys)
	ranks := make([]uint32, len(groups))
	for i, g := range groups {
		if _, taken := s.claims[g.id]; !taken {
			s.claims[g.id] = r.w.p.key.rank
		}
		ranks[i] = s.claims[g.id]
	}
	if lost > 1 {
		r.elsewhere = r.w.leftTo(groups, ranks)
	}
}

// crash lets an agent forget what its manifests do not say.
func (s *layouts) crash(a *Agent) {
	for _, r := range s.ranks {
		if r.w.a != a {
			continue
		}
		m, err := readManifest(a.cfg.Dir + "/" + r.w.p.slot.name + manifestSuffix)
		if errors.Is(err, os.ErrNotExist) { // the seal has written one that decides nothing
			m, err = &manifest{Version: manifestVersion, Open: r.w.p.manifest.Open, Seal: r.w.p.manifest.Seal}, nil
		}
		require.NoError(s.t, err)
		r.w.p.layout, r.w.p.manifest, r.asked = nil, m, false
	}
}

// run lays all parts out.
func (s *layouts) run() {
	for {
		var open []*ranked
		for _, r := range s.ranks {
			if r.w.p.layout == nil {
				open = append(open, r)
			}
		}
		if len(open) == 0 {
			return
		}
		switch r := open[s.rng.IntN(len(open))]; {
		case s.rng.IntN(8) == 0:
			s.crash(s.nodes[s.rng.IntN(len(s.nodes))])
		case !r.asked:
			s.claim(r)
		default:
			require.NoError(s.t, r.w.decide(r.keys, r.elsewhere))
			if r.sealed == nil && s.rng.IntN(2) == 0 {
				r.sealed = maps.Clone(r.w.p.manifest.Shared)
			}
		}
	}
}

// TestEachSliceIsStored: in whatever order the parts of a step are laid out, and whichever replies are lost
// and agents end meanwhile, some part stores each slice. A rank to which a slice was left has it.
func TestEachSliceIsStored(t *testing.T) {
	shared := 0
	for seed := range uint64(300) {
		s := newLayouts(t, rand.New(rand.NewPCG(seed, 0)))
		s.run()
		stored := map[sliceKey]bool{}
		for _, r := range s.ranks {
			if r.sealed == nil {
				r.sealed = r.w.p.manifest.Shared
			}
			for i, key := range r.keys {
				by, left := r.sealed[i]
				if !left {
					stored[key] = true
					continue
				}
				shared++
				require.Contains(t, s.ranks[by].keys, key, "seed %d: rank %d left it to rank %d", seed, r.w.p.key.rank, by)
			}
		}
		for _, r := range s.ranks {
			for _, key := range r.keys {
				require.True(t, stored[key], "seed %d: nobody stores %s of rank %d", seed, key.place, r.w.p.key.rank)
			}
		}
	}
	require.Greater(t, shared, 1000)
}
